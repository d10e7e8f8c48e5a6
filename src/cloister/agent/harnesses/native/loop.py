"""The native harness. One turn: request, tool calls, checks if files changed, save point.

Between turns it detects that the model is stuck, and obeys the people who steer the run.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cloister.agent.evidence.evidence import Claim, Evidence, Refused
from cloister.agent.harnesses.api import Ending, OutOfBudget, Unfinished, Workplace
from cloister.agent.harnesses.native.conversation import Conversation
from cloister.agent.harnesses.native.interrupt import interruptible, not_run, run_call, while_paused
from cloister.agent.harnesses.native.stuck import StuckDetector, unanswered
from cloister.agent.harnesses.native.tool_calls import ToolCalls, decoded
from cloister.agent.tools.api import Observation
from cloister.agent.tools.ask import ASK, ask_people
from cloister.agent.tools.bash import BASH
from cloister.agent.tools.recall import FINISH, RECALL, recalled
from cloister.core.attempts import Answer, Branch, GiveUp, Stuck, Switch
from cloister.core.events import (
    AttemptEnded,
    FinishRefused,
    ModelReplied,
    ModelSwitched,
    StuckNoticed,
    ToolReturned,
)
from cloister.core.requests import ToolCall
from cloister.core.text import one_line
from cloister.policy.shell.readonly import only_reads

_SILENT_REPLIES = 3
"""Consecutive replies without a tool call that end the attempt."""
_STOPPED = "a person stopped the checks before they ended."
T = TypeVar("T")


class NativeHarness:
    """Cloister's own loop."""

    async def drive(self, place: Workplace, evidence: Evidence) -> Ending:
        loop = _Loop(place, evidence)
        while True:
            if (ending := await loop.turn()) is not None:
                return ending

    async def last_words(self, place: Workplace, evidence: Evidence, reason: str) -> str:
        """Ask the model, if there is one."""
        if not place.models.chain("code"):
            return ""
        return await Conversation(place, evidence.base).last_words(reason, max(place.clock.reserve, 0.05))


class _Loop:
    def __init__(self, place: Workplace, evidence: Evidence) -> None:
        self._place = place
        self._journal = place.journal
        self._evidence = evidence
        self._calls = ToolCalls(place)
        self._talk = Conversation(place, evidence.base)
        self._stuck = StuckDetector(place.attempt, place.patience, place.tools)

    async def turn(self) -> Ending | None:
        """Take one turn. None means that another follows."""
        await while_paused(self._journal, self._place.clock)
        await self._place.clock.warn()
        so_far = self._place.progress()
        reply = so_far.pending
        if reply is None:
            if ending := await self._unstick():
                return ending
            step = so_far.steps + 1
            reply = await interruptible(self._journal, lambda: self._talk.ask(step, self._calls.follow))
            if reply is None:
                return None  # stopped by a person: ask again, with that in the conversation
            if not isinstance(reply, ModelReplied):
                if reply.code == "budget":
                    return OutOfBudget(reply.message)
                return Unfinished("failed", reply.message)
        finish, may_change = await self._act(reply)
        if finish is not None or not reply.calls:
            if ended := await self._finish(reply, finish):
                return ended
        elif may_change or self._evidence.due:
            await self._stoppable(lambda: self._evidence.checkpoint(reply.step))
        await self._evidence.end_turn(reply.step)
        if self._place.progress().silent >= _SILENT_REPLIES:
            return Unfinished("red", "The model stopped calling tools before the checks were green.")
        return None

    async def _act(self, reply: ModelReplied) -> tuple[ToolCall | None, bool]:
        """Run the calls of `reply`. Return its `finish`, if any, and True if files may have changed."""
        finish: ToolCall | None = None
        may_change = stopped = False
        for call in reply.calls:
            if call.name == FINISH.name:
                finish = call
                continue
            if stopped:
                self._evidence.add_result(not_run(self._place.attempt, call))
                continue
            await self._evidence.record()  # later decisions depend on where earlier results came from
            if call.name == RECALL.name:
                await self._recall(call)
            elif call.name == ASK.name:
                done, stopped = await run_call(self._journal, self._place.attempt, call, self._ask)
                self._evidence.add_result(done)
            else:
                done, stopped = await run_call(self._journal, self._place.attempt, call, self._calls.run)
                self._evidence.add_result(done)
                may_change = may_change or self._may_change(call)
        return finish, may_change

    def _may_change(self, call: ToolCall) -> bool:
        """True if the call may have modified files. Obviously read-only commands return False."""
        known = decoded(call, self._place.tools)
        if not isinstance(known, tuple) or not known[0].changes_files:
            return False
        line = call.arguments.get("command")
        return not (call.name == BASH.name and isinstance(line, str) and only_reads(line))

    async def _recall(self, call: ToolCall) -> None:
        known = decoded(call, self._place.tools)
        if isinstance(known, tuple):
            known = recalled(self._journal.events, self._place.attempt, known[1])
        await self._evidence.record(self._answer(call, known.ok, known.text))

    async def _ask(self, call: ToolCall) -> ToolReturned:
        known = decoded(call, self._place.tools)
        if isinstance(known, tuple):
            known = await ask_people(
                self._journal, self._place.attempt, call.id, known[1], self._place.ask_seconds
            )
        return self._answer(call, known.ok, known.text)

    # The end: a call of `finish`, or a reply without any call, claims that the task is done.

    async def _finish(self, reply: ModelReplied, finish: ToolCall | None) -> AttemptEnded | None:
        await self._evidence.record()
        why = await self._stoppable(lambda: self._evidence.checkpoint(reply.step, finishing=True))
        if finish is None:
            # Only a model that changed something can be done without saying so.
            if why != "" or self._evidence.commit == self._evidence.base:
                return None
            result = await self._try_finish(self._claim(reply, reply.text))
            return result if isinstance(result, AttemptEnded) else None
        if why is None:
            why = _STOPPED
        elif not why:
            known = decoded(finish, self._place.tools)
            if isinstance(known, Observation):
                await self._evidence.record(self._answer(finish, False, known.text))
                return None
            accepted = self._answer(finish, True, "Accepted.")
            result = await self._try_finish(self._claim(reply, known[1].summary, accepted))
            if not isinstance(result, Refused):
                return result
            why = result.why
        refused = FinishRefused(self._place.attempt, one_line(why))
        await self._evidence.record(refused, self._answer(finish, False, f"Not accepted: {why}"))
        return None

    async def _try_finish(self, claim: Claim) -> AttemptEnded | Refused:
        result = await self._stoppable(lambda: self._evidence.try_finish(claim))
        # A person who stops it may be later than the end.
        return result or self._place.progress().ended or Refused(_STOPPED)

    async def _stoppable(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The result of checks; None if a person stopped them. The files are saved then, and checked later."""
        result = await interruptible(self._journal, work)
        if result is None:
            await self._evidence.save_unchecked()
        return result

    def _claim(self, reply: ModelReplied, summary: str, *answer: ToolReturned) -> Claim:
        seen = reply.seen
        if seen is None:
            seen = next(event.seq for event in reversed(self._journal.events) if event.body == reply)
        return Claim(reply.step, summary, seen, answer)

    def _answer(self, call: ToolCall, ok: bool, text: str) -> ToolReturned:
        return ToolReturned(self._place.attempt, call.id, call.name, ok, text, 0.0)

    # Stuck: tell the model; the second time switch to another model or attempt; then give up.

    async def _unstick(self) -> Unfinished | None:
        if notice := unanswered(self._journal.events, self._place.attempt):
            return await self._obey(notice)
        self._stuck.update(self._journal.events)
        sign = self._stuck.found()
        if sign is None:
            return None
        able = self._place.escalate is not None or self._talk.other_model() is not None
        stage = "nudge" if sign.earlier == 0 else "escalate" if sign.earlier == 1 and able else "stop"
        notice = StuckNoticed(self._place.attempt, sign.kind, sign.evidence, sign.step, stage)
        await self._journal.append(notice)
        return await self._obey(notice)

    async def _obey(self, notice: StuckNoticed) -> Unfinished | None:
        """Act on a notice; after a crash, on one that was recorded and not acted on."""
        match notice.stage:
            case "nudge":
                return None
            case "escalate":
                return await self._escalate(Stuck(notice.attempt, notice.step, notice.evidence))
            case "stop":
                return Unfinished("red", f"The attempt is stuck: {notice.evidence}")

    async def _escalate(self, stuck: Stuck) -> Unfinished | None:
        answer: Answer | None = None
        if self._place.escalate is not None:
            answer = await self._place.escalate(stuck)
        elif other := self._talk.other_model():
            answer = Switch(other)
        match answer:
            case Switch(model):
                why = "The model before it was stuck."
                await self._journal.append(ModelSwitched(stuck.attempt, self._talk.model, model, why))
                return None
            case Branch(attempts):
                names = ", ".join(map(str, attempts))
                return Unfinished(
                    "red", f"The attempt is stuck; attempt {names} continues from a save point."
                )
            case GiveUp(reason):
                return Unfinished("red", reason)
            case None:
                return None
