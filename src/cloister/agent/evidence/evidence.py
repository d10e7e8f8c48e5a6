"""Evidence: what shows that the change of an attempt works. Any harness uses it, and only it accepts a change.

At the end of each turn: compare the files, run the checks on what changed, save a commit. At the end of the attempt:
run the checks on that commit in a fresh sandbox, and have it reviewed. While the checks still run on the base, a change
is checked beside them, already in a fresh sandbox; if that takes long, later. The end waits.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import anyio

from cloister.agent.evidence.baseline import Baseline, BaselineLog, Proof
from cloister.agent.evidence.permission import Permission
from cloister.agent.evidence.run_checks import Earlier, Since, run_affected
from cloister.agent.evidence.worktree import changed_since_base
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import UserError
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    BaseFixed,
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
from cloister.environment.installers import changed_set_up, only_here
from cloister.feedback.affected import WORTH_SECONDS
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals
from cloister.feedback.report import tell

_SAVE_SECONDS = 60.0
"""Granted beyond the time budget, so that finished work is saved."""

_BESIDE_SECONDS = 60.0
"""How long a turn waits for checks that run beside those on the base, in all."""

_ONLY_HERE = (
    "the checks fail in a fresh sandbox that holds only the change. Files that git ignores and packages that you "
    "installed are not part of the change."
)
_WEAKENED = "a test was made easier, fails as the base has it, or fewer tests run than there. Undo that."
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

    async def kept(self) -> str:
        """A cheap name for the ignored files that save points keep; empty without any."""
        ...

    async def judge(self, commit: str) -> None:
        """Raises `UserError` if a rule denies a path in which `commit` differs from the base; also part of `save`."""
        ...


Prove = Callable[[str, Earlier], Awaitable[Proof]]
"""Run the checks on a saved commit in a fresh sandbox. Tests that fail there but not in the earlier results run twice."""

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
    elsewhere: Callable[[str], Awaitable[bool]] | None = None
    """True for a commit whose proof has an environment of its own: its checks in the attempt's sandbox may lack packages."""
    allowed: tuple[str, ...] = ()
    """Patterns of test files that the task may change."""
    permission: Permission | None = None
    """Asks a person if changes of tests are all that refuses the end; None: they are refused."""
    review: Review | None = None
    cpus: float = 1.0
    """How many checks may run at the same time."""
    later: BaselineLog | None = None
    """Has `checks`, `baseline` and `goals` later: the checks still run on the base. None if they are known."""

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
    _kept: str = field(init=False, default="")
    """The ignored files of the save point."""
    _unsaved: str = field(init=False, default="")
    """The tree that was checked and could not be saved."""
    _proof: tuple[str, Proof] = field(init=False, default=("", Proof((), Comparison())))
    """The commit that was proven beside the checks on the base, and its proof."""
    _patience: float = field(init=False, default=_BESIDE_SECONDS)
    """What is left of `_BESIDE_SECONDS`."""
    _owed: bool = field(init=False, default=False)
    """True if the checks have not run on the save point."""
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
        ran = False
        for event in effective(self.journal.events):
            match event.body:
                case BaseFixed():  # what earlier checks said was about another base
                    self.commit, ran, self._owed, self._disproven = self.base, False, False, ""
                    self.comparison = compare(self.baseline, self.baseline, self.goals)
                    self._report = self._known = self.baseline
                case (ChecksRan() | ProofTaken()) as body if body.attempt == self.attempt:
                    self.comparison, self._report, ran = body.comparison, body.diagnoses, True
                    if isinstance(body, ChecksRan):
                        self._known = body.diagnoses
                    elif not body.comparison.green:
                        self._disproven = body.commit
                case TurnEnded() as body if body.attempt == self.attempt:
                    self.commit = body.commit
                    self._owed, ran = (self._owed or body.changed) and not ran, False
                case _:
                    pass

    async def begin(self, files: Files | None = None) -> None:
        """Remember the files that the attempt begins or resumes with."""
        with suppress(UserError):  # the first checkpoint reports it
            self._saved = await (files or self.files).tree()
            self._kept = await (files or self.files).kept()
            self._checked = "" if self._owed else self._saved

    async def baseline_ready(self) -> Baseline:
        """Wait for the results of the checks on the untouched base. They are in the log then."""
        if self.later is not None:
            self._take(await self.later.ready())
        return Baseline(self.checks, self.baseline, self.goals)

    def _has_baseline(self) -> bool:
        if self.later is not None and self.later.known is not None:
            self._take(self.later.known)
        return self.later is None

    def _take(self, found: Baseline) -> None:
        self.later = None
        self.checks, self.baseline, self.goals = found
        self.comparison = compare(self.baseline, self.baseline, self.goals)
        self._report = self._known = self.baseline

    @property
    def due(self) -> bool:
        """True if the checks have not run on the save point, and can now."""
        return self._owed and self._has_baseline() and bool(self.checks)

    def add_result(self, result: ToolReturned) -> None:
        """Take the result of a tool. `record` or the end of the turn writes it to the log."""
        self._held = (*self._held, result)
        self._stale = True

    async def record(self, *bodies: AnyBody) -> None:
        """Append the results that were taken, then `bodies`, in one transaction."""
        if self._held or bodies:
            await self.journal.append(*self._held, *bodies)
            self._held = ()

    async def checkpoint(self, step: int, *, finishing: bool = False) -> str:
        """If files changed: run the checks, compare and save. Return why the files cannot be saved, if so.

        Without a baseline the checks run later; before a `finish`, slow ones run only in the proof.
        """
        if not self._stale and not self.due:
            return ""
        self._stale = False
        try:
            tree, kept = await self.files.tree(), await self.files.kept()
            if tree == self._checked == self._saved and kept == self._kept:
                return ""
            await self.record()
            skip = not self._has_baseline() or (finishing and self._slow())
            if not skip and tree != self._checked:
                before, self._checked = self._checked, ""
                if self.checks and tree != self._unsaved:
                    await self._check(step, before, tree)
                self._unsaved = tree
            if (tree, kept) != (self._saved, self._kept):
                self.commit = await self.files.save()
                self._changed = self._changed or tree != self._saved
                self._saved, self._kept = tree, kept
        except UserError as error:
            self._checked = ""
            self._stale = True  # what the checks said is not what is saved
            await self.record(SaveRefused(self.attempt, step, error.message))
            return error.message
        self._unsaved = ""
        self._owed = skip and tree != self._checked
        if not self._owed or await self._check_beside(step, finishing):
            self._checked, self._owed = tree, False
        return ""

    async def _check_beside(self, step: int, finishing: bool) -> bool:
        """Check the save point beside the base, in a fresh sandbox: a claim on the same commit needs no other proof."""
        if finishing or self._patience <= 0 or self.later is None:
            return False
        started = anyio.current_time()
        with anyio.move_on_after(self._patience) as patience:
            if not await self._any_checks():
                await self.baseline_ready()
                return True
            proof = await self._prove()
            await self.journal.append(ChecksRan(self.attempt, step, *proof))
            self._proof = (self.commit, proof)
            self._report, self.comparison = proof
            self._known = self._report
        self._patience -= anyio.current_time() - started
        return not patience.cancelled_caught

    async def _prove(self) -> Proof:
        """The proof of the save point; the baseline is there when it is."""

        async def earlier() -> tuple[Diagnosis, ...]:
            return (await self.baseline_ready()).diagnoses

        proof = await self.prove(self.commit, self._known if self.later is None else earlier)
        await self.baseline_ready()
        return proof

    def _slow(self) -> bool:
        return sum(one.seconds for one in self.baseline) >= WORTH_SECONDS

    async def _check(self, step: int, before: str, tree: str) -> None:
        from cloister.feedback.integrity.weakening import permitted  # noqa: PLC0415  (slow to load, and first needed after the first request)
        from cloister.feedback.shown import permit  # noqa: PLC0415

        since = Since(before, tree, self._known, self.baseline, self.cpus)
        name = f"{self.attempt}-{step}"
        found = await run_affected(self.computer, self.checks, since, name, self._show)
        found = permitted(found, self.allowed)
        comparison = permit(compare(self.baseline, found, self.goals), self.baseline, self.allowed)
        note = ""
        if not comparison.green and self.elsewhere is not None:
            changes = await changed_since_base(self.computer)
            note = changed_set_up((*changes.changed, *changes.new)) if changes else ""
        await self.journal.append(ChecksRan(self.attempt, step, found, comparison, note))
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
            tree, kept = await self.files.tree(), await self.files.kept()
            if (tree, kept) != (self._saved, self._kept):
                self.commit = await self.files.save()
                self._saved, self._kept, self._checked, self._changed, self._owed = tree, kept, "", True, True
        return self._changed

    async def try_finish(self, claim: Claim) -> AttemptEnded | Refused:
        """End the attempt if checks, proof and review allow it; else return why not."""
        await self.record()
        if why := await self.checkpoint(claim.step, finishing=True) or await self._objections(claim):
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
        from cloister.feedback.shown import left_over  # noqa: PLC0415

        if self.commit == self.base:
            await self.baseline_ready()
        # Only the checks of this very commit refuse it before the proof.
        checked = not self._owed or self.commit == self._disproven
        told = bool(self.checks) and not self.comparison.green and checked
        may_be_old = self.commit not in (self.base, self._disproven) and bool(
            left_over(self.comparison, self.goals)
        )
        may_be_old = may_be_old or await self._is_proven_elsewhere()
        if told and not may_be_old and (why := await self._unless_permitted()):
            return why
        try:
            # It may be a save point of another run, or older than a rule.
            await self.files.judge(self.commit)
        except UserError as error:
            return error.message
        if self.commit == self.base:
            return ""  # without a change, the baseline is the proof
        if why := await self._unless_proven(claim.step, alone=not self._owed and not may_be_old):
            return why
        if self.checks and not self._shown_or_insisted():
            return f"{_NOTHING_SHOWN}\n{tell(self.comparison, self._report)}"
        if self.review is not None and await self.review(self.commit, claim.summary):
            return _OBJECTIONS
        return ""

    async def _unless_proven(self, step: int, *, alone: bool) -> str:
        """Why the proof refuses the save point; empty if it does not."""
        if not await self._any_checks() or await self._proven(step):
            return ""
        why = _WEAKENED if self.comparison.weakened else self._only_here() if alone else ""
        if refused := await self._unless_permitted(why):
            return refused
        return "" if await self._proven(step) else self._not_green(why)

    async def _unless_permitted(self, why: str = "") -> str:
        """Why the results refuse the save point; empty if a person permits its changes of tests: prove it again."""
        if self.permission is None:
            return self._not_green(why)
        said = await self.permission.ask(self.commit, self._report, self.comparison)
        if said is not None:
            return self._not_green(said or why)
        self._proof = ("", Proof((), Comparison()))
        return ""

    def _not_green(self, why: str) -> str:
        return f"{why or 'the checks are not green.'}\n{tell(self.comparison, self._report)}"

    async def _is_proven_elsewhere(self) -> bool:
        """True if only the proof can tell: the change names other packages than the attempt's sandbox has."""
        new = self.elsewhere is not None and self.commit not in (self.base, self._disproven)
        return new and self.elsewhere is not None and await self.elsewhere(self.commit)

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

    async def _any_checks(self) -> bool:
        return bool(self.checks if self.later is None else await self.later.chosen())

    async def _proven(self, step: int) -> bool:
        commit, proof = self._proof
        found, comparison = proof if commit == self.commit else await self._prove()
        await self.journal.append(ProofTaken(self.attempt, step, self.commit, found, comparison))
        self.comparison, self._report = comparison, found
        self._disproven = self._disproven if comparison.green else self.commit
        if self._owed:  # the proof has run what the checkpoint left out
            self._checked, self._known, self._owed = self._saved, found, False
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
