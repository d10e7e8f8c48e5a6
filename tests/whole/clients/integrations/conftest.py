"""One server for the integrations, and the environments of their frameworks."""

import fcntl
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from tests.conftest import CACHE
from tests.whole.clients.integrations.programs import OURS, Framework
from tests.whole.e2e.conftest import ROOT, Cloister

Try = Callable[..., None]


def interpreter(framework: Framework) -> Path:
    """The Python that has a framework and what our client needs; skips the test where no registry can be reached."""
    wanted = (*framework.packages, *OURS)
    name = sha256("\n".join((framework.python, *framework.overrides, *wanted)).encode()).hexdigest()[:12]
    home = CACHE / "clients" / f"{framework.packages[0].partition('=')[0]}-{name}"
    home.mkdir(parents=True, exist_ok=True)
    uv, python = Path(sys.executable).with_name("uv"), home / "venv" / "bin" / "python"
    # Some frameworks need a newer Python than this one: pyenv's are not on the path.
    places = [os.environ["PATH"], *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    env = os.environ | {"PATH": ":".join(places)}
    overrides = home / "overrides.txt"
    overrides.write_text("\n".join(framework.overrides))
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "made").exists():
            for command in (
                (uv, "venv", "-q", "--clear", "--python", framework.python, home / "venv"),
                (uv, "pip", "install", "-q", "--python", python, "--override", overrides, *wanted),
            ):
                done = subprocess.run(command, capture_output=True, text=True, env=env)
                if done.returncode != 0:
                    pytest.skip(f"{framework.packages[0]} cannot be fetched here: {done.stderr[-200:]}")
            (home / "made").touch()
    return python


@pytest.fixture
def entry_points(tmp_path: Path) -> Path:
    """A directory with the entry points of our package, as an installer writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = tmp_path / "installed" / "cloister-0.dist-info"
    about.mkdir(parents=True)
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: cloister\nVersion: 0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    about.joinpath("entry_points.txt").write_text("\n".join(groups))
    return about.parent


@pytest.fixture
def attempt(command: Cloister, entry_points: Path, tmp_path: Path) -> Try:
    """Runs a program with a framework against the server."""

    def run(framework: Framework, program: str, *more: str) -> None:
        server = command.json("compat", "env", "modbox")
        url = server["MODBOX_BASE_URL"].removesuffix("/compat/modbox")
        env = command.env | {
            "CLOISTER_SERVER": url,
            "CLOISTER_TOKEN": server["MODBOX_TOKEN"],
            "PYTHONPATH": f"{ROOT / 'src'}:{entry_points}",
            "PYTHONWARNINGS": "ignore",
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            [interpreter(framework), *more, "-"],
            input=program,
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-6_000:]}"

    return run
