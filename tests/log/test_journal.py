"""A run's log in the hands of its owner."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.whole.conformance.suites.backbone import claimed

from cloister.core.errors import Fenced, UserError
from cloister.core.events import (
    Event,
    ModelText,
    PhaseStarted,
    PromptReceived,
    RunFinished,
    RunResumed,
    StopRequested,
)
from cloister.core.ids import OwnerId, new_owner_id
from cloister.core.log import Journal
from cloister.log.journal import open_journal
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone

pytestmark = pytest.mark.anyio

STARTED = PhaseStarted("work")


@asynccontextmanager
async def opened(tmp_path: Path, dead: set[OwnerId] | None = None) -> AsyncGenerator[SqliteBackbone]:
    buried = dead if dead is not None else set[OwnerId]()
    with anyio.fail_after(30):
        async with open_backbone(tmp_path / "log.db", owner_lives=lambda o: o not in buried) as backbone:
            yield backbone


def seqs(events: Sequence[Event]) -> list[int]:
    return [event.seq for event in events]


async def test_it_starts_with_the_log_and_holds_own_appends_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as backbone:
        fence = await claimed(backbone)
        async with open_journal(backbone, fence) as journal:
            assert tuple(journal.events) == await backbone.read(fence.run)
            await journal.append(STARTED, RunResumed(1))
            assert seqs(journal.events) == [1, 2, 3, 4]
            await journal.append()
            await journal.append(STARTED)
            assert tuple(journal.events) == await backbone.read(fence.run)


async def test_what_comes_from_outside_appears_and_wakes(tmp_path: Path) -> None:
    async with opened(tmp_path) as here, opened(tmp_path) as elsewhere:
        fence = await claimed(here)
        async with open_journal(here, fence) as journal:
            for backbone in (here, elsewhere):
                before = len(journal.events)
                await backbone.append_outside(fence.run, PromptReceived("hello", "me"))
                await journal.changed(before)
                assert journal.events[-1].body == PromptReceived("hello", "me")
            await journal.changed(0)


async def test_own_and_outside_events_are_each_held_once_and_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as here, opened(tmp_path) as elsewhere:
        fence = await claimed(here)
        async with open_journal(here, fence) as journal, anyio.create_task_group() as tasks:

            async def work(number: int) -> None:
                for _ in range(25):
                    before = len(journal.events)
                    await journal.append(RunResumed(number), RunResumed(number))
                    assert len(journal.events) >= before + 2
                    assert seqs(journal.events) == list(range(1, len(journal.events) + 1))

            async def talk(backbone: SqliteBackbone) -> None:
                for _ in range(25):
                    await backbone.append_outside(fence.run, StopRequested("me"))

            for number in range(3):
                tasks.start_soon(work, number)
            tasks.start_soon(talk, here)
            tasks.start_soon(talk, elsewhere)
            await journal.changed(2 + 150 + 50 - 1)
            assert tuple(journal.events) == await here.read(fence.run)


async def test_fragments_reach_those_who_follow(tmp_path: Path) -> None:
    async with opened(tmp_path) as backbone:
        fence = await claimed(backbone)
        async with open_journal(backbone, fence) as journal, backbone.follow(fence.run) as items:
            iterator = aiter(items)
            assert seqs(
                [e for e in [await anext(iterator), await anext(iterator)] if isinstance(e, Event)]
            ) == [
                1,
                2,
            ]
            journal.show(ModelText(0, "x"))
            assert await anext(iterator) == ModelText(0, "x")


async def test_fenced_owner_gets_an_error_and_sees_why(tmp_path: Path) -> None:
    dead: set[OwnerId] = set()
    async with opened(tmp_path, dead) as backbone:
        fence = await claimed(backbone)
        async with open_journal(backbone, fence) as journal:
            dead.add(fence.owner)
            heir = await backbone.claim(new_owner_id())
            assert heir is not None
            with pytest.raises(Fenced):
                await journal.append(STARTED)
            await journal.changed(2)
            assert seqs(journal.events) == [1, 2, 3]


async def test_waiting_for_more_after_the_end_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as backbone:
        fence = await claimed(backbone)
        async with open_journal(backbone, fence) as journal:
            refusals: list[str] = []

            async def wait(waiting: Journal) -> None:
                try:
                    await waiting.changed(3)
                except UserError as error:
                    refusals.append(error.code)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, journal)
                await anyio.wait_all_tasks_blocked()
                await journal.append(RunFinished("proven", "done"))
            await wait(journal)
            assert refusals == ["run_finished", "run_finished"]


async def test_a_cancelled_append_leaves_the_journal_true(tmp_path: Path) -> None:
    async with opened(tmp_path) as backbone:
        fence = await claimed(backbone)
        async with open_journal(backbone, fence) as journal:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(journal.append, STARTED)
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await journal.append(STARTED)
            assert tuple(journal.events) == await backbone.read(fence.run)


async def test_an_error_in_the_block_leaves_it_unwrapped(tmp_path: Path) -> None:
    async with opened(tmp_path) as backbone:
        fence = await claimed(backbone)
        with pytest.raises(UserError):
            async with open_journal(backbone, fence):
                raise UserError("mine", "Mine.")


async def test_an_end_is_not_appended_over_a_message_that_came_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as here, opened(tmp_path) as elsewhere:
        fence = await claimed(here)
        async with open_journal(here, fence) as journal:
            seen = journal.events[-1].seq
            await elsewhere.append_outside(fence.run, PromptReceived("wait", "ada"))
            assert not await journal.append_at(seen, STARTED)
            assert isinstance(journal.events[-1].body, PromptReceived)
            assert await journal.append_at(journal.events[-1].seq, STARTED)
            assert journal.events[-1].body == STARTED
