"""Codex over its own protocol, `codex app-server`: over ACP it runs commands without asking.

The messages are JSON-RPC on standard input and output. Its threads are sessions and its items are messages and tool calls,
which become the updates that ACP has, so that the log and the policy see one kind of program.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from cloister import __version__
from cloister.core.computer import WORK_DIR
from cloister.harnesses.acp.connection import Died, Refusal, Waiting
from cloister.harnesses.acp.messages import NULL, Location, Message, PlanEntry, Update, decoded
from cloister.harnesses.acp.session import Session

_KINDS = {"commandExecution": "execute", "fileChange": "edit", "mcpToolCall": "other", "webSearch": "fetch"}
"""Items that are tool calls; there are others, such as what the user said."""
_STATES = {"inProgress": "in_progress", "completed": "completed", "failed": "failed", "declined": "failed"}
_EARLY = 8
"""Ended turns that are kept until Codex names its new one."""
_FULL = {"approvalPolicy": "untrusted", "sandbox": "danger-full-access"}
"""It asks before everything but plain reading, and makes no sandbox of its own, which it cannot have inside ours."""


class _Of(msgspec.Struct, frozen=True, rename="camel"):
    """A message or a part of one."""


class _Change(_Of, frozen=True):
    path: str
    diff: str = ""


class _Item(_Of, frozen=True):
    id: str
    type: str
    text: str | None = None
    command: str | None = None
    aggregated_output: str | None = None
    status: str | None = None
    changes: tuple[_Change, ...] = ()
    tool: str | None = None
    query: str | None = None


class _Thread(_Of, frozen=True):
    id: str


class _Threaded(_Of, frozen=True):
    thread: _Thread


class _Error(_Of, frozen=True):
    message: str = ""


class _Turn(_Of, frozen=True):
    id: str
    status: Literal["completed", "interrupted", "failed", "inProgress"] = "inProgress"
    error: _Error | None = None


class _Turned(_Of, frozen=True):
    turn: _Turn


class _Step(_Of, frozen=True):
    step: str


class _Planned(_Of, frozen=True):
    plan: tuple[_Step, ...] = ()


class _Told(_Of, frozen=True):
    """Notifications and questions about one item."""

    item: _Item | None = None
    item_id: str = ""
    delta: str | None = None
    command: str | None = None


class _Nothing(_Of, frozen=True):
    pass


class CodexSession(Session):
    """A thread of Codex."""

    _turn: _Turn | None = None
    """The turn at work, or the last one. None while Codex has not named the one that it begins."""
    _early: Mapping[str, _Turn] = {}
    """Turns that ended while there was no name, by name: the response may be handled later than the end."""
    _ending: Waiting | None = None
    _interrupted = False
    _streamed: str = ""
    """The message whose text came in pieces."""

    async def begin(self, earlier: str) -> bool:
        about = {"name": "cloister", "title": "Cloister", "version": __version__}
        await self.connection.request("initialize", {"clientInfo": about}, _Nothing)
        await self.connection.notify("initialized", {})
        if earlier:
            with suppress(Refusal):  # it is lost: a new one gets a summary
                resumed = {**_FULL, "threadId": earlier, "cwd": WORK_DIR, "excludeTurns": True}
                self.id = (await self.connection.request("thread/resume", resumed, _Threaded)).thread.id
                return True
        new = {**_FULL, "cwd": WORK_DIR}
        self.id = (await self.connection.request("thread/start", new, _Threaded)).thread.id
        return False

    async def turn(self, text: str) -> str:
        given = {"threadId": self.id, "input": [{"type": "text", "text": text}]}
        self._turn, self._early, self._interrupted = None, dict[str, _Turn](), False
        with self.connection.expecting() as self._ending:
            begun = (await self.connection.request("turn/start", given, _Turned)).turn
            self._turn = self._early.get(begun.id, begun)
            if begun.id not in self._early:
                if self._interrupted:
                    await self._interrupt()
                await self.connection.wait(self._ending)
        return _why(self._turn)

    async def interrupt(self) -> None:
        self._interrupted = True
        # Its response comes on the way that may wait for us.
        self._tasks.start_soon(self._interrupt)

    async def _interrupt(self) -> None:
        if self._turn is not None:
            with suppress(Refusal, Died):
                which = {"threadId": self.id, "turnId": self._turn.id}
                await self.connection.request("turn/interrupt", which, _Nothing)

    async def handle(self, message: Message) -> None:
        match message.method:
            case "item/started" | "item/completed" | "item/agentMessage/delta":
                if (told := decoded(message.params, _Told)) is not None:
                    await self._item(told, over=message.method == "item/completed")
            case "item/commandExecution/requestApproval" | "item/fileChange/requestApproval":
                await self._asked(message)
            case "turn/plan/updated":
                plan = decoded(message.params, _Planned) or _Planned()
                entries = tuple(PlanEntry(one.step) for one in plan.plan)
                await self.take(Update("plan", entries=entries))
            case "turn/started" | "turn/completed":
                await self._turned(message)
            case _ if message.id is not None:
                await self.connection.refuse(message, "Not offered: work with your own tools.")
            case _:
                pass

    async def _turned(self, message: Message) -> None:
        found = decoded(message.params, _Turned)
        if found is None:
            return
        over = message.method == "turn/completed"
        if self._turn is None:
            if over and len(self._early) < _EARLY:
                self._early = {**self._early, found.turn.id: found.turn}
        elif found.turn.id == self._turn.id:
            self._turn = found.turn
            if over and self._ending is not None:
                self._ending.end(message)

    async def _asked(self, message: Message) -> None:
        told = decoded(message.params, _Told)
        if told is None:
            await self.connection.answer(message, _decision(None, ""))
            return
        line = NULL if told.command is None else _json({"command": told.command})
        kind = None if told.command is None else "execute"
        update = Update("tool_call_update", tool_call_id=told.item_id, kind=kind, raw_input=line)
        await self.ask(message, update, _decision)

    async def _item(self, told: _Told, *, over: bool) -> None:
        item = told.item
        if item is None:
            if told.delta:
                self._streamed = told.item_id
                await self.take(_said(told.delta))
        elif item.type == "agentMessage":
            if over and item.text and item.id != self._streamed:
                await self.take(_said(item.text))
        elif item.type in _KINDS:
            await self.take(_call(item, over=over))


def _why(turn: _Turn) -> str:
    """Why a turn ended. Raises `Died` and `Refusal`."""
    match turn.status:
        case "completed":
            return "end_turn"
        case "interrupted":
            return "cancelled"
        case "failed":
            raise Refusal(turn.error.message[:300] if turn.error else "no reason")
        case "inProgress":
            raise Died("The harness codex broke its protocol.")


def _said(text: str) -> Update:
    return Update("agent_message_chunk", content=_json({"type": "text", "text": text}))


def _call(item: _Item, *, over: bool) -> Update:
    """A tool call as ACP tells of it."""
    shown = [{"type": "content", "content": {"text": text}} for text in (item.aggregated_output,) if text]
    shown += [{"type": "content", "content": {"text": f"{one.path}\n{one.diff}"}} for one in item.changes]
    state = _STATES.get(item.status or "", "completed" if over else "in_progress")
    return Update(
        "tool_call",
        content=_json(shown),
        tool_call_id=item.id,
        title=item.tool or item.query or item.command or item.type,
        kind=_KINDS[item.type],
        status=state if over else "in_progress",
        raw_input=NULL if item.command is None else _json({"command": item.command}),
        locations=tuple(Location(one.path) for one in item.changes),
    )


def _decision(allow: bool | None, _why: str) -> Mapping[str, Any]:
    return {"decision": "cancel" if allow is None else "accept" if allow else "decline"}


def _json(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
