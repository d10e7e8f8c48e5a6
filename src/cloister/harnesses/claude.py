"""Claude Code without its ACP adapter: its own stream of JSON, `claude -p --output-format stream-json`.

Its messages become the updates that ACP has, as those of Codex do. A denial carries the rule, which the protocol has a field for.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import msgspec

from cloister.harnesses.acp.connection import Died, Refusal, Waiting
from cloister.harnesses.acp.messages import (
    NULL,
    Location,
    Message,
    PlanEntry,
    RpcError,
    Update,
    decoded,
    known,
)
from cloister.harnesses.acp.session import Session

_KINDS = {
    "Bash": "execute",
    "Edit": "edit",
    "MultiEdit": "edit",
    "Write": "edit",
    "NotebookEdit": "edit",
    "Read": "read",
    "Glob": "search",
    "Grep": "search",
    "WebFetch": "fetch",
    "WebSearch": "fetch",
}
_FILES = ("file_path", "notebook_path", "path")
_PLAN = "TodoWrite"
_DENIED = "The policy of this run does not allow it: "


class _Of(msgspec.Struct, frozen=True):
    """A message or a part of one."""


class _Answer(_Of, frozen=True):
    request_id: str = ""
    subtype: str = ""
    response: msgspec.Raw = NULL
    error: str = ""


class _Head(_Of, frozen=True):
    type: str
    request_id: str | None = None
    response: _Answer | None = None


class _Block(_Of, frozen=True):
    type: str = ""
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = NULL
    tool_use_id: str = ""
    content: msgspec.Raw = NULL
    is_error: bool = False


class _Said(_Of, frozen=True):
    content: str | tuple[_Block, ...] = ()


class _Line(_Of, frozen=True):
    message: _Said = _Said()
    parent_tool_use_id: str | None = None


class _Question(_Of, frozen=True):
    subtype: str = ""
    tool_name: str = ""
    input: msgspec.Raw = NULL
    tool_use_id: str = ""


class _Asked(_Of, frozen=True):
    request: _Question = _Question()


class _Result(_Of, frozen=True):
    """The end of a turn."""

    subtype: str = ""
    is_error: bool = False
    result: str | None = None


class _Todo(_Of, frozen=True):
    content: str = ""


class _Todos(_Of, frozen=True):
    todos: tuple[_Todo, ...] = ()


class _Nothing(_Of, frozen=True):
    pass


def read_line(line: bytes) -> Message | None:
    """One line as the connection knows messages: an answer to us, or something with the name of its type."""
    raw = msgspec.Raw(line)
    head = decoded(raw, _Head)
    if head is None:
        return None
    if head.type != "control_response" or head.response is None:
        return Message(id=head.request_id, method=head.type, params=raw)
    answer = head.response
    number = int(answer.request_id) if answer.request_id.isdecimal() and len(answer.request_id) < 10 else None
    error = RpcError(message=answer.error) if answer.subtype == "error" else None
    empty = bytes(answer.response) == b"null"
    return Message(id=number, result=msgspec.Raw(b"{}") if empty else answer.response, error=error)


class ClaudeSession(Session):
    """A conversation of Claude Code. Its command names its id."""

    _ending: Waiting | None = None
    _result = _Result()
    _interrupt_answered: anyio.Event | None = None
    """Set when Claude Code has answered the interrupt of the turn at work; None: it is not interrupted."""

    async def begin(self, earlier: str) -> bool:
        self.connection.read_line, self.connection.write_request = read_line, _request
        await self.connection.request("initialize", {"hooks": None}, _Nothing)
        return bool(earlier)

    async def turn(self, text: str) -> str:
        told = {"type": "user", "message": {"role": "user", "content": text}}
        with self.connection.expecting() as self._ending:
            await self.connection.send({**told, "parent_tool_use_id": None, "session_id": self.id})
            await self.connection.wait(self._ending)
        result, interrupted = self._result, self._interrupt_answered
        if interrupted is not None:
            await interrupted.wait()  # or it would interrupt the next turn
            self._interrupt_answered = None
            return "cancelled"
        if result.subtype == "error_max_turns":
            return "max_turn_requests"
        if result.is_error or result.subtype != "success":
            raise Refusal((result.result or result.subtype or "no reason")[:300])
        return "end_turn"

    async def interrupt(self) -> None:
        if self._interrupt_answered is None:
            self._interrupt_answered = anyio.Event()
            # Its response comes on the way that may wait for us.
            self._tasks.start_soon(self._interrupt, self._interrupt_answered)

    async def _interrupt(self, answered: anyio.Event) -> None:
        with suppress(Refusal, Died):
            await self.connection.request("interrupt", {}, _Nothing)
        answered.set()

    async def answer(self, message: Message, result: Mapping[str, Any]) -> None:
        told = {"subtype": "success", "request_id": message.id, "response": result}
        await self.connection.send({"type": "control_response", "response": told})

    async def handle(self, message: Message) -> None:
        match message.method:
            case "assistant" | "user":
                line = decoded(message.params, _Line)
                if line is not None and not isinstance(line.message.content, str):
                    for block in line.message.content:
                        await self._block(block, own=line.parent_tool_use_id is None)
            case "control_request":
                asked = (decoded(message.params, _Asked) or _Asked()).request
                if asked.subtype == "can_use_tool":
                    update = _call(asked.tool_use_id, asked.tool_name, asked.input)
                    await self.ask(message, update, partial(_decision, asked.input))
                else:
                    told = {"subtype": "error", "request_id": message.id, "error": "Not offered."}
                    await self.connection.send({"type": "control_response", "response": told})
            case "result" if self._ending is not None:
                self._result = decoded(message.params, _Result) or _Result()
                self._ending.end(message)
            case _:
                pass

    async def _block(self, block: _Block, *, own: bool) -> None:
        match block.type:
            case "text" if own and block.text:
                said = {"type": "text", "text": block.text}
                await self.take(Update("agent_message_chunk", content=_json(said)))
            case "tool_use" if block.name == _PLAN:
                todos = (decoded(block.input, _Todos) or _Todos()).todos
                await self.take(Update("plan", entries=tuple(PlanEntry(one.content) for one in todos)))
            case "tool_use":
                await self.take(_call(block.id, block.name, block.input))
            case "tool_result":
                shown = [{"type": "content", "content": {"text": text}} for text in _texts(block.content)]
                state = "failed" if block.is_error else "completed"
                update = Update(
                    "tool_call_update", content=_json(shown), tool_call_id=block.tool_use_id, status=state
                )
                await self.take(update)
            case _:
                pass


def _request(number: int, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "control_request", "request_id": str(number), "request": {"subtype": method, **params}}


def _call(id: str, name: str, given: msgspec.Raw) -> Update:
    """A tool call as ACP tells of it."""
    named = known(given)
    paths = tuple(Location(path) for key in _FILES if isinstance(path := named.get(key), str))
    line = named.get("command")
    return Update(
        "tool_call",
        tool_call_id=id,
        title=line if isinstance(line, str) and line else name,
        kind=_KINDS.get(name, "other"),
        raw_input=given,
        locations=paths,
    )


def _texts(content: msgspec.Raw) -> list[str]:
    text = decoded(content, str)
    blocks = decoded(content, tuple[_Block, ...]) or ()
    return [block.text for block in blocks if block.text] if text is None else [text]


def _decision(given: msgspec.Raw, allow: bool | None, why: str) -> Mapping[str, Any]:
    if allow:
        return {"behavior": "allow", "updatedInput": given}
    return {"behavior": "deny", "message": _DENIED + why if why else "The turn is over."}


def _json(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
