"""What a command does not import: each of these would cost it more time than its own work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.cli.lazy import COMMANDS

HEAVY = (
    "anthropic",
    "cloister.app.wiring",
    "cloister.runs.driver",
    "cloister.sandbox.container",
    "cloister.server",
    "cryptography",
    "google",
    "h11",
    "httpx",
    "httpx2",
    "openai",
    "opentelemetry",
    "pydantic",
    "pydantic_ai",
    "rich",
    "starlette",
    "uvicorn",
)
LOOP = ("anyio", "asyncio")
"""Only commands that wait for something need an event loop."""
LOOK = """
import atexit, json, sys
from cloister.cli.entry import enter

atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
sys.argv = ["cloister", *sys.argv[1:]]
enter()
"""
CASES = {
    "--version": (*LOOP, "sqlite3", "cloister.cli.commands.run"),
    "ps": LOOP,
    "log r-none": LOOP,
    "diff r-none": (),
    "say r-none text": (),
    "policy explain bash:ls": (),
}


def _imported(data_dir: Path, *args: str) -> set[str]:
    argv = [sys.executable, "-c", LOOK, "--data-dir", str(data_dir), *args]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=data_dir, check=False)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("line", CASES)
def test_command_imports_no_module_that_it_does_not_need(line: str, tmp_path: Path) -> None:
    found = _imported(tmp_path, *line.split())
    unwanted = {
        name
        for name in found
        if any(name == heavy or name.startswith(f"{heavy}.") for heavy in (*HEAVY, *CASES[line]))
    }
    assert unwanted == set()


@pytest.mark.parametrize("module", ["runs.delivery", "app.verbs.local_policy", "app.verbs.local_runs"])
def test_what_a_quick_command_does_on_a_run_imports_none_either(module: str) -> None:
    code = f"import cloister.{module}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(json.loads(done.stdout))
    assert {name for name in found if name.partition(".")[0] in HEAVY or name in HEAVY} == set()


def test_every_command_can_be_loaded_and_has_words(tmp_path: Path) -> None:
    assert "cloister.cli.commands.audit" in _imported(tmp_path, "audit", "--help")
    assert {name for name in COMMANDS if name.startswith("-")} == set()
