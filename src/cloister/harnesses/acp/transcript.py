"""What a program tells over ACP, as events of the run: its messages, plan and tool calls, with their results."""

import time

import anyio

from cloister.agent.evidence.evidence import Evidence
from cloister.agent.harnesses.api import Workplace
from cloister.agent.tools.api import observe
from cloister.core.events import Advised, ModelReplied, ModelText, ToolReturned
from cloister.core.requests import ToolCall, Usage
from cloister.core.text import harmless, one_line
from cloister.harnesses.acp.calls import Seen
from cloister.harnesses.acp.gate import Gate
from cloister.harnesses.acp.messages import TEXT_CHARS, Update, chunk_text

_CALLS = 10_000
"""Of one program."""
_PLANS = 50
_PLAN_LINES = 40
_MORE_STEPS = 20
"""Steps beyond the budget that a program may tell of, because its calls at work go on."""


class TooMuch(Exception):
    """The program tells of more than its budget allows. The message says so."""


class Transcript:
    """Writes one attempt's program into the log."""

    def __init__(self, place: Workplace, evidence: Evidence, gate: Gate, model: str) -> None:
        self._place = place
        self._evidence = evidence
        self._gate = gate
        self._model = model
        self._calls: dict[str, Seen] = {}
        self._text = ""
        self._plan = ""
        self._plans = 0
        self._since = time.monotonic()
        self.lock = anyio.Lock()
        """Held while the evidence is used: saving happens beside the messages of the program."""
        self.said = ""
        """The last message."""
        self.denied: list[str] = []
        """What was not allowed in this turn."""
        self.stray = False
        """True if a call of this turn ran without asking, and is not allowed."""
        self.changed = False
        """True if a call may have changed files since the last save point."""

    def begin_turn(self) -> None:
        self.said, self._text, self.denied, self.stray = "", "", [], False

    @property
    def step(self) -> int:
        """The last step."""
        return self._place.progress().steps

    async def take(self, update: Update) -> None:
        """Record one update. Unknown kinds are skipped."""
        async with self.lock:
            match update.session_update:
                case "agent_message_chunk":
                    self._hear(chunk_text(update))
                case "tool_call" | "tool_call_update":
                    await self._tool(update)
                case "plan":
                    await self._planned(update)
                case _:
                    pass

    def _hear(self, text: str) -> None:
        text = text[: TEXT_CHARS - len(self._text)]
        self._text += text
        if text:
            self._place.journal.show(ModelText(self._place.attempt, text))

    async def _planned(self, update: Update) -> None:
        """Record a plan that says something new; how far the program is with it changes often."""
        lines = [f"- {one_line(one.content, 300)}" for one in update.entries[:_PLAN_LINES]]
        text = harmless("\n".join(lines))
        if text and text != self._plan and self._plans < _PLANS:
            self._plan, self._plans = text, self._plans + 1
            await self._place.journal.append(Advised(self._place.attempt, "plan", self._model, text))

    async def _tool(self, update: Update) -> None:
        seen = self._seen(update)
        if seen is None or seen.returned:
            return
        seen.take(update)
        if seen.is_told:
            await self._recorded(seen)
        if seen.is_over:
            await self._returned(seen)

    async def asked(self, update: Update) -> tuple[Seen, ToolCall] | None:
        """Record the call that the program asks a permission for. None beyond a bound."""
        async with self.lock:
            seen = self._seen(update)
            if seen is None:
                return None
            seen.take(update)
            seen.decided = True
            return seen, await self._recorded(seen)

    def _seen(self, update: Update) -> Seen | None:
        """The call that an update is about; None beyond a bound."""
        known = self._calls.get(update.tool_call_id)
        if known is None and len(self._calls) < _CALLS:
            known = self._calls[update.tool_call_id] = Seen(update.tool_call_id, started=time.monotonic())
        return known

    async def _recorded(self, seen: Seen) -> ToolCall:
        """The call in the log, with the text before it."""
        if seen.call is None:
            seen.call = seen.recorded(self.step + 1)
            await self._reply((seen.call,))
        return seen.call

    async def _reply(self, calls: tuple[ToolCall, ...]) -> None:
        place, now = self._place, time.monotonic()
        accounts = place.models.purse.accounts(place.models.payer)
        if any((left := account.left("steps")) is not None and left <= -_MORE_STEPS for account in accounts):
            raise TooMuch("The harness takes more steps than its budget has.")
        text, self._text = self._text, ""
        self.said = text.strip() or self.said
        # Its calls to the model are in the log as they were made, with their usage.
        reply = ModelReplied(
            place.attempt, self.step + 1, self._model, text, calls, Usage(), now - self._since, cost=0.0
        )
        self._since = now
        await self._evidence.record(reply)

    async def _returned(self, seen: Seen) -> None:
        call = await self._recorded(seen)
        if not seen.decided:
            seen.decided = True
            seen.denied = await self._gate.judge(seen, call)
            if seen.denied:
                self.denied.append(seen.denied)
                self.stray = True
        told = observe(seen.status == "completed", seen.text or seen.status)
        seconds = time.monotonic() - seen.started
        origin = self._gate.approvals.provenance.origin("tool")
        result = ToolReturned(
            self._place.attempt, call.id, call.name, told.ok, told.text, seconds, origin=origin
        )
        self._evidence.add_result(result)
        await self._evidence.record()
        self.changed = self.changed or seen.may_change_files
        seen.returned, seen.text = True, ""

    async def end_turn(self) -> None:
        """Record what is left of the turn: the last message, and calls without a result."""
        async with self.lock:
            for seen in list(self._calls.values()):
                if seen.call is not None and not seen.returned:
                    seen.status, seen.text = "failed", seen.text or "It had no result when the turn ended."
                    await self._returned(seen)
            self._calls.clear()
            if self._text.strip():
                await self._reply(())
