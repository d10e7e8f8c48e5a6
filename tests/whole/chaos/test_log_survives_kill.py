"""`kill -9` of a process that appends, at many points: nothing acknowledged is lost, nothing has a gap."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from cloister.core.errors import Fenced
from cloister.core.events import RunClaimed, RunResumed
from cloister.core.ids import OwnerId, RunId, new_owner_id
from cloister.log.api import Fence
from cloister.log.sqlite.backbone import open_backbone
from cloister.log.sqlite.reader import AuditReader, LogReader

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).parent / "appending.py"
FOR_ONE_LIFE = 60.0


class Life:
    """What a process said before it died."""

    def __init__(self, owner: OwnerId) -> None:
        self.owner = owner
        self.epoch: int | None = None
        self.acked = 0

    async def listen(self, process: Process, until: int | None) -> None:
        """Note what it says; after `until` acknowledged appends, kill it."""
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        heard = 0
        try:
            while True:
                word, number = (await lines.receive_until(b"\n", 64)).split()
                if word == b"epoch":
                    self.epoch = int(number)
                else:
                    self.acked = max(self.acked, int(number))
                    heard += 1
                if until is not None and heard == until:
                    process.kill()
                    until = None
        except (anyio.EndOfStream, anyio.IncompleteRead):
            pass


async def live(path: Path, until: int | None, before: Sequence[str] = ()) -> Life:
    life = Life(new_owner_id())
    command = [*before, sys.executable, str(PROGRAM), str(path), life.owner]
    with anyio.fail_after(FOR_ONE_LIFE):
        async with await anyio.open_process(command, stderr=None) as process:
            try:
                if until == 0:
                    process.kill()
                await life.listen(process, until)
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
    return life


def check_log(path: Path, acked: int) -> RunId | None:
    """Whole, and not behind what was acknowledged."""
    with LogReader(path) as log:
        rows = log.rows()
        if not rows:
            assert acked == 0
            return None
        (row,) = rows
        events = log.events(row.id)
    assert [event.seq for event in events] == list(range(1, row.last_seq + 1))
    assert row.last_seq >= acked
    assert row.epoch == sum(isinstance(event.body, RunClaimed) for event in events)
    # Two events of one append are there together or not at all.
    assert sum(isinstance(event.body, RunResumed) for event in events) % 2 == 0
    check_audit(path)
    return row.id


def check_audit(path: Path) -> None:
    """A kill is no finding, and the signed head never covers less than what was acknowledged before it."""
    with AuditReader(path) as audit:
        verdict = audit.verify()
    assert verdict.problems == ()
    assert verdict.anchor is not None
    assert verdict.anchor.number <= verdict.entries


async def check_heir(path: Path, life: Life) -> None:
    """The next claim works and the dead owner is fenced."""
    async with open_backbone(path, owner_lives=lambda owner: False) as backbone:
        heir = await backbone.claim(new_owner_id())
        assert heir is not None
        if life.epoch is not None:
            assert heir.epoch == life.epoch + 1
            with pytest.raises(Fenced):
                await backbone.append(Fence(heir.run, life.owner, life.epoch), [RunResumed(0)])
        await backbone.append(heir, [RunResumed(0), RunResumed(0)])
    check_audit(path)


async def test_killed_between_appends_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    for until in (1, 2, 3, 5, 8, 40, 333):
        life = await live(path, until)
        assert life.acked > 0
        assert check_log(path, life.acked) is not None
        await check_heir(path, life)


POINTS = {
    "pwrite64": (1, 2, 3, 4, 6, 9, 12, 20, 45),
    "fdatasync": (1, 2, 3, 4, 7, 20),
    "flock": (1, 2, 3, 4, 5, 9, 12),
}
"""Which call of the kind is killed."""


async def killed_at(call: str, point: int, path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: killing at each system call is not tested")
    inject = [
        *(strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"),
        *("-e", f"inject={call}:signal=KILL:when={point}"),
    ]
    life = await live(path, None, inject)
    if check_log(path, life.acked) is not None:
        await check_heir(path, life)
    # The same file, half-written by the first, also takes a second life.
    second = await live(path, 3)
    assert second.acked > life.acked
    assert check_log(path, second.acked) is not None


@pytest.mark.long
@pytest.mark.parametrize("call", POINTS)
async def test_killed_at_a_system_call_nothing_acknowledged_is_lost(
    call: str, tmp_path: Path, long: bool
) -> None:
    for point in range(1, 100) if long else POINTS[call]:
        await killed_at(call, point, tmp_path / f"{point}.db")


@pytest.mark.parametrize("point", [1, 2])
async def test_killed_while_the_key_or_the_head_is_first_stored_nothing_is_lost(
    point: int, tmp_path: Path
) -> None:
    await killed_at("link,linkat", point, tmp_path / "log.db")


async def test_an_append_is_acknowledged_only_after_the_disk_has_it(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the order of syncing and acknowledging is not tested")
    trace = tmp_path / "trace"
    program = [sys.executable, str(PROGRAM), str(tmp_path / "log.db"), new_owner_id(), "40"]
    with anyio.fail_after(FOR_ONE_LIFE):
        await anyio.run_process(
            [strace, "-f", "--seccomp-bpf", "-qq", "-o", str(trace), "-e", "trace=fdatasync,write", *program],
            stderr=None,
        )
    synced = acked = 0
    lines = (await anyio.Path(trace).read_text(encoding="utf-8")).splitlines()
    for line in lines:
        if '"epoch ' in line:
            synced = 0
        elif "fdatasync" in line and line.endswith("= 0"):
            synced += 1
        elif '"ack ' in line:
            acked += 1
            # Two hands append, so one commit carries at most two of these.
            assert acked <= 2 * synced
    assert acked == 80
