"""Messages of a person reach the model, also when they race with `finish`; a person can stop checks that hang."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.agent.loop_bench import FIX, LoopBench, MemoryJournal, open_bench

from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    ChecksRan,
    CommandOutput,
    FinishRefused,
    InterruptRequested,
    ModelReplied,
    PromptReceived,
    ToolReturned,
    TurnEnded,
)

pytestmark = pytest.mark.anyio

HEARS = (
    FIX
    + """
branch = [{ when = "Also rename it", goto = "heard" }, { when = "x", goto = "heard" }]

[[reply]]
name = "heard"
say = "Heard."
calls = [{ tool = "finish", summary = "Add adds, and nothing is renamed." }]
"""
)


class Interrupted(MemoryJournal):
    """A person sends a message just before the first event for which `when` holds."""

    def __init__(self, kind: type[AnyBody], after: int = 0) -> None:
        super().__init__()
        self._kind = kind
        self._after = after
        self._done = False

    def _interrupt(self, bodies: tuple[AnyBody, ...]) -> None:
        replies = sum(isinstance(body, ModelReplied) for body in self.bodies)
        if not self._done and replies >= self._after and any(isinstance(b, self._kind) for b in bodies):
            self._done = True
            self.add(PromptReceived("Also rename it.", "ada"))

    async def append(self, *bodies: AnyBody) -> None:
        self._interrupt(bodies)
        await super().append(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        self._interrupt(bodies)
        return await super().append_at(last, *bodies)


@pytest.mark.parametrize(
    "when",
    [
        pytest.param((ModelReplied, 1), id="while the model writes its finish"),
        pytest.param((AttemptEnded, 2), id="at the very moment it is accepted"),
    ],
)
async def test_message_that_races_with_finish_is_not_lost(
    tmp_path: Path, when: tuple[type[AnyBody], int]
) -> None:
    bench: LoopBench = await open_bench(tmp_path)
    bench.journal = Interrupted(*when)
    ended = await bench.work(HEARS)
    assert (ended.outcome, ended.reason) == ("proven", "Add adds, and nothing is renamed.")
    assert sum(isinstance(body, AttemptEnded) for body in bench.journal.bodies) == 1
    [refused] = [b for b in bench.journal.bodies if isinstance(b, FinishRefused)]
    assert "Read it first" in refused.text
    said = next(n for n, b in enumerate(bench.journal.bodies) if isinstance(b, PromptReceived))
    later = [b for b in bench.journal.bodies[said:] if isinstance(b, ModelReplied)]
    assert any(b.text == "Heard." for b in later)
    answers = [b.ok for b in bench.journal.bodies if isinstance(b, ToolReturned) and b.tool == "finish"]
    assert answers == [False, True]


async def test_message_that_the_model_has_seen_does_not_block_finish(tmp_path: Path) -> None:
    bench: LoopBench = await open_bench(tmp_path)
    bench.journal = Interrupted(ToolReturned, 1)  # during the first turn: the second request tells it
    ended = await bench.work(FIX)
    assert (ended.outcome, ended.reason) == ("proven", "Add adds.")
    assert not bench.of(FinishRefused)


HANGS = """
[[reply]]
calls = [{{ tool = "write", path = "calc.py", content = "print('begun', flush=True)\\nimport time\\ntime.sleep(3600)\\n" }}{more}]

[[reply]]
calls = [{{ tool = "write", path = "calc.py", content = "def add(a, b):\\n    return a + b\\n" }}]

[[reply]]
calls = [{{ tool = "finish", summary = "Add adds." }}]
"""


async def _stopped(bench: LoopBench, script: str) -> AttemptEnded:
    """Work, with a person who stops the first check that prints something."""
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            while not any(
                isinstance(one, CommandOutput) and "begun" in one.text for one in bench.journal.deltas
            ):
                await anyio.lowlevel.checkpoint()
            bench.journal.add(InterruptRequested("ada"))

        tasks.start_soon(interrupt)
        return await bench.work(script)
    raise AssertionError


async def test_a_person_stops_checks_that_hang_and_the_files_of_the_turn_are_saved(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path)
    ended = await _stopped(bench, HANGS.format(more=""))
    assert (ended.outcome, ended.reason) == ("proven", "Add adds.")
    bodies = bench.journal.bodies
    first = next(n for n, body in enumerate(bodies) if isinstance(body, TurnEnded))
    assert not any(isinstance(body, ChecksRan) for body in bodies[:first]), (
        "the stopped checks have no result"
    )
    saved = bodies[first]
    assert isinstance(saved, TurnEnded) and saved.changed and saved.commit != bench.base
    assert [body.comparison.green for body in bodies if isinstance(body, ChecksRan)] == [True]


async def test_a_person_stops_the_checks_of_a_finish_which_is_then_refused(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path)
    ended = await _stopped(bench, HANGS.format(more=', { tool = "finish", summary = "Too early." }'))
    assert (ended.outcome, ended.reason) == ("proven", "Add adds.")
    [refused] = [body for body in bench.journal.bodies if isinstance(body, FinishRefused)]
    assert refused.text == "a person stopped the checks before they ended."
