"""The file of the log: what is refused, what is kept, and what other processes may do to it."""

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.whole.conformance.suites.backbone import claimed

from cloister.core import limits
from cloister.core.errors import Bug, CloisterError, Fenced, HostError, UserError
from cloister.core.events import (
    AttemptStarted,
    Event,
    PhaseStarted,
    PromptReceived,
    RunClaimed,
    RunFinished,
    RunResumed,
    StopRequested,
)
from cloister.core.ids import OwnerId, new_owner_id
from cloister.core.requests import NewRun
from cloister.log.api import Fence
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone

pytestmark = pytest.mark.anyio

NEW = NewRun(prompt="p", repo="r")


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[SqliteBackbone]:
    with anyio.fail_after(30):
        async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
            yield backbone


async def refusal(path: Path) -> HostError:
    with pytest.raises(HostError) as caught:
        async with opened(path):
            pass
    return caught.value


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"my diary, not a database\n" * 100)
    error = await refusal(path)
    assert error.code == "corrupt_data"
    assert str(path) in error.message
    assert path.read_bytes() == b"my diary, not a database\n" * 100


async def test_foreign_database_is_rejected_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    db.close()
    before = path.read_bytes()
    assert (await refusal(path)).code == "corrupt_data"
    assert path.read_bytes() == before


async def test_a_log_cut_short_is_refused_or_read_never_repaired(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with opened(path) as backbone:
        fence = await claimed(backbone)
        await backbone.append(fence, [PhaseStarted("work")] * 2_000)
    cut = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(cut)
    with pytest.raises(HostError) as caught:
        async with opened(path) as backbone:
            await backbone.read(fence.run)
    assert caught.value.code == "corrupt_data"
    assert path.read_bytes() == cut


async def test_undecodable_event_is_reported_for_its_run_and_not_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with opened(path) as backbone:
        fence = await claimed(backbone)
        with sqlite3.connect(path) as db:
            db.execute("INSERT INTO events (run, seq, at, body) VALUES (1, 3, 0.0, x'7b')")
        db.close()
        with pytest.raises(HostError) as caught:
            await backbone.read(fence.run)
        other, _ = await backbone.admit(NEW, "me")
        assert len(await backbone.read(other)) == 1
    assert caught.value.code == "unreadable_event"


async def test_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with opened(path) as backbone:
        await backbone.admit(NEW, "me")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert (await refusal(path)).code == "newer_data"


async def test_a_directory_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").mkdir()
    assert (await refusal(tmp_path / "log.db")).code == "no_access"


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.db"
    async with opened(path) as backbone:
        await backbone.admit(NEW, "me")
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("log.db", "log.db-wal", "log.db-shm", "log.head", "audit.key"), 0o600)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = x'00' WHERE seq = 1",
        "DELETE FROM events WHERE seq = 1",
        "INSERT OR REPLACE INTO events (run, seq, at, body) VALUES (1, 1, 0.0, x'00')",
        "INSERT INTO events (run, seq, at, body) VALUES (1, 9, 0.0, x'00')",
    ],
)
async def test_the_log_itself_refuses_to_be_rewritten(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with opened(path) as backbone:
        fence = await claimed(backbone)
        before = await backbone.read(fence.run)
        with sqlite3.connect(path) as db, pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)
        db.close()
        assert await backbone.read(fence.run) == before


async def test_an_event_over_the_limit_is_a_bug_and_nothing_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        fence = await claimed(backbone)
        large = StopRequested("x" * limits.EVENT_BYTES)
        with pytest.raises(Bug):
            await backbone.append(fence, [PhaseStarted("work"), large])
        assert (await backbone.row(fence.run)).last_seq == 2


async def test_only_the_backbone_admits_and_claims(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        fence = await claimed(backbone)
        with pytest.raises(Bug):
            await backbone.append(fence, [RunClaimed("o-9999", 7)])


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewRun(prompt=" ", repo="r"), "bad_run"),
        (NewRun(prompt="x" * (limits.PROMPT_BYTES + 1), repo="r"), "bad_run"),
        (NewRun(prompt="p", repo="r", checks=("x" * limits.EVENT_BYTES,)), "too_large"),
        (NewRun(prompt="p", repo="\udcff"), "bad_text"),
    ],
)
async def test_invalid_request_is_rejected_with_its_code(new: NewRun, code: str, tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        with pytest.raises(UserError) as caught:
            await backbone.admit(new, "me")
        assert caught.value.code == code
        assert await backbone.runs() == ()


async def test_message_over_the_limit_is_rejected(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        run, _ = await backbone.admit(NEW, "me")
        with pytest.raises(UserError) as caught:
            await backbone.append_outside(run, PromptReceived("x" * (limits.PROMPT_BYTES + 1), "me"))
        assert caught.value.code == "too_large"
        await backbone.append_outside(run, PromptReceived("\n" * limits.PROMPT_BYTES, "me"))


async def test_the_row_names_the_model_that_was_taken(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        fence = await claimed(backbone)
        assert (await backbone.row(fence.run)).model is None
        await backbone.append(fence, [AttemptStarted(0, "p:m")])
        assert (await backbone.row(fence.run)).model == "p:m"


async def test_time_comes_from_the_clock_it_was_given(tmp_path: Path) -> None:
    ticks = iter((10.0, 20.0))
    lives: list[OwnerId] = []

    def owner_lives(owner: OwnerId) -> bool:
        lives.append(owner)
        return True

    async with open_backbone(
        tmp_path / "log.db", owner_lives=owner_lives, now=lambda: next(ticks)
    ) as backbone:
        fence = await claimed(backbone)
        assert [event.at for event in await backbone.read(fence.run)] == [10.0, 20.0]
        row = await backbone.row(fence.run)
    assert (row.created_at, row.updated_at) == (10.0, 20.0)
    assert lives == [fence.owner]


async def test_an_append_that_was_begun_is_seen_through_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        fence = await claimed(backbone)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(backbone.append, fence, [PhaseStarted("work")])
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert scope.cancelled_caught
        assert [event.seq for event in await backbone.read(fence.run)] == [1, 2, 3]


async def test_cancelling_everything_ends_at_once_and_keeps_what_was_begun(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    acked: list[int] = []
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        async with open_backbone(path, owner_lives=lambda owner: True) as backbone:
            fence = await claimed(backbone)

            async def work() -> None:
                while True:
                    acked.extend(event.seq for event in await backbone.append(fence, [PhaseStarted("work")]))
                    if len(acked) == 50:
                        scope.cancel()

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(work)
    assert scope.cancelled_caught
    async with opened(path) as backbone:
        (row,) = await backbone.runs()
        assert row.last_seq == max(acked)


async def test_more_appends_than_may_wait_all_arrive(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        fence = await claimed(backbone)
        async with anyio.create_task_group() as tasks:
            for number in range(1_000):
                tasks.start_soon(backbone.append, fence, [RunResumed(number)])
        events = await backbone.read(fence.run)
        assert [event.seq for event in events] == list(range(1, 1_003))
        assert {e.body.after_seq for e in events if isinstance(e.body, RunResumed)} == set(range(1_000))


async def test_an_error_in_the_block_leaves_it_unwrapped(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        async with opened(tmp_path / "log.db"):
            raise UserError("mine", "Mine.")
    assert caught.value.code == "mine"


async def test_a_short_name_of_a_run_is_resolved(tmp_path: Path) -> None:
    async with opened(tmp_path / "log.db") as backbone:
        run, _ = await backbone.admit(NEW, "me")
        assert await backbone.resolve(run[:6]) == run


async def test_a_database_held_by_another_process_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with opened(path) as backbone:
        fence = await claimed(backbone)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        seen: list[Event] = []

        async def add() -> None:
            seen.extend(await backbone.append(fence, [PhaseStarted("work")]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add)
            # Readers do not wait for writers.
            assert [event.seq for event in await backbone.read(fence.run)] == [1, 2]
            assert seen == []
            other.execute("COMMIT")
        other.close()
        assert [event.seq for event in seen] == [3]


FIRST_OPEN = """
import sys, anyio
from pathlib import Path
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone

async def main():
    async with open_backbone(Path(sys.argv[1]), owner_lives=lambda owner: True) as backbone:
        for number in range(20):
            await backbone.admit(NewRun(prompt="p", repo="r"), sys.argv[2])

anyio.run(main)
"""


async def test_several_processes_may_make_and_use_the_log_at_the_same_moment(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def start(number: int) -> None:
        await anyio.run_process([sys.executable, "-c", FIRST_OPEN, str(path), str(number)], stderr=None)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(start, number)
    async with opened(path) as backbone:
        assert len(await backbone.runs()) == 80


FULL_DISK = """
import sys, anyio
from pathlib import Path
from cloister.core.errors import HostError
from cloister.core.events import Event, StopRequested
from cloister.core.ids import new_owner_id
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone

async def main(directory):
    async with open_backbone(directory / "log.db", owner_lives=lambda owner: True) as backbone:
        run, _ = await backbone.admit(NewRun(prompt="p", repo="r"), "me")
        fence = await backbone.claim(new_owner_id(), run)
        ballast = directory / "ballast"
        ballast.write_bytes(bytes(1_000_000))
        acked, seen, code = 2, [], None
        async with backbone.follow(run) as items:
            try:
                while True:
                    acked = (await backbone.append(fence, [StopRequested("x" * 50_000)]))[-1].seq
            except HostError as error:
                code = error.code
            assert code == "no_disk", code
            assert (await backbone.row(run)).last_seq == acked > 2
            ballast.unlink()
            assert (await backbone.append(fence, [StopRequested("me")]))[0].seq == acked + 1
            async for item in items:
                seen.append(item.seq)
                if item.seq == acked + 1:
                    break
        assert seen == list(range(1, acked + 2)), seen
        assert [event.seq for event in await backbone.read(run)] == seen

anyio.run(main, Path(sys.argv[1]))
"""


async def test_a_full_disk_is_said_and_the_log_goes_on_once_there_is_space(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("needs root and unshare: a full disk is not tested")
    script = f'mount -t tmpfs -o size=2m tmpfs "{tmp_path}" && exec "$0" -c "$1" "{tmp_path}"'
    with anyio.fail_after(60):
        # The mount is in a namespace of its own and goes with the process.
        await anyio.run_process(
            [unshare, "--mount", "/bin/sh", "-c", script, sys.executable, FULL_DISK], stderr=None
        )


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["admit", "claim", "bury", "append", "say", "finish"]), st.integers(0, 3)),
    max_size=30,
)


class Story:
    """Many hands on one log: what a random sequence of requests did, and what it should have done."""

    def __init__(self, one: SqliteBackbone, other: SqliteBackbone, dead: set[OwnerId]) -> None:
        self.hands = (one, other)
        self.dead = dead
        self.fences: list[Fence] = []
        self.newest: dict[str, Fence] = {}
        self.finished: set[str] = set()

    async def act(self, verb: str, which: int) -> None:
        hand = self.hands[which % 2]
        if verb == "admit":
            await hand.admit(NEW, "me")
        elif verb == "claim":
            if fence := await hand.claim(new_owner_id()):
                assert fence.run not in self.finished
                held = self.newest.get(fence.run)
                assert held is None or (held.owner in self.dead and fence.epoch == held.epoch + 1)
                self.fences.append(fence)
                self.newest[fence.run] = fence
        elif self.fences:
            await self.touch(hand, verb, self.fences[which % len(self.fences)])

    async def touch(self, hand: SqliteBackbone, verb: str, fence: Fence) -> None:
        """Something with a fence that may be old, to a run that may be over."""
        wanted = None
        if verb != "say" and self.newest[fence.run] != fence:
            wanted = "fenced"
        elif fence.run in self.finished:
            wanted = "run_finished"
        code = None
        try:
            if verb == "bury":
                self.dead.add(fence.owner)
                return
            if verb == "append":
                await hand.append(fence, [PhaseStarted("work"), RunResumed(1)])
            elif verb == "say":
                await hand.append_outside(fence.run, StopRequested("me"))
            else:
                await hand.append(fence, [RunFinished("proven", "done")])
                self.finished.add(fence.run)
        except (Fenced, UserError) as error:
            code = error.code
        assert code == wanted


async def tell(steps: list[Step], together: bool) -> None:
    dead: set[OwnerId] = set()

    def lives(owner: OwnerId) -> bool:
        return owner not in dead

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.db"
        async with (
            open_backbone(path, owner_lives=lives) as one,
            open_backbone(path, owner_lives=lives) as other,
        ):
            story = Story(one, other, dead)
            if together:
                await mingle(story, steps)
            else:
                for verb, which in steps:
                    await story.act(verb, which)
            for row in await one.runs(limit=1_000):
                events = await other.read(row.id)
                assert [event.seq for event in events] == list(range(1, row.last_seq + 1))
                epochs = [event.body.epoch for event in events if isinstance(event.body, RunClaimed)]
                assert epochs == list(range(1, row.epoch + 1))
                ends = [event.seq for event in events if isinstance(event.body, RunFinished)]
                assert ends == ([row.last_seq] if row.state == "finished" else [])


async def mingle(story: Story, steps: list[Step]) -> None:
    """All at once: who wins is open, the log must hold all the same."""

    async def act(verb: str, which: int) -> None:
        hand = story.hands[which % 2]
        try:
            if verb == "admit":
                await hand.admit(NEW, "me")
            elif verb == "claim":
                if fence := await hand.claim(new_owner_id()):
                    story.fences.append(fence)
            elif verb == "bury":
                story.dead.update(fence.owner for fence in story.fences[: which + 1])
            elif story.fences:
                fence = story.fences[which % len(story.fences)]
                last = RunFinished("red", "over") if verb == "finish" else StopRequested("me")
                await hand.append(fence, [PhaseStarted("work"), last])
        except CloisterError as error:
            assert error.code in ("fenced", "run_finished")

    for start in range(0, len(steps), 8):
        async with anyio.create_task_group() as tasks:
            for verb, which in steps[start : start + 8]:
                tasks.start_soon(act, verb, which)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_any_sequence_of_requests_leaves_a_gapless_log_under_the_newest_fence(steps: list[Step]) -> None:
    anyio.run(tell, [("admit", 0), ("claim", 0), ("admit", 1), ("claim", 1), *steps], False)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_requests_made_at_the_same_time_leave_a_gapless_log(steps: list[Step]) -> None:
    anyio.run(tell, [("admit", 0), ("admit", 1), ("claim", 0), ("claim", 1), *steps], True)
