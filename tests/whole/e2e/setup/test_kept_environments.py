"""Environments that a server keeps ready: `[[environment]]` in the settings."""

import json
import secrets
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS = 'setup = ["true {0}"]\nchecks = ["true"]\n'


def commit(cloister: Any, repo: Path, step: str) -> None:
    (repo / ".cloister").mkdir(exist_ok=True)
    (repo / ".cloister" / "config.toml").write_text(SETTINGS.format(step))
    cloister.git(repo, "add", "-A")
    cloister.git(repo, "commit", "-q", "-m", step)


def prepared(cloister: Any) -> int:
    """How many environments were built."""
    return cloister("audit", "show").stdout.count("EnvironmentPrepared")


def environments(cloister: Any, repo: Path) -> dict[str, str]:
    """The step of each environment of the repository → its name."""
    listed = map(json.loads, cloister("template", "ls", "--json").stdout.splitlines())
    found = [one for one in listed if one["recipe"].get("repo") == str(repo)]
    return {one["recipe"]["steps"][0]: one["name"] for one in found}


@contextmanager
def serving(cloister: Any) -> Generator[None]:
    server: subprocess.Popen[str] = cloister.start("serve")
    try:
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def remove(cloister: Any, repo: Path) -> None:
    """Templates are shared by all tests."""
    for name in environments(cloister, repo).values():
        cloister("template", "rm", name)


def test_an_environment_is_built_when_the_branch_moves_and_again_when_its_time_comes(cloister: Any) -> None:
    repo, own = cloister.ledger(), secrets.token_hex(4)
    one, two = f"one-{own}", f"two-{own}"
    commit(cloister, repo, one)
    config = cloister.data_dir / "config.toml"
    table = f'[[environment]]\nrepo = "{repo}"\nminutes = 0.1\n'
    config.write_text(config.read_text() + table)
    try:
        with serving(cloister):
            cloister.until(lambda: prepared(cloister) == 1)
            commit(cloister, repo, two)
            cloister.until(lambda: prepared(cloister) == 2)
            names = environments(cloister, repo)
            assert set(names) == {f"true {one}", f"true {two}"}
            told = cloister("env", "build", "--repo", str(repo)).stdout
        newest = names[f"true {two}"]
        assert f"{newest} is ready, built {time.strftime('%Y-', time.gmtime())}" in told
        (home,) = (cloister.data_dir / "templates").glob(f"{newest}-*")
        about = json.loads((home / "about.json").read_text())
        (home / "about.json").write_text(json.dumps(about | {"built_at": time.time() - 7_200}))
        config.write_text(f'{config.read_text()}cron = "@hourly"\n')
        before = prepared(cloister)
        with serving(cloister):
            cloister.until(lambda: prepared(cloister) == before + 1)
        assert home.with_name(f"{home.name}.1").exists(), "a second build of the same environment"
    finally:
        remove(cloister, repo)
