"""The command as a person runs it: a process of its own on a data directory of its own."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.client import forked

Cloister = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def plain_env(data_dir: Path) -> dict[str, str]:
    """An environment without anything of ours, any model's key, or a wish for colours."""
    ours = ("CLOISTER_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"CLOISTER_DATA_DIR": str(data_dir), "PYTHONWARNINGS": "error"}


@pytest.fixture
def cloister(plain_env: dict[str, str], tmp_path: Path) -> Cloister:
    def run(*args: str, cwd: Path = tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
        return forked.run(args, cwd=cwd, env=plain_env | env)

    return run


@pytest.fixture
def server(cloister: Cloister) -> Iterator[None]:
    """A background server for the length of a test."""
    started = cloister("serve", "--background", "--port", "0")
    assert started.returncode == 0, started.stderr
    yield
    stopped = cloister("serve", "--stop")
    assert stopped.returncode == 0, stopped.stderr
