"""The harness that lets a program inside work over ACP, and lets the evidence decide.

A turn is one prompt. When the program ends it, the change is saved and the evidence is asked: what it refuses goes back as
the next prompt. Messages of people end the turn and begin the next one. A program that crashed is started again: it loads
its session if it can, and else begins with a summary of the log.
"""

from collections.abc import Sequence

import anyio

from cloister.agent.evidence.evidence import Claim, Evidence
from cloister.agent.harnesses.api import Ending, OutOfBudget, Unfinished, Workplace
from cloister.agent.harnesses.native.interrupt import while_paused, withdraw
from cloister.core.attempts import CLAUDE
from cloister.core.budget import Over, sentence
from cloister.core.computer import Command
from cloister.core.events import (
    AttemptEnded,
    BudgetExtended,
    BudgetSpent,
    Event,
    FinishRefused,
    InterruptRequested,
    ModelFailed,
    PauseRequested,
    PromptReceived,
    RunContinued,
    SandboxOpened,
)
from cloister.core.log import Journal
from cloister.core.text import bounded, one_line
from cloister.harnesses.acp import words
from cloister.harnesses.acp.connection import Died, Refusal
from cloister.harnesses.acp.gate import Gate
from cloister.harnesses.acp.programs import FINDS_CLAUDE, Program, plain_claude, program
from cloister.harnesses.acp.session import Session, opened
from cloister.harnesses.acp.transcript import TooMuch, Transcript

_STARTS = 4
"""How often a program is started in one drive."""
_CLAIMS = 3
"""Consecutive claims without a new change that end the attempt."""
_FAILURES = 3
"""Consecutive turns that end with an error."""
_SAVE_SECONDS = 30.0
"""A crash loses at most the work of this long, or of one call."""
_SUMMARY_CHARS = 8_000


class AcpHarness:
    """Drives a program in the sandbox."""

    def __init__(self, name: str) -> None:
        """Raises `UserError` (`unknown_harness`)."""
        self._name = name
        program(name, None)

    async def drive(self, place: Workplace, evidence: Evidence) -> Ending:
        await while_paused(place.journal, place.clock)
        await evidence.baseline_ready()
        if place.guide is not None:
            await place.guide.give()
        if place.progress().pending is not None:
            await evidence.end_turn(place.progress().steps)  # a crash interrupted it
        model = place.models.role("code")
        starting = program(self._name, model.window)
        if self._name == CLAUDE and not (await place.computer.run(Command(FINDS_CLAUDE, cwd="/"))).ok:
            starting = plain_claude(model.window)
        work = _Work(place, evidence, starting, model.name)
        try:
            return await work.run()
        except TooMuch as error:
            return OutOfBudget(str(error))

    async def last_words(self, place: Workplace, evidence: Evidence, reason: str) -> str:
        return ""


class _Work:
    """The work of one drive, over all starts of the program."""

    def __init__(self, place: Workplace, evidence: Evidence, starting: Program, model: str) -> None:
        self._place = place
        self._evidence = evidence
        self._program = starting
        self._gate = Gate(place)
        self._transcript = Transcript(place, evidence, self._gate, model)
        self._seen = 0
        """The last event that a prompt included."""
        self._claims: list[str] = []
        """The commits of the last claims that were refused."""
        self._failures = 0
        self._insisted = False
        """True once it was asked whether nothing has to change."""

    async def run(self) -> Ending:
        earlier = why = ""
        began = False
        place = self._place
        for start in range(_STARTS):
            starting, is_open = self._program.resuming(earlier), False
            try:
                async with opened(
                    place.computer, starting, place.attempt, place.journal, self._transcript, self._gate
                ) as session:
                    loaded = await session.open(earlier)
                    earlier, began, is_open = session.id, True, True
                    return await self._turns(session, words.CUT_OFF if loaded else "")
            except Died as death:
                earlier = earlier if is_open else ""  # it cannot be loaded: a new one gets a summary
                await withdraw(self._place.journal, self._place.attempt)
                await self._transcript.end_turn()
                await self._save()
                why = str(death)
            if not began or start + 1 == _STARTS:
                break
            await self._place.journal.append(
                ModelFailed(self._place.attempt, "network", one_line(why, 500), 0.0)
            )
        return Unfinished("failed", why if began else f"{why} Is it installed in the template of the run?")

    async def _turns(self, session: Session, text: str) -> Ending:
        """Take turns to the end; without `text` the session is new and is given the whole task."""
        place, new = self._place, not text
        while True:
            await while_paused(place.journal, place.clock)
            await place.clock.warn()
            if (over := _spent(place.journal, place.attempt)) is not None:
                return OutOfBudget(over)
            events = place.journal.events
            prompt = (
                words.task(events, place.attempt, place.attached)
                if new
                else self._prompt(text, events[self._seen :])
            )
            self._seen, new = events[-1].seq, False
            told = await self._turn(session, prompt)
            if not isinstance(told, str):
                return told
            text = told

    def _prompt(self, text: str, fresh: Sequence[Event]) -> str:
        attempt, opened = self._place.attempt, self._place.journal.index.of(SandboxOpened)
        said = words.since(fresh, attempt, self._place.attached)
        refused = words.refused(fresh, opened, attempt)
        parts = (text, words.denied(self._transcript.denied), refused, *said)
        return "\n\n".join(part for part in parts if part) or words.CONTINUE

    async def _turn(self, session: Session, prompt: str) -> Ending | str:
        """Take one turn. Return how the attempt ends, or the beginning of the next prompt."""
        stopped, failure = "", ""
        try:
            stopped = await self._prompted(session, prompt)
        except Refusal as refusal:
            failure = str(refusal)
        await self._transcript.end_turn()
        if (over := _spent(self._place.journal, self._place.attempt)) is not None:
            return OutOfBudget(over)
        if failure:
            return await self._failed(failure)
        self._failures = 0
        match stopped:
            case "end_turn":
                return await self._claimed()
            case "refusal":
                return Unfinished("failed", f"The harness {self._program.name} refused to go on.")
            case _:  # cancelled, or cut off by a limit of its own
                await self._save()
                return "" if stopped == "cancelled" else words.CONTINUE

    async def _prompted(self, session: Session, prompt: str) -> str:
        """Send the prompt. People who step in, a spent budget, and a forbidden call that was not asked for cancel the turn."""
        self._transcript.begin_turn()
        ended: list[str] = []
        failures: list[Exception] = []
        over = anyio.Event()
        turning, watching = anyio.CancelScope(), anyio.CancelScope()

        async def beside() -> None:
            with watching:
                try:
                    await self._until_stepped_in()
                    await session.cancel()
                except Died as error:
                    failures.append(error)
                    turning.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beside)
            tasks.start_soon(self._save_now_and_then, over)
            with turning:
                try:
                    ended.append(await session.prompt(prompt))
                except Exception as error:
                    failures.append(error)  # raised below as it is: a task group would wrap it
            over.set()
            watching.cancel()
        if failures:
            raise failures[0]
        return ended[0]

    async def _until_stepped_in(self) -> None:
        journal, at = self._place.journal, self._seen
        while not any(_steps_in(event, self._place.attempt) for event in journal.events[at:]):
            if self._transcript.stray:
                return
            at = len(journal.events)
            await journal.changed(at)

    async def _save_now_and_then(self, over: anyio.Event) -> None:
        """Save the files while the program works, so that a crash does not lose them."""
        while not over.is_set():
            with anyio.move_on_after(_SAVE_SECONDS):
                await over.wait()
            if self._transcript.changed and not over.is_set():
                await self._save()

    async def _save(self) -> None:
        async with self._transcript.lock:
            self._transcript.changed = False
            if await self._evidence.save_unchecked() or self._place.progress().pending is not None:
                await self._evidence.end_turn(self._transcript.step)

    async def _failed(self, why: str) -> Ending | str:
        self._failures += 1
        await self._save()
        if self._failures >= _FAILURES:
            return Unfinished("failed", f"The harness {self._program.name} failed: {why}")
        await self._place.journal.append(
            ModelFailed(self._place.attempt, "bad_reply", one_line(why, 500), 0.0)
        )
        return words.CONTINUE

    # The end of a turn claims that the task is done.

    async def _claimed(self) -> Ending | str:
        evidence, step = self._evidence, self._transcript.step
        await evidence.save_unchecked()  # it may have changed files without telling of a call
        why = await evidence.checkpoint(step, finishing=True)
        if not why and evidence.commit == evidence.base and not self._insisted:
            self._insisted = True
            why = words.UNCHANGED
        elif not why:
            summary = (
                bounded(self._transcript.said, _SUMMARY_CHARS) or f"{self._program.name} ended its turn."
            )
            result = await evidence.try_finish(Claim(step, summary, self._seen))
            if isinstance(result, AttemptEnded):
                return result
            why = result.why
        await evidence.record(FinishRefused(self._place.attempt, one_line(why)))
        await evidence.end_turn(step)
        self._claims = [*self._claims[-_CLAIMS:], evidence.commit]
        same = [commit for commit in self._claims[-_CLAIMS:] if commit == evidence.commit]
        if len(same) == _CLAIMS:
            return Unfinished(
                "red", f"The harness ended its turn {_CLAIMS} times without a change: {one_line(why)}"
            )
        return f"Not done yet: {why}"


def _steps_in(event: Event, attempt: int) -> bool:
    match event.body:
        case PromptReceived() | InterruptRequested() | PauseRequested():
            return True
        case BudgetSpent() as body:
            return _concerns(body, attempt)
        case _:
            return False


def _concerns(body: BudgetSpent, attempt: int) -> bool:
    return body.level != "attempt" or body.name == str(attempt)


def _spent(journal: Journal, attempt: int) -> str | None:
    """Why the model answers no more calls of the program; None if it does."""
    newest = journal.index.last(BudgetSpent, BudgetExtended, RunContinued)
    if isinstance(newest, BudgetSpent) and _concerns(newest, attempt):
        return sentence(Over(newest.level, newest.name, newest.what, newest.spent, newest.limit))
    return None
