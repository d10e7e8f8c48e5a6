"""For models too small to call tools: one JSON object per turn under a schema, and results as plain text.

The prefix is short and constant, so that a server with a prompt cache processes only the new part.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import cast

import msgspec

from cloister.core.requests import ToolCall
from cloister.core.text import bounded
from cloister.model.api import (
    AssistantMessage,
    Failure,
    Message,
    Model,
    Reply,
    Request,
    TextDelta,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

REPLY_TOKENS = 2_048
RESULT_CHARS = 4_000
"""The most that such a model gets of one text."""
TOKEN_CHARS = 3
"""The least characters per token, in code and English."""
FORGOTTEN = 4
"""Turns that are dropped together, so that the prefix stays constant for some turns."""
RESTLESS = 0.7
"""The temperature after the same action twice in a row."""

_NUMBERED = re.compile(r"^ {0,5}\d{1,6}\t", re.MULTILINE)
"""Line numbers before text: a small model would copy them into files."""

_ORDER = ("read", "search", "edit", "write", "bash", "finish")
"""The order in which tools are listed: most useful first."""
_LOOKS = frozenset({"read", "search", "bash"})
"""The only tools until one of them was used: otherwise the model edits files that it has not read."""
_FENCED = re.compile(r"\s*```[\w+-]*\n(.*?)\n?```\s*", re.DOTALL)

_HEAD = """\
You repair code in a repository. Answer with one JSON object, which is done, and its result is shown to you:
"""
_ELSE = "Answer with one JSON object:\n"
_TAIL = """\
Read a file before you change it. Change the code, never the tests. After a change the checks run by themselves.
When they are green, finish.
"""


class JsonActions:
    """A `Model` that asks another model for JSON actions."""

    def __init__(self, behind: Model, window: int | None = None, only: frozenset[str] | None = None) -> None:
        self._behind = behind
        self._window = window
        self._only = only
        """The tools to offer; None offers all."""
        self._failed = False
        """True if the last reply was not an action: the same request would give the same reply."""

    @property
    def name(self) -> str:
        return self._behind.name

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        if not request.tools or request.schema is not None:
            async with self._behind.stream(request) as items:
                yield items
            return
        if self._only is not None:
            some = tuple(tool for tool in request.tools if tool.name in self._only)
            request = msgspec.structs.replace(request, tools=some or request.tools)
        async with (
            self._behind.stream(action_request(request, self._window, self._failed)) as items,
            aclosing(self._actions(items, len(request.messages))) as actions,
        ):
            yield actions

    async def _actions(
        self, items: AsyncIterator[TextDelta | Reply | Failure], turn: int
    ) -> AsyncGenerator[TextDelta | Reply | Failure]:
        """Turn the JSON object into a tool call. Its text is not streamed."""
        async for item in items:
            match item:
                case Reply():
                    self._failed = False
                    fields = msgspec.json.decode(item.text, type=dict[str, object])
                    call = ToolCall(f"action_{turn}", str(fields.pop("tool")), _bared(fields))
                    yield msgspec.structs.replace(item, text="", calls=(call,), stop="tools", opaque=None)
                case Failure():
                    self._failed = item.code == "bad_reply"
                    yield item
                case TextDelta():
                    pass


def action_request(request: Request, window: int | None = None, failed: bool = False) -> Request:
    """Rewrite a request for such a model, within its context window. Pure."""
    tools = sorted(request.tools, key=lambda tool: _place(tool.name))
    lines = "\n".join(f"{_example(tool)}  {_first_sentence(tool.description)}" for tool in tools)
    restless = failed or _repeats(request.messages)
    return Request(
        system=_system(request, lines),
        messages=tuple(_within(_conversation(request.messages), window)),
        tools=(),
        max_tokens=min(request.max_tokens, REPLY_TOKENS),
        temperature=request.temperature if request.temperature is not None else RESTLESS if restless else 0.0,
        schema={"anyOf": [_form(tool) for tool in _offered(tools, request.messages)]},
    )


def _system(request: Request, lines: str) -> str:
    """A short system prompt for the loop. Other requests, such as a review, keep their own."""
    if any(tool.name in _ORDER for tool in request.tools):
        return f"{_HEAD}{lines}\n{_TAIL}"
    return f"{request.system.rstrip()}\n\n{_ELSE}{lines}\n"


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER) - 1


def _offered(tools: Sequence[ToolSpec], messages: Sequence[Message]) -> Sequence[ToolSpec]:
    """The tools for the next turn. The prompt still lists all of them, so that it stays constant."""
    looked = any(isinstance(message, ToolMessage) and message.tool in _LOOKS for message in messages)
    looks = [tool for tool in tools if tool.name in _LOOKS]
    return tools if looked or not looks else looks


def _bared(fields: dict[str, object]) -> dict[str, object]:
    """Remove Markdown fences around code, which such a model adds by habit, except in Markdown files."""
    if "command" in fields or str(fields.get("path", "")).endswith((".md", ".markdown")):
        return fields
    bare = {key: _FENCED.fullmatch(value) for key, value in fields.items() if isinstance(value, str)}
    return {key: match[1] + "\n" if (match := bare.get(key)) else value for key, value in fields.items()}


def _form(tool: ToolSpec) -> dict[str, object]:
    """The schema of the object that calls a tool, with its required arguments."""
    fields = cast("dict[str, object]", tool.parameters.get("properties", {}))
    required = cast("list[str]", tool.parameters.get("required", []))
    return {
        "type": "object",
        "properties": {"tool": {"const": tool.name}, **{name: _bare(fields[name]) for name in required}},
        "required": ["tool", *required],
        "additionalProperties": False,
    }


def _bare(field: object) -> dict[str, object]:
    """Remove descriptions, which would cost tokens in each turn."""
    words = ("description", "title", "default")
    return {key: value for key, value in cast("dict[str, object]", field).items() if key not in words}


def _example(tool: ToolSpec) -> str:
    required = cast("list[str]", tool.parameters.get("required", []))
    return msgspec.json.encode({"tool": tool.name, **dict.fromkeys(required, "…")}).decode()


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."


def _conversation(messages: Sequence[Message]) -> list[Message]:
    """Each call followed by its result; never two messages of one side in a row."""
    said: list[Message] = []
    for at, message in enumerate(messages):
        match message:
            case UserMessage():
                _say(said, message.text)
            case AssistantMessage() if message.calls:
                results = _results(messages, at + 1)
                for call in message.calls:
                    said.append(AssistantMessage(_action(call)))
                    result = results.get(call.id)
                    _say(said, "(no result)" if result is None else _NUMBERED.sub("", result.text))
            case AssistantMessage():
                said.append(AssistantMessage(message.text or "(nothing)"))
            case ToolMessage():
                pass  # added with its call
    return said


def _results(messages: Sequence[Message], at: int) -> dict[str, ToolMessage]:
    """The results of the calls of one reply, by id. A later reply may reuse the ids."""
    found: dict[str, ToolMessage] = {}
    for message in messages[at:]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            found[message.call] = message
    return found


def _within(said: list[Message], window: int | None) -> list[Message]:
    """The task and the latest turns that fit; the oldest are dropped a few at a time."""
    if window is None or not said or not isinstance(task := said[0], UserMessage):
        return said
    room = (window - REPLY_TOKENS) * TOKEN_CHARS - len(task.text) - len(_HEAD) - len(_TAIL)
    turns = said[1:]
    while len(turns) > 2 and sum(len(m.text) for m in turns) > room:
        turns = turns[min(2 * FORGOTTEN, len(turns) // 4 * 2 or 2) :]
    if len(turns) == len(said) - 1:
        return said
    return [UserMessage(f"{task.text}\n\n(Some steps after this are left out.)"), *turns]


def _say(said: list[Message], text: str) -> None:
    text = bounded(text, RESULT_CHARS)
    if said and isinstance(last := said[-1], UserMessage):
        said[-1] = UserMessage(f"{last.text}\n\n{text}")
    else:
        said.append(UserMessage(text))


def _action(call: ToolCall) -> str:
    return msgspec.json.encode({"tool": call.name, **call.arguments}).decode()


def _repeats(messages: Sequence[Message]) -> bool:
    """True if the last two actions are the same."""
    done = [_action(call) for m in messages if isinstance(m, AssistantMessage) for call in m.calls]
    return len(done) >= 2 and done[-1] == done[-2]
