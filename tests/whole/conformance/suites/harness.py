"""What every `Harness` must do, as checks that raise `AssertionError` with one sentence.

Call them from a test with a `Case`: how to open a bench with the harness, and scripts that make its model do something.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from tests.agent.loop_bench import LoopBench, MemoryJournal

from cloister.agent.context.messages import request
from cloister.agent.evidence.evidence import Claim, Evidence, Refused
from cloister.agent.harnesses.api import Ending, OutOfBudget, Unfinished, Workplace
from cloister.agent.harnesses.native.conversation import Step, ask_model
from cloister.core.computer import shell
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    FinishRefused,
    ModelReplied,
    PromptReceived,
    ProofTaken,
    RunClaimed,
    RunResumed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import effective
from cloister.core.requests import Budget
from cloister.core.text import decode, one_line
from cloister.forge import change, workspace
from cloister.testing.local import LocalComputer

KEPT = "kept.txt"
"""The file that the scripts `endless` and `waits` write."""


@dataclass(frozen=True)
class Case:
    """A harness, and scripts for its model."""

    open: Callable[[], Awaitable[LoopBench]]
    """Opens a new bench that uses the harness, with one failing check."""
    fixes: str
    """Two replies: fix the bug, then claim that the task is done."""
    claims: str
    """Claims that the task is done in each reply, without a change."""
    endless: str
    """Appends a line to `KEPT` in each reply, and never claims anything."""
    waits: str
    """Writes `KEPT`, then runs a command that does not end."""


async def check_accepted_change(case: Case) -> None:
    """A proven change ends the attempt green: one end, the last event, after a green proof of that commit."""
    bench = await case.open()
    ended = await bench.work(case.fixes)
    _one_end(bench, ended)
    _require(ended.outcome == "proven", f"a fixed bug ends {ended.outcome}: {ended.reason}")
    proofs = [body for body in bench.journal.bodies if isinstance(body, ProofTaken)]
    _require(
        bool(proofs) and proofs[-1].comparison.green and proofs[-1].commit == ended.commit,
        "green without a green proof of the commit",
    )


async def check_refused_claims(case: Case) -> None:
    """A claim without evidence never ends the attempt green, however often it is made."""
    bench = await case.open()
    ended = await bench.work(case.claims, budget=Budget(steps=3))
    _one_end(bench, ended)
    _require(ended.outcome in ("red", "budget"), f"claims alone end {ended.outcome}")
    _require(ended.commit == bench.base, "claims alone made a commit")
    _require(bool(bench.of(FinishRefused)), "a refused claim left no event")


async def check_unread_message(case: Case) -> None:
    """A message that the model has not read keeps the attempt from ending."""
    bench = await case.open()
    await bench.work(case.fixes)
    kept = _up_to(bench.journal.bodies, lambda body: isinstance(body, ModelReplied) and body.step == 2)
    again = await _resumed(bench, [*kept, PromptReceived("One more thing.", "ada")])
    ended = await again.work(case.fixes, budget=Budget(steps=2))
    _one_end(again, ended)
    _require(ended.outcome == "budget", f"with an unread message the attempt ends {ended.outcome}")


async def check_step_budget(case: Case) -> None:
    """No step beyond the budget; the work is saved."""
    bench = await case.open()
    ended = await bench.work(case.endless, budget=Budget(steps=2))
    _one_end(bench, ended)
    _require(ended.outcome == "budget", f"a spent budget ends {ended.outcome}: {ended.reason}")
    steps = len(bench.of(ModelReplied))
    _require(steps == 2, f"a budget of 2 steps allowed {steps}")
    await _saved(bench, ended)


async def check_time_budget(case: Case) -> None:
    """A time-out interrupts a command that does not end; the files it wrote are saved."""
    bench = await case.open()
    ended = await bench.work(case.waits, budget=Budget(seconds=3.0))
    _one_end(bench, ended)
    _require(ended.outcome == "budget", f"a time-out ends {ended.outcome}: {ended.reason}")
    await _saved(bench, ended)


async def check_stop(case: Case) -> None:
    """A stopped harness returns at once and records no end of its own."""
    bench = await case.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.work, case.waits)
        with anyio.fail_after(30):
            while not bench.of(ModelReplied):
                await bench.journal.changed(len(bench.journal.events))
            tasks.cancel_scope.cancel()
    _require(not bench.of(AttemptEnded), "a stopped harness recorded an end")


async def check_resume(case: Case) -> None:
    """Cut off after any event, the attempt resumes to the same end and does not ask again for a recorded reply."""
    bench = await case.open()
    whole = await bench.work(case.fixes)
    bodies = bench.journal.bodies
    first = next(at for at, body in enumerate(bodies) if isinstance(body, ModelReplied))
    proof = max(at for at, body in enumerate(bodies) if isinstance(body, ProofTaken))
    for end in range(first + 1, proof + 2):  # all that follows the proof is one transaction
        again = await _resumed(bench, bodies[:end])
        ended = await again.work(case.fixes)
        cut = f"cut off after {type(bodies[end - 1]).__name__}"
        _one_end(again, ended)
        _require(
            (ended.outcome, ended.reason) == (whole.outcome, whole.reason),
            f"{cut}, it ends {ended.outcome}: {ended.reason}",
        )
        steps = [body.step for body in again.journal.bodies if isinstance(body, ModelReplied)]
        _require(steps == [1, 2], f"{cut}, the recorded replies are {steps}")
        turns = [e.body.step for e in effective(again.journal.events) if isinstance(e.body, TurnEnded)]
        _require(turns == [1, 2], f"{cut}, the turns are {turns}")


async def _resumed(bench: LoopBench, kept: list[AnyBody]) -> LoopBench:
    """The same attempt after a crash: a new sandbox with the last save point, and a log that ends with `kept`."""
    commits = [body.commit for body in kept if isinstance(body, TurnEnded)]
    computer = LocalComputer(bench.root / f"resumed-{len(kept)}")
    await workspace.restore(computer, bench.bare, bench.base, commits[-1] if commits else bench.base)
    journal = MemoryJournal(*kept, RunClaimed("o-2", 2), RunResumed(len(kept)))
    return LoopBench(bench.root, bench.bare, bench.base, computer, journal, harness=bench.harness)


def _up_to(bodies: list[AnyBody], wanted: Callable[[AnyBody], bool]) -> list[AnyBody]:
    return bodies[: next(at for at, body in enumerate(bodies) if wanted(body)) + 1]


def _one_end(bench: LoopBench, ended: AttemptEnded) -> None:
    ends = bench.of(AttemptEnded)
    _require(len(ends) == 1, f"the log has {len(ends)} ends")
    _require(bench.journal.bodies[-1] == ended, "the end is not the last event")


async def _saved(bench: LoopBench, ended: AttemptEnded) -> None:
    files = [one.path for one in await change.files(bench.bare, bench.base, ended.commit)]
    _require(files == [KEPT], f"the last commit changes {files}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


# A second harness, as small as possible: the seam and these checks fit more than our own loop.

DONE = "DONE "
"""A reply that begins with this claims that the task is done."""
_COMMAND_SECONDS = 600.0


class LineHarness:
    """Runs each reply of the model as one command line. There are no tools."""

    async def drive(self, place: Workplace, evidence: Evidence) -> Ending:
        while True:
            await place.clock.warn()
            reply = place.progress().pending or await self._ask(place)
            if isinstance(reply, OutOfBudget | Unfinished):
                return reply
            if reply.text.startswith(DONE):
                claim = Claim(reply.step, reply.text.removeprefix(DONE), reply.seen or 0)
                result = await evidence.try_finish(claim)
                if not isinstance(result, Refused):
                    return result
                await evidence.record(FinishRefused(place.attempt, one_line(result.why)))
            else:
                evidence.add_result(await self._run(place, reply))
                await evidence.checkpoint(reply.step)
            await evidence.end_turn(reply.step)

    async def last_words(self, place: Workplace, evidence: Evidence, reason: str) -> str:
        return ""

    async def _ask(self, place: Workplace) -> ModelReplied | OutOfBudget | Unfinished:
        events = place.journal.events
        step = Step(
            place.attempt,
            place.progress().steps + 1,
            place.models.chain("code"),
            request(events, place.attempt, ()),
            events[-1].seq,
        )
        asked = await ask_model(place.models, place.journal, step)
        if isinstance(asked, ModelReplied):
            return asked
        return OutOfBudget(asked.message) if asked.code == "budget" else Unfinished("failed", asked.message)

    async def _run(self, place: Workplace, reply: ModelReplied) -> ToolReturned:
        done = await place.computer.run(shell(reply.text, seconds=_COMMAND_SECONDS))
        return ToolReturned(
            place.attempt, f"line-{reply.step}", "line", done.ok, decode(done.out), 0.0, done.exited.code
        )
