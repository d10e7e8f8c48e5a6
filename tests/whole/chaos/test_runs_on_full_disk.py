"""A full disk pauses runs with the reason, and they go on by themselves when there is room again."""

import errno
import json
import os
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.whole.chaos.test_disk_full import MIB, mounted_disk
from tests.whole.e2e.conftest import Cloister
from tests.whole.e2e.test_continue import bash, finish, repository, script

from cloister.sandbox.store import api

pytestmark = pytest.mark.long

CHECK = ("--check", "python3 -m unittest -q")
FIX = "sed -i 's/a - b/a + b/' calc.py"
TURNS = script(
    bash("echo one > one"),
    bash("sleep 3; echo two > two"),
    bash(FIX),
    finish("Add adds."),
    bash("sleep 3; echo '# sum' >> calc.py"),
    finish("A comment."),
)


@contextmanager
def serving(data_dir: Path, cwd: Path, store: str) -> Generator[Cloister]:
    (data_dir / "config.toml").write_text(f'port = 0\nstore = "{store}"\n')
    command = Cloister(data_dir, cwd)
    command("serve", "--background")
    try:
        yield command
    finally:
        command("serve", "--stop", code=None)
        command.until(lambda: command.sandbox_processes() == [])


@pytest.fixture(scope="module", params=["btrfs-loop", "overlay"])
def shared(
    request: pytest.FixtureRequest, warm_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Cloister]:
    """A server on a small disk of its own."""
    at = tmp_path_factory.mktemp("full")
    with mounted_disk(at / "disk", warm_dir) as disk, serving(disk, at, request.param) as command:
        yield command


@pytest.fixture
def cloister(shared: Cloister, tmp_path: Path) -> Generator[Cloister]:
    yield Cloister(shared.data_dir, tmp_path)
    free_disk(shared.data_dir)


def fill(directory: Path, leave: int) -> None:
    """Take all but `leave` bytes, while others write to the same disk."""
    fewer = 0
    with (directory / "ballast").open("wb") as file:
        while True:
            try:
                os.posix_fallocate(file.fileno(), 0, api.free(directory) - leave - fewer)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                fewer += 4096
            else:
                return


def free_disk(directory: Path) -> None:
    (directory / "ballast").unlink(missing_ok=True)


def start(cloister: Cloister) -> None:
    """Start a run, and return in its second turn."""
    repo = repository(cloister)
    cloister("run", "Fix add", "--repo", str(repo), "--model", cloister.script(TURNS), "--detach", *CHECK)
    cloister.until(lambda: kinds(cloister).count("ModelReplied") >= 2)


def asked(cloister: Cloister, path: str) -> Any:
    url = json.loads((cloister.data_dir / "server.json").read_text())["url"]
    token = (cloister.data_dir / "token").read_text().strip()
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def kinds(cloister: Cloister) -> list[str]:
    return [event["body"]["type"] for event in asked(cloister, "/v1/runs/last/events")]


def pauses(cloister: Cloister) -> None:
    """Wait until the run is paused. Everything that shows it says why it waits."""
    cloister.until(lambda: asked(cloister, "/v1/runs/last")["state"] == "paused")
    seen = asked(cloister, "/v1/runs/last")
    shown = json.loads(cloister("ps", "--limit", "1", "--json").stdout.splitlines()[0])
    assert "free some" in seen["reason"], seen["reason"]
    assert (shown["state"], shown["reason"]) == ("paused", seen["reason"])
    assert "paused" in cloister("ps").stdout
    health = asked(cloister, "/v1/health")
    assert not health["ok"] and "runs are paused" in health["reason"], health
    assert cloister("audit", "verify").stdout.startswith("OK")


def is_whole(cloister: Cloister, rounds: int = 1) -> None:
    """No event is lost or doubled, and no reply was asked for twice."""
    events = cloister.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["body"]["type"] for event in events]
    assert kinds.count("RunFinished") == rounds
    assert kinds.count("RunPaused") >= 1
    replies = [event["body"] for event in events if event["body"]["type"] == "ModelReplied"]
    steps = [(body["attempt"], body["step"]) for body in replies]
    assert len(set(steps)) == len(steps)
    assert events[-1]["body"]["outcome"] == "proven", events[-1]["body"]
    assert cloister("audit", "verify").stdout.startswith("OK")
    assert asked(cloister, "/v1/health")["ok"]


def goes_on(cloister: Cloister, rounds: int = 1) -> None:
    """The run ends green."""
    assert "✓ proven" in cloister("watch", "last").stdout.rsplit(f"round {rounds}", 1)[-1]
    is_whole(cloister, rounds)


def pauses_with_a_full_log(cloister: Cloister) -> None:
    start(cloister)
    fill(cloister.data_dir, 0)
    pauses(cloister)
    free_disk(cloister.data_dir)
    goes_on(cloister)


def pauses_with_room_for_the_log(cloister: Cloister) -> None:
    start(cloister)
    fill(cloister.data_dir, 8 * MIB)
    pauses(cloister)
    assert "RunPaused" in kinds(cloister)
    free_disk(cloister.data_dir)
    goes_on(cloister)


def pauses_in_a_later_round(cloister: Cloister) -> None:
    start(cloister)
    cloister("watch", "last")
    before = kinds(cloister).count("ModelReplied")
    cloister("say", "last", "Add a comment.")
    cloister.until(lambda: kinds(cloister).count("ModelReplied") > before)
    fill(cloister.data_dir, 0)
    pauses(cloister)
    free_disk(cloister.data_dir)
    goes_on(cloister, rounds=2)


def survives_kill_9_of_its_server(cloister: Cloister) -> None:
    start(cloister)
    fill(cloister.data_dir, 0)
    pauses(cloister)
    cloister.kill(cloister.server_pid())
    refused = cloister("serve", "--background", code=None)
    assert refused.returncode in (0, 3)
    assert len(refused.stderr.splitlines()) <= 2
    free_disk(cloister.data_dir)
    if refused.returncode:
        cloister("serve", "--background")
    assert "✓ proven" in cloister("watch", "last").stdout
    events = cloister.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert cloister("audit", "verify").stdout.startswith("OK")


def waits_or_is_refused_if_the_disk_is_full_before_it_is_asked_for(cloister: Cloister) -> None:
    repo = repository(cloister)
    argv = ("run", "Fix add", "--repo", str(repo), "--model", cloister.script(TURNS), "--detach", *CHECK)
    fill(cloister.data_dir, 0)
    cloister.until(lambda: not asked(cloister, "/v1/health")["ok"])
    refused = cloister(*argv, code=None)
    if refused.returncode == 0:  # SQLite may have room for a few events in its files
        cloister.until(lambda: asked(cloister, "/v1/runs/last")["state"] in ("queued", "paused"))
    else:
        assert refused.returncode == 3
        assert "free some" in refused.stderr and len(refused.stderr.splitlines()) == 1
    free_disk(cloister.data_dir)
    if refused.returncode:
        cloister(*argv)
    assert "✓ proven" in cloister("watch", "last").stdout


CASES: tuple[Callable[[Cloister], None], ...] = (
    pauses_with_a_full_log,
    pauses_with_room_for_the_log,
    pauses_in_a_later_round,
    survives_kill_9_of_its_server,
    waits_or_is_refused_if_the_disk_is_full_before_it_is_asked_for,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The first case in each run of the tests, all of them in a long one."""
    if "case" in metafunc.fixturenames:
        cases = CASES if metafunc.config.getoption("--long") else CASES[:1]
        metafunc.parametrize("case", cases, ids=lambda case: case.__name__)


def test_a_run_on_a_full_disk(cloister: Cloister, case: Callable[[Cloister], None]) -> None:
    case(cloister)


def test_the_full_store_pauses_a_run_until_there_is_room_in_it(warm_dir: Path, tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", warm_dir) as disk:
        fill(disk, 900 * MIB)  # the store may not grow beyond this
        with serving(disk, tmp_path, "btrfs-loop") as cloister:
            hog = cloister.json("sandbox", "create")["id"]
            start(cloister)
            cloister("sandbox", "exec", hog, "--", "sh", "-c", "cat /dev/zero > big; sync", code=None)
            pauses(cloister)
            cloister("sandbox", "rm", hog)
            goes_on(cloister)
