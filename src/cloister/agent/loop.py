"""THE LOOP: plan, execute, observe, feed back, until the evidence is green or the budget is spent.

Knows a computer, a model, a journal and the rules as arguments; not what any of them is made of.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import msgspec

from cloister.agent.act import Actor
from cloister.agent.ask_model import ask_model
from cloister.agent.checks import run_checks
from cloister.agent.progress import Progress, progress, spent
from cloister.agent.tools import TOOLS
from cloister.agent.tools.finish import FinishArgs
from cloister.core.commands import Computer, Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import (
    AttemptEnded,
    ChecksRan,
    CommandOutput,
    FinishRefused,
    ModelReplied,
    ToolReturned,
    TurnEnded,
)
from cloister.core.history import effective
from cloister.core.journal import Journal
from cloister.core.records import Budget, Outcome, ToolCall
from cloister.core.text import decode
from cloister.feedback.compare import compare
from cloister.feedback.tell import tell
from cloister.model.api import Model
from cloister.policy.api import Policy

_SILENT_REPLIES = 3
"""Replies in a row without any call before the attempt is given up."""


class Files(Protocol):
    """The repository in the sandbox, as the loop sees it."""

    async def tree(self) -> str:
        """A name for the content of all files, cheap to take after each turn."""
        ...

    async def save(self) -> str:
        """Bring the files out of the sandbox as a commit of the run's own repository; returns it."""
        ...


@dataclass(frozen=True, slots=True)
class Workplace:
    """Everything one attempt works with."""

    attempt: int
    journal: Journal
    computer: Computer
    model: Model
    policy: Policy
    budget: Budget
    files: Files
    base: str
    """The commit it starts from."""
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    ask_seconds: float
    now: Callable[[], float] = field(default=time.time)


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

    def _progress(self) -> Progress:
        place = self._place
        return progress(effective(self._journal.events), place.attempt, place.now())

    async def work(self) -> AttemptEnded:
        self._tree = await self._place.files.tree()
        while True:
            so_far = self._progress()
            if reason := spent(self._place.budget, so_far):
                return await self._end("budget", reason)
            with anyio.move_on_after(self._place.budget.seconds - so_far.seconds) as scope:
                ended = await self._turn(so_far)
                if ended is not None:
                    return ended
            if scope.cancelled_caught:
                return await self._end(
                    "budget", f"The budget of {self._place.budget.seconds:g} seconds is spent."
                )

    async def _turn(self, so_far: Progress) -> AttemptEnded | None:
        reply = so_far.pending
        if reply is None:
            asked = await ask_model(self._place.model, self._journal, self._place.attempt, so_far.steps + 1)
            if not isinstance(asked, ModelReplied):
                return await self._end("failed", asked.message)
            reply = asked
        finish: ToolCall | None = None
        may_change = False
        for call in reply.calls:
            if call.name == "finish":
                finish = call
            else:
                await self._actor.act(call)
                may_change = may_change or (call.name in TOOLS and TOOLS[call.name].changes_files)
        changed = may_change and await self._look(reply.step)
        return await self._close_turn(reply, finish, changed)

    async def _look(self, step: int) -> bool:
        """Whether files changed; if so, the checks have run on them when this returns."""
        tree = await self._place.files.tree()
        if tree == self._tree:
            return False
        self._tree = tree
        if self._place.checks:
            place = f"{self._place.attempt}-{step}"
            found = await run_checks(self._place.computer, self._place.checks, place, self._show)
            await self._journal.append(
                ChecksRan(self._place.attempt, step, found, compare(self._place.baseline, found))
            )
        return True

    async def _close_turn(
        self, reply: ModelReplied, finish: ToolCall | None, changed: bool
    ) -> AttemptEnded | None:
        """Answer `finish`, make the save point, and end the attempt if the evidence allows."""
        attempt = self._place.attempt
        before = self._progress()
        commit = await self._place.files.save() if changed else (before.commit or self._place.base)
        found = self._evidence(before)
        accepted = await self._judge(reply, finish, found, commit != self._place.base)
        ended = TurnEnded(attempt, reply.step, commit, changed)
        if accepted:
            outcome: Outcome = "green" if self._place.checks else "unproven"
            end = AttemptEnded(attempt, outcome, accepted, commit, found)
            await self._journal.append(ended, end)
            return end
        await self._journal.append(ended)
        if before.silent >= _SILENT_REPLIES:
            return await self._end("red", "The model stopped acting before the checks were green.")
        return None

    async def _judge(
        self, reply: ModelReplied, finish: ToolCall | None, found: Comparison, any_change: bool
    ) -> str | None:
        """The summary with which the attempt ends, or None when it goes on."""
        green = found.green or not self._place.checks
        if finish is None:
            # A model that only talks has finished if there is something to show for it.
            done = not reply.calls and green and any_change
            return reply.text if done else None
        try:
            summary = msgspec.convert(finish.arguments, FinishArgs).summary
        except msgspec.ValidationError as error:
            await self._return(finish, False, f"finish was not understood: {error}.")
            return None
        if green:
            await self._return(finish, True, "Accepted.")
            return summary
        text = "Not accepted: the checks are not green.\n" + tell(found, self._diagnoses())
        await self._journal.append(FinishRefused(self._place.attempt, f"{found.red} not green"))
        await self._return(finish, False, text)
        return None

    def _evidence(self, so_far: Progress) -> Comparison:
        if so_far.comparison is not None:
            return so_far.comparison
        return compare(self._place.baseline, self._place.baseline)

    def _diagnoses(self) -> Sequence[Diagnosis]:
        for event in reversed(effective(self._journal.events)):
            if isinstance(event.body, ChecksRan) and event.body.attempt == self._place.attempt:
                return event.body.diagnoses
        return self._place.baseline

    async def _return(self, call: ToolCall, ok: bool, text: str) -> None:
        await self._journal.append(ToolReturned(self._place.attempt, call.id, "finish", ok, text, 0.0))

    async def _end(self, outcome: Outcome, reason: str) -> AttemptEnded:
        """End without acceptance; what the last save point holds is kept."""
        so_far = self._progress()
        commit = so_far.commit or self._place.base
        end = AttemptEnded(self._place.attempt, outcome, reason, commit, self._evidence(so_far))
        await self._journal.append(end)
        return end

    def _show(self, check: str, stream: Stream, data: bytes) -> None:
        self._journal.show(CommandOutput(self._place.attempt, check, stream, decode(data)))
