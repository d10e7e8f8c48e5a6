"""Evidence: what shows that the change of an attempt works. Any harness uses it, and only it accepts a change.

At the end of each turn: compare the files, run the checks on what changed, save a commit. At the end of the attempt:
run the checks on that commit in a fresh sandbox, and have it reviewed.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import anyio

from cloister.agent.evidence.proof import Proof
from cloister.agent.evidence.run_checks import Since, run_affected
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import UserError
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    ChecksRan,
    CommandOutput,
    EnvironmentPrepared,
    ModelReplied,
    PromptReceived,
    ProofTaken,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import Journal, effective
from cloister.core.text import decode
from cloister.environment.installers import only_here
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals
from cloister.feedback.integrity.weakening import permitted
from cloister.feedback.report import tell
from cloister.feedback.shown import left_over

_SAVE_SECONDS = 60.0
"""Granted beyond the time budget, so that finished work is saved."""

_ONLY_HERE = (
    "the checks fail in a fresh sandbox that holds only the change. Files that git ignores and packages that you "
    "installed are not part of the change."
)
_WEAKENED = "a failing test was made easier, or fewer tests run than on the base. Undo that."
_NOTHING_SHOWN = (
    "nothing shows the requested change. If the task asks for a change of behaviour, make it, with a test that fails on "
    "the base and passes now. If it does not, or no check can run, call finish again."
)
_UNREAD = "a person sent a message meanwhile. Read it first."
_OBJECTIONS = "a reviewer asks for changes. Read the next message."


class Files(Protocol):
    """The repository in the sandbox."""

    async def tree(self) -> str:
        """A cheap name for the content of all files. Raises as `save`."""
        ...

    async def save(self) -> str:
        """Copy the files out of the sandbox as a commit of the run's own repository, and return its name.

        Raises `UserError` if they cannot be saved; the message is for the model.
        """
        ...

    async def judge(self, commit: str) -> None:
        """Raises `UserError` if a rule denies a path in which `commit` differs from the base; also part of `save`."""
        ...


Prove = Callable[[str, tuple[Diagnosis, ...]], Awaitable[Proof]]
"""Run the checks on a saved commit in a fresh sandbox. Tests that fail there but not in the given diagnoses run twice."""

Review = Callable[[str, str], Awaitable[str]]
"""Review a commit with its summary. Return the objections, or an empty string."""


class Claim(NamedTuple):
    """A harness says that the task is done."""

    step: int
    summary: str
    seen: int
    """The last event that the model had read."""
    answer: tuple[AnyBody, ...] = ()
    """Events recorded with the end if the claim is accepted."""


class Refused(NamedTuple):
    """The claim is not accepted."""

    why: str
    """In words for the model."""


@dataclass(slots=True)
class Evidence:
    """The checks, save points and proof of one attempt."""

    attempt: int
    journal: Journal
    computer: Computer
    files: Files
    prove: Prove
    base: str
    """The commit the attempt starts from."""
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    goals: Goals | None = None
    """What must be green in the end; None is every check."""
    allowed: tuple[str, ...] = ()
    """Patterns of test files that the task may change."""
    review: Review | None = None
    cpus: float = 1.0
    """How many checks may run at the same time."""

    commit: str = field(init=False)
    """The last save point, or the base."""
    comparison: Comparison = field(init=False)
    """The newest results, compared with the base."""
    _report: tuple[Diagnosis, ...] = field(init=False)
    """The newest results, of the checks or of the proof."""
    _known: tuple[Diagnosis, ...] = field(init=False)
    """The newest results in the attempt's own sandbox."""
    _checked: str = field(init=False, default="")
    """The tree that the checks ran on."""
    _saved: str = field(init=False, default="")
    """The tree of the save point."""
    _unsaved: str = field(init=False, default="")
    """The tree that was checked and could not be saved."""
    _changed: bool = field(init=False, default=False)
    """True if this turn made a save point."""
    _stale: bool = field(init=False, default=False)
    """True if a tool ran after the files were last compared."""
    _disproven: str = field(init=False, default="")
    """The last commit whose proof was not green."""
    _insisted: str = field(init=False, default="")
    """The commit of the last claim that was refused because nothing shows the change."""
    _held: tuple[ToolReturned, ...] = field(init=False, default=())
    """The newest result. It shares a transaction with the next event."""

    def __post_init__(self) -> None:
        self.commit = self.base
        self.comparison = compare(self.baseline, self.baseline, self.goals)
        self._report = self._known = self.baseline
        for event in effective(self.journal.events):
            match event.body:
                case (ChecksRan() | ProofTaken()) as body if body.attempt == self.attempt:
                    self.comparison, self._report = body.comparison, body.diagnoses
                    if isinstance(body, ChecksRan):
                        self._known = body.diagnoses
                    elif not body.comparison.green:
                        self._disproven = body.commit
                case TurnEnded() as body if body.attempt == self.attempt:
                    self.commit = body.commit
                case _:
                    pass

    async def begin(self) -> None:
        """Remember the files that the attempt begins or resumes with."""
        with suppress(UserError):  # the first checkpoint reports it
            self._checked = self._saved = await self.files.tree()

    def add_result(self, result: ToolReturned) -> None:
        """Take the result of a tool. `record` or the end of the turn writes it to the log."""
        self._held = (*self._held, result)
        self._stale = True

    async def record(self, *bodies: AnyBody) -> None:
        """Append the results that were taken, then `bodies`, in one transaction."""
        if self._held or bodies:
            await self.journal.append(*self._held, *bodies)
            self._held = ()

    async def checkpoint(self, step: int) -> str:
        """If files changed: run the checks, compare and save. Return why the files cannot be saved, if so."""
        if not self._stale:
            return ""
        self._stale = False
        try:
            tree = await self.files.tree()
            if tree == self._checked:
                return ""
            await self.record()
            before, self._checked = self._checked, ""
            if self.checks and tree != self._unsaved:
                await self._check(step, before, tree)
            self._unsaved = tree
            self.commit = await self.files.save()
        except UserError as error:
            self._checked = ""
            self._stale = True  # what the checks said is not what is saved
            await self.record(SaveRefused(self.attempt, step, error.message))
            return error.message
        self._checked = self._saved = tree
        self._unsaved = ""
        self._changed = True
        return ""

    async def _check(self, step: int, before: str, tree: str) -> None:
        since = Since(before, tree, self._known, self.baseline, self.cpus)
        name = f"{self.attempt}-{step}"
        found = await run_affected(self.computer, self.checks, since, name, self._show)
        found = permitted(found, self.allowed)
        comparison = compare(self.baseline, found, self.goals)
        await self.journal.append(ChecksRan(self.attempt, step, found, comparison))
        self.comparison, self._report, self._known = comparison, found, found

    async def end_turn(self, step: int, *bodies: AnyBody) -> None:
        """Record `bodies` and the end of the turn with its save point."""
        await self.record(*bodies, self._turn_ended(step))
        self._changed = False

    def _turn_ended(self, step: int) -> TurnEnded:
        return TurnEnded(self.attempt, step, self.commit, self._changed)

    async def save_unchecked(self) -> bool:
        """Save the files of an interrupted turn; the checks run on them later. True if the turn has a save point."""
        await self.record()
        self._stale = True
        with anyio.move_on_after(_SAVE_SECONDS), suppress(UserError):
            tree = await self.files.tree()
            if tree != self._saved:
                self.commit = await self.files.save()
                self._saved, self._checked, self._changed = tree, "", True
        return self._changed

    async def try_finish(self, claim: Claim) -> AttemptEnded | Refused:
        """End the attempt if checks, proof and review allow it; else return why not."""
        await self.record()
        if why := await self.checkpoint(claim.step) or await self._objections(claim):
            return Refused(why)
        outcome = self.comparison.verdict if self.checks else "unproven"
        end = AttemptEnded(self.attempt, outcome, claim.summary, self.commit, self.comparison)
        last = (*claim.answer, self._turn_ended(claim.step), end)
        while True:
            events = self.journal.events
            if any(isinstance(event.body, PromptReceived) for event in events[claim.seen :]):
                return Refused(_UNREAD)
            if await self.journal.append_at(events[-1].seq, *last):
                return end

    async def _objections(self, claim: Claim) -> str:
        may_be_old = self.commit not in (self.base, self._disproven) and bool(
            left_over(self.comparison, self.goals)
        )
        if self.checks and not self.comparison.green and not may_be_old:
            return f"the checks are not green.\n{tell(self.comparison, self._report)}"
        if self.commit == self.base:
            return ""  # without a change, the baseline is the proof
        try:
            # It may be a save point of another run, or older than a rule.
            await self.files.judge(self.commit)
        except UserError as error:
            return error.message
        if self.checks and not await self._proven(claim.step):
            why = _WEAKENED if self.comparison.weakened else "" if may_be_old else self._only_here()
            return f"{why or 'the checks are not green.'}\n{tell(self.comparison, self._report)}"
        if self.checks and not self._shown_or_insisted():
            return f"{_NOTHING_SHOWN}\n{tell(self.comparison, self._report)}"
        if self.review is not None and await self.review(self.commit, claim.summary):
            return _OBJECTIONS
        return ""

    def _only_here(self) -> str:
        """Why a proof can fail although the checks are green in the attempt's own sandbox."""
        replies = self.journal.index.of(ModelReplied, attempt=self.attempt)
        calls = (call.arguments.get("command", "") for reply in replies for call in reply.calls)
        own = self.journal.index.last(EnvironmentPrepared)
        failed = (
            f"Its environment could not be set up: {own.problem} "
            if own and own.commit and own.problem
            else ""
        )
        return f"{failed}{only_here(map(str, calls))} {_ONLY_HERE}".strip()

    async def _proven(self, step: int) -> bool:
        found, comparison = await self.prove(self.commit, self._known)
        await self.journal.append(ProofTaken(self.attempt, step, self.commit, found, comparison))
        self.comparison, self._report = comparison, found
        self._disproven = self._disproven if comparison.green else self.commit
        return comparison.green

    def _shown_or_insisted(self) -> bool:
        """False once per commit if nothing shows the change although something failed or could not run."""
        open_ends = self.comparison.unrelated or self.comparison.not_run
        if self.comparison.shown or not open_ends or self._insisted == self.commit:
            return True
        self._insisted = self.commit
        return False

    def _show(self, check: str, stream: Stream, data: bytes) -> None:
        self.journal.show(CommandOutput(self.attempt, check, stream, decode(data)))
