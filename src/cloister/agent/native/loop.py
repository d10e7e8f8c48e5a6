"""THE LOOP: plan, execute, observe, feed back, until the evidence is green or the budget is spent.

Knows a computer, a model, a journal and the rules as arguments; not what any of them is made of.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import anyio
import msgspec

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.time import Clock
from cloister.agent.evidence.run_checks import Since, run_affected
from cloister.agent.native.conversation import Mind
from cloister.agent.native.stuck import Circles, unanswered
from cloister.agent.native.tool_calls import Actor
from cloister.agent.progress import Progress, Progressing
from cloister.agent.roles import Review, plainly
from cloister.agent.shell.readonly import only_reads
from cloister.agent.tools import TOOLS
from cloister.agent.tools.bash import BASH
from cloister.agent.tools.finish import FinishArgs
from cloister.agent.tools.recall import RecallArgs, recalled
from cloister.core.attempts import Answer, Branch, Escalate, GiveUp, Stuck, Switch
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import Bug, UserError
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    ChecksRan,
    CommandOutput,
    Event,
    FinishRefused,
    ModelReplied,
    ModelSwitched,
    PromptReceived,
    ProofTaken,
    SaveRefused,
    StuckNoticed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.log import Journal, effective
from cloister.core.requests import Budget, Outcome, Patience, ToolCall
from cloister.core.text import decode, one_line
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals
from cloister.feedback.report import tell
from cloister.policy.api import Policy

_SAVE_SECONDS = 60.0
"""Beyond the budget: what was done is never lost to it."""
_SILENT_REPLIES = 3
"""Replies in a row without any call before the attempt is given up."""

_ONLY_HERE = (
    "in a fresh sandbox with exactly what would be handed over the checks are not green. Files that git ignores, "
    "and what was installed by hand, are not part of the change."
)


_CUT_OFF = (
    "Cut off: the time was over before it ended. What it had changed in the repository by then is there."
)
_WEAKENED = "a test that was red was made easier, or fewer tests run than on the base. Put that back."


class Files(Protocol):
    """The repository in the sandbox, as the loop sees it."""

    async def tree(self) -> str:
        """A name for the content of all files, cheap to take after each turn. Raises as `save`."""
        ...

    async def save(self) -> str:
        """Bring the files out of the sandbox as a commit of the run's own repository; returns it.

        Raises `UserError` when they cannot be saved as they are; the message is for the model.
        """
        ...


Prove = Callable[[str, tuple[Diagnosis, ...]], Awaitable[tuple[Diagnosis, ...]]]
"""Runs the checks on a saved commit in a fresh sandbox that holds nothing else.

What is red there and was not in the diagnoses given, which are of the same files, is tried once more to decide.
"""


class _Spent(NamedTuple):
    """No further step may be taken."""

    reason: str


@dataclass(frozen=True, slots=True)
class Workplace:
    """Everything one attempt works with."""

    attempt: int
    journal: Journal
    computer: Computer
    models: BudgetedModels
    """Its steps are of role `code`. Only models that pay for each call get in here."""
    policy: Policy
    budget: Budget
    files: Files
    prove: Prove
    base: str
    """The commit it starts from."""
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    ask_seconds: float
    patience: Patience = field(default_factory=Patience)
    """When it counts as stuck."""
    escalate: Escalate | None = None
    """Asked when telling it so did not help; None puts the next model of the chain in charge."""
    asked: Goals | None = None
    """What must be green in the end; None is every check in full."""
    review: Review | None = None
    """Asked about what is proven, before it is handed over."""
    cpus: float = 1.0
    """How many checks may run side by side."""

    def __post_init__(self) -> None:
        if not isinstance(self.models, BudgetedModels):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Bug("The loop was given models that spend without a budget.")


async def work(place: Workplace) -> AttemptEnded:
    """Take turns until the attempt ends; its end is in the log when this returns.

    Goes on where the log stops: a reply that was recorded is not asked for again, its calls are done again.
    """
    return await _Attempt(place).work()


class _Attempt:
    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._journal = place.journal
        self._actor = Actor(place.attempt, place.journal, place.computer, place.policy, place.ask_seconds)
        self._tree = ""
        """The tree that was last checked and saved."""
        self._unseen = False
        """Whether something was done since the files were last looked at."""
        self._unwritten: tuple[ToolReturned, ...] = ()
        """The newest result, which is recorded with the end of its turn where that follows at once."""
        self._mind = Mind(place.attempt, place.journal, place.models, place.computer, place.base)
        self._circles = Circles(place.attempt, place.patience)
        self._progressing = Progressing(place.attempt)
        self._clock = Clock(place.budget, place.models, self._fold().seconds)

    def _fold(self) -> Progress:
        return self._progressing.over(self._journal.events)

    async def work(self) -> AttemptEnded:
        with suppress(UserError):  # said again, to the model, when it matters
            self._tree = await self._place.files.tree()
        while True:
            over: _Spent | None = None
            left = self._clock.left
            with self._clock.running() as scope:
                if left > 0:
                    await self._clock.warn()
                    ended = await self._turn(self._fold())
                    if isinstance(ended, AttemptEnded):
                        return ended
                    over = ended
            if over is None and left > 0 and not scope.cancelled_caught:
                continue
            await self._save_half_done()
            late = _Spent(self._clock.over)
            if over is not None or not await self._clock.more():
                return await self._wrap_up(over or late)

    async def _turn(self, so_far: Progress) -> AttemptEnded | _Spent | None:
        reply = so_far.pending
        if reply is None:
            if ended := await self._unstick():
                return ended
            asked = await self._mind.ask(so_far.steps + 1, self._actor.follow)
            if not isinstance(asked, ModelReplied):
                return (
                    _Spent(asked.message)
                    if asked.code == "budget"
                    else await self._end("failed", asked.message)
                )
            reply = asked
        finish, may_change = await self._act(reply)
        saved: str | None = None
        try:
            if may_change and await self._look(reply.step):
                saved = await self._place.files.save()
        except UserError as error:
            self._tree = ""
            await self._write_down(SaveRefused(self._place.attempt, reply.step, error.message))
            await self._refuse(finish, error.message)
            finish = None
        return await self._close_turn(reply, finish, saved)

    async def _act(self, reply: ModelReplied) -> tuple[ToolCall | None, bool]:
        """Do what the reply asks for. Returns its `finish`, if it has one, and whether files may be others now."""
        finish: ToolCall | None = None
        may_change = False
        for call in reply.calls:
            if call.name == "finish":
                finish = call
                continue
            await self._write_down()
            if call.name == "recall":
                await self._recall(call)
            else:
                self._unwritten = (await self._actor.act(call),)
                self._unseen = True
                may_change = may_change or _may_change(call)
        # What seemed only to read is not trusted to the end.
        ends = finish is not None or not reply.calls
        return finish, may_change or (ends and self._unseen)

    async def _write_down(self, *bodies: AnyBody) -> None:
        """Record `bodies` after the result that is not in the log yet, if there is one, in one go."""
        if self._unwritten or bodies:
            await self._journal.append(*self._unwritten, *bodies)
            self._unwritten = ()

    async def _recall(self, call: ToolCall) -> None:
        try:
            args = msgspec.convert(call.arguments, RecallArgs)
        except msgspec.ValidationError as error:
            await self._return(call, False, f"The arguments of recall were not understood: {error}.")
            return
        found = recalled(self._journal.events, self._place.attempt, args)
        await self._return(call, found.ok, found.text)

    async def _unstick(self) -> AttemptEnded | None:
        """Say so when it goes round in circles; then let another try; then end."""
        if notice := unanswered(self._journal.events, self._place.attempt):
            return await self._heed(notice)
        self._circles.update(self._journal.events)
        circle = self._circles.found()
        if circle is None:
            return None
        able = self._place.escalate is not None or self._mind.other_model() is not None
        stage = "nudge" if circle.earlier == 0 else "escalate" if circle.earlier == 1 and able else "stop"
        notice = StuckNoticed(self._place.attempt, circle.kind, circle.evidence, circle.step, stage)
        await self._journal.append(notice)
        return await self._heed(notice)

    async def _heed(self, notice: StuckNoticed) -> AttemptEnded | None:
        """Do what a notice says; after a crash it may have been written and not yet heeded."""
        match notice.stage:
            case "nudge":
                return None
            case "escalate":
                return await self._escalate(Stuck(notice.attempt, notice.step, notice.evidence))
            case "stop":
                return await self._end("red", f"The attempt went round in circles: {notice.evidence}")

    async def _escalate(self, stuck: Stuck) -> AttemptEnded | None:
        answer: Answer | None = None
        if self._place.escalate is not None:
            answer = await self._place.escalate(stuck)
        elif other := self._mind.other_model():
            answer = Switch(other)
        match answer:
            case Switch(model):
                why = "The one before it went round in circles."
                await self._journal.append(ModelSwitched(stuck.attempt, self._mind.model, model, why))
                return None
            case Branch(attempts):
                names = ", ".join(map(str, attempts))
                return await self._end("red", f"It was stuck; attempt {names} went on from a save point.")
            case GiveUp(reason):
                return await self._end("red", reason)
            case None:
                return None

    async def _save_half_done(self) -> None:
        """Save what there is when the time is over, whatever was under way."""
        so_far = self._fold()
        await self._write_down()  # what was done by then
        commit: str | None = None
        with anyio.move_on_after(_SAVE_SECONDS), suppress(UserError):
            tree = await self._place.files.tree()
            if tree != self._tree:
                commit = await self._place.files.save()
                # If it goes on, the checks have yet to look at these files.
                self._tree, self._unseen = "", True
        if commit is not None or so_far.pending is not None:
            kept = commit or so_far.commit or self._place.base
            ended = TurnEnded(self._place.attempt, so_far.steps, kept, commit is not None)
            cut_off = _without_result(self._journal.events, so_far.pending)
            results = (_returned(self._place.attempt, call, False, _CUT_OFF) for call in cut_off)
            await self._journal.append(*results, ended)

    async def _wrap_up(self, over: _Spent) -> AttemptEnded:
        """Let the model say what is left, and end. What there is was saved with its turn."""
        words = await self._mind.last_words(over.reason, max(self._clock.reserve, 0.05))
        left = words or plainly(self._evidence(), bool(self._place.checks))
        return await self._end("budget", f"{over.reason} {left}")

    async def _look(self, step: int) -> bool:
        """Whether files changed; if so, the checks have run on them when this returns."""
        tree = await self._place.files.tree()
        self._unseen = False
        if tree == self._tree:
            return False
        await self._write_down()
        before, self._tree = self._tree, tree
        place = self._place
        if place.checks:
            since = Since(before, tree, self._known(), place.baseline, place.cpus)
            name = f"{place.attempt}-{step}"
            found = await run_affected(place.computer, place.checks, since, name, self._show)
            comparison = compare(place.baseline, found, place.asked)
            await self._journal.append(ChecksRan(place.attempt, step, found, comparison))
        return True

    def _known(self) -> tuple[Diagnosis, ...]:
        """What the checks said last, on the files that were looked at last."""
        for event in reversed(effective(self._journal.events)):
            if isinstance(event.body, ChecksRan) and event.body.attempt == self._place.attempt:
                return event.body.diagnoses
        return self._place.baseline

    async def _close_turn(
        self, reply: ModelReplied, finish: ToolCall | None, saved: str | None
    ) -> AttemptEnded | None:
        """Answer `finish`, record the save point, and end the attempt if the evidence allows."""
        attempt = self._place.attempt
        if finish is not None or not reply.calls:
            await self._write_down()
        before = self._fold()
        commit = saved or before.commit or self._place.base
        summary = await self._judge(reply, finish, commit)
        ended = TurnEnded(attempt, reply.step, commit, saved is not None)
        if summary is not None:
            outcome: Outcome = "green" if self._place.checks else "unproven"
            end = AttemptEnded(attempt, outcome, summary, commit, self._evidence())
            accepted = () if finish is None else (_returned(attempt, finish, True, "Accepted."),)
            if await self._end_unless_told(reply, finish, (*accepted, ended, end)):
                return end
        await self._write_down(ended)
        if before.silent >= _SILENT_REPLIES:
            return await self._end("red", "The model stopped acting before the checks were green.")
        return None

    async def _end_unless_told(
        self, reply: ModelReplied, finish: ToolCall | None, end: tuple[AnyBody, ...]
    ) -> bool:
        """Append `end`, unless somebody has said something that the model does not know yet."""
        while True:
            events = self._journal.events
            if any(isinstance(event.body, PromptReceived) for event in events[_seen(events, reply) :]):
                await self._refuse(finish, "somebody has told you something meanwhile: read it first.")
                return False
            if await self._journal.append_at(events[-1].seq, *end):
                return True

    async def _judge(self, reply: ModelReplied, finish: ToolCall | None, commit: str) -> str | None:
        """The summary with which the attempt ends, or None when it goes on."""
        if finish is None:
            # A model that only talks has finished if there is something to show for it.
            done = not reply.calls and commit != self._place.base and self._green()
            done = done and await self._proven(reply.step, commit)
            return reply.text if done and not await self._objections(commit, reply.text) else None
        try:
            summary = msgspec.convert(finish.arguments, FinishArgs).summary
        except msgspec.ValidationError as error:
            await self._return(finish, False, f"finish was not understood: {error}.")
            return None
        if not self._green():
            await self._refuse(finish, f"the checks are not green.\n{self._told()}")
            return None
        if not await self._proven(reply.step, commit):
            await self._refuse(
                finish, f"{_WEAKENED if self._evidence().weakened else _ONLY_HERE}\n{self._told()}"
            )
            return None
        if await self._objections(commit, summary):
            await self._refuse(finish, "a reviewer asks for changes first: read what follows.")
            return None
        return summary

    async def _objections(self, commit: str, summary: str) -> str:
        if self._place.review is None or commit == self._place.base:
            return ""
        return await self._place.review(commit, summary)

    def _green(self) -> bool:
        return self._evidence().green or not self._place.checks

    async def _proven(self, step: int, commit: str) -> bool:
        """Whether the checks are green on exactly what would be handed over."""
        if not self._place.checks or commit == self._place.base:
            return True  # without a change, the baseline is the proof
        found = await self._place.prove(commit, self._known())
        comparison = compare(self._place.baseline, found, self._place.asked)
        await self._journal.append(ProofTaken(self._place.attempt, step, commit, found, comparison))
        return comparison.green

    async def _refuse(self, finish: ToolCall | None, why: str) -> None:
        if finish is not None:
            await self._journal.append(FinishRefused(self._place.attempt, one_line(why)))
            await self._return(finish, False, f"Not accepted: {why}")

    def _evidence(self) -> Comparison:
        place = self._place
        return self._fold().comparison or compare(place.baseline, place.baseline, place.asked)

    def _told(self) -> str:
        """The newest evidence, in words for the model."""
        for event in reversed(effective(self._journal.events)):
            match event.body:
                case (ChecksRan() | ProofTaken()) as body if body.attempt == self._place.attempt:
                    return tell(body.comparison, body.diagnoses)
                case _:
                    pass
        return tell(self._evidence(), self._place.baseline)

    async def _return(self, call: ToolCall, ok: bool, text: str) -> None:
        await self._journal.append(_returned(self._place.attempt, call, ok, text))

    async def _end(self, outcome: Outcome, reason: str) -> AttemptEnded:
        """End without acceptance; what the last save point holds is kept."""
        commit = self._fold().commit or self._place.base
        end = AttemptEnded(self._place.attempt, outcome, reason, commit, self._evidence())
        await self._journal.append(end)
        return end

    def _show(self, check: str, stream: Stream, data: bytes) -> None:
        self._journal.show(CommandOutput(self._place.attempt, check, stream, decode(data)))


def _returned(attempt: int, call: ToolCall, ok: bool, text: str) -> ToolReturned:
    return ToolReturned(attempt, call.id, call.name, ok, text, 0.0)


def _without_result(events: Sequence[Event], reply: ModelReplied | None) -> list[ToolCall]:
    """The calls of the last reply that nothing came of."""
    done: set[str] = set()
    for event in reversed(events if reply is not None else ()):
        match event.body:
            case ToolReturned() as body if reply is not None and body.attempt == reply.attempt:
                done.add(body.call)
            case ModelReplied() as body if body == reply:
                break
            case _:
                pass
    return [] if reply is None else [call for call in reply.calls if call.id not in done]


def _may_change(call: ToolCall) -> bool:
    """Whether files may be others after the call; where that is plain to see of a command, nobody looks."""
    if call.name not in TOOLS or not TOOLS[call.name].changes_files:
        return False
    line = call.arguments.get("command")
    return not (call.name == BASH.name and isinstance(line, str) and only_reads(line))


def _seen(events: Sequence[Event], reply: ModelReplied) -> int:
    """The last event that the model knew when it replied."""
    if reply.seen is not None:
        return reply.seen
    return next(event.seq for event in reversed(events) if event.body == reply)
