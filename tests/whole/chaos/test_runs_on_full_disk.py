"""A full disk pauses runs with the reason, and they go on by themselves when there is room again."""

import errno
import json
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.whole.chaos.test_disk_full import MIB, fill_disk
from tests.whole.chaos.test_disk_full import small_disk as small_disk
from tests.whole.e2e.conftest import Cloister
from tests.whole.e2e.test_continue import bash, finish, repository, script

CHECK = ("--check", "python3 -m unittest -q")
FIX = "sed -i 's/a - b/a + b/' calc.py"
TURNS = script(
    bash("echo one > one"),
    bash("sleep 4; echo two > two"),
    bash(FIX),
    finish("Add adds."),
    bash("sleep 4; echo '# sum' >> calc.py"),
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


@pytest.fixture(params=["btrfs-loop", "overlay"])
def cloister(request: pytest.FixtureRequest, small_disk: Path, tmp_path: Path) -> Generator[Cloister]:
    with serving(small_disk, tmp_path, request.param) as command:
        yield command


def fill(directory: Path, leave: int) -> Path:
    """As `fill_disk`, while others write to the same disk."""
    while True:
        try:
            return fill_disk(directory, leave)
        except OSError as error:
            assert error.errno == errno.ENOSPC


def start(cloister: Cloister) -> Path:
    repo = repository(cloister)
    cloister("run", "Fix add", "--repo", str(repo), "--model", cloister.script(TURNS), "--detach", *CHECK)
    return repo


def turns(cloister: Cloister) -> int:
    return cloister.kinds().count("TurnEnded")


def row(cloister: Cloister) -> dict[str, Any]:
    return json.loads(cloister("ps", "--limit", "1", "--json").stdout.splitlines()[0])


def health(cloister: Cloister) -> dict[str, Any]:
    url = json.loads((cloister.data_dir / "server.json").read_text())["url"]
    with urllib.request.urlopen(f"{url}/v1/health", timeout=30) as answer:
        return json.loads(answer.read())


def view(cloister: Cloister, run: str) -> dict[str, Any]:
    url = json.loads((cloister.data_dir / "server.json").read_text())["url"]
    token = (cloister.data_dir / "token").read_text().strip()
    asked = urllib.request.Request(f"{url}/v1/runs/{run}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.loads(answer.read())


def is_paused(cloister: Cloister) -> bool:
    """Everything that shows the run says why it waits."""
    shown = row(cloister)
    seen = view(cloister, shown["id"])
    return (
        shown["state"] == seen["state"] == "paused"
        and "free some" in shown["reason"]
        and "free some" in seen["reason"]
        and "paused" in cloister("ps").stdout
        and not health(cloister)["ok"]
    )


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
    assert events[-1]["body"]["outcome"] == "green", events[-1]["body"]
    assert cloister("audit", "verify").returncode == 0


@pytest.mark.parametrize("leave", [0, 8 * MIB], ids=["log-full", "log-writable"])
def test_a_run_pauses_when_the_disk_is_full_and_goes_on_when_there_is_room(
    cloister: Cloister, small_disk: Path, leave: int
) -> None:
    start(cloister)
    cloister.until(lambda: turns(cloister) >= 1)
    ballast = fill(small_disk, leave)
    cloister.until(lambda: is_paused(cloister))
    ballast.unlink()
    assert "✓ green" in cloister("watch", "last").stdout
    is_whole(cloister)
    assert health(cloister)["ok"]


def test_a_round_after_the_first_pauses_and_goes_on_as_well(cloister: Cloister, small_disk: Path) -> None:
    start(cloister)
    cloister("watch", "last")
    before = turns(cloister)
    cloister("say", "last", "Add a comment.")
    cloister.until(lambda: cloister.kinds().count("ModelReplied") > before)
    ballast = fill(small_disk, 0)
    cloister.until(lambda: is_paused(cloister))
    ballast.unlink()
    assert "✓ green" in cloister("watch", "last").stdout.rsplit("round 2", 1)[1]
    is_whole(cloister, rounds=2)


def test_a_paused_run_survives_kill_9_of_its_server(cloister: Cloister, small_disk: Path) -> None:
    start(cloister)
    cloister.until(lambda: turns(cloister) >= 1)
    ballast = fill(small_disk, 0)
    cloister.until(lambda: is_paused(cloister))
    cloister.kill(cloister.server_pid())
    refused = cloister("serve", "--background", code=None)
    assert refused.returncode in (0, 3)
    assert len(refused.stderr.splitlines()) <= 2
    ballast.unlink()
    if refused.returncode:
        cloister("serve", "--background")
    assert "✓ green" in cloister("watch", "last").stdout
    events = cloister.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_a_run_that_is_asked_for_while_the_disk_is_full_waits_or_is_refused_in_one_sentence(
    cloister: Cloister, small_disk: Path
) -> None:
    repo = repository(cloister)
    asked = ("run", "Fix add", "--repo", str(repo), "--model", cloister.script(TURNS), "--detach", *CHECK)
    ballast = fill(small_disk, 0)
    cloister.until(lambda: not health(cloister)["ok"])
    refused = cloister(*asked, code=None)
    if refused.returncode == 0:  # SQLite may have room for a few events in its files
        cloister.until(lambda: is_paused(cloister))
    else:
        assert refused.returncode == 3
        assert "free some" in refused.stderr and len(refused.stderr.splitlines()) == 1
    ballast.unlink()
    if refused.returncode:
        cloister(*asked)
    assert "✓ green" in cloister("watch", "last").stdout


def test_the_full_store_pauses_a_run_until_there_is_room_in_it(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk, 900 * MIB)  # the store may not grow beyond this
    with serving(small_disk, tmp_path, "btrfs-loop") as cloister:
        hog = cloister.json("sandbox", "create")["id"]
        start(cloister)
        cloister.until(lambda: turns(cloister) >= 1)
        cloister("sandbox", "exec", hog, "--", "sh", "-c", "cat /dev/zero > big; sync", code=None)
        cloister.until(lambda: is_paused(cloister))
        cloister("sandbox", "rm", hog)
        assert "✓ green" in cloister("watch", "last").stdout
        is_whole(cloister)
