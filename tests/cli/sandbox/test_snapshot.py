"""Snapshots and forks as a person makes them, with a server and without one."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import borrowing

from cloister.core.ids import new_owner_id

Cloister = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def data_dir(warm_dir: Path, tmp_path: Path) -> Path:
    return borrowing(warm_dir, tmp_path / "data")


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_snapshot_is_kept_listed_opened_and_removed(cloister: Cloister) -> None:
    name = f"mine-{new_owner_id()}"
    good(cloister("serve", "--background", "--port", "0"))
    try:
        sandbox = good(cloister("sandbox", "create")).strip()
        good(cloister("sandbox", "exec", sandbox, "--", "sh", "-c", "echo then > file"))
        taken = cloister("snapshot", "take", sandbox, "--name", name)
        assert good(taken).startswith("sn-")
        assert taken.stderr == f"Open it: cloister sandbox create --template snapshot:{name}\n"
        forks = good(cloister("sandbox", "fork", sandbox, "--n", "2")).split()
        assert len(forks) == 2
        good(cloister("sandbox", "rm", sandbox))
        opened = good(cloister("sandbox", "create", "--template", f"snapshot:{name}")).strip()
        for each in (opened, *forks):
            assert good(cloister("sandbox", "exec", each, "--", "cat", "file")) == "then\n"
        (shown,) = map(
            json.loads, good(cloister("snapshot", "ls", "--sandbox", sandbox, "--json")).splitlines()
        )
        assert (shown["id"], shown["name"]) == (taken.stdout.strip(), name)
    finally:
        good(cloister("serve", "--stop"))
    assert name in good(cloister("snapshot", "ls")), "without a server as well"
    assert json.loads(good(cloister("snapshot", "show", name, "--json"))) == shown
    assert f"sandbox   {sandbox} (container)" in good(cloister("snapshot", "show", name))
    assert good(cloister("snapshot", "rm", name)) == f"Removed {name}.\n"
    for verb in ("show", "rm"):
        gone = cloister("snapshot", verb, name)
        assert (gone.returncode, gone.stdout) == (2, "")
        assert gone.stderr.startswith(f"cloister: There is no snapshot '{name}'")


def test_without_a_server_there_is_no_sandbox_to_keep(cloister: Cloister) -> None:
    for argv in (("snapshot", "take", "s-nothing"), ("sandbox", "fork", "s-nothing")):
        done = cloister(*argv)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("cloister: There is no sandbox")
