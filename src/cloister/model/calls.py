"""Names and ids of tool calls in forms that every API takes back. Pure.

A model may call anything anything, and a server may give two calls one id; sent back as it came, that makes a
provider refuse the rest of the conversation.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from cloister.core.text import whole

_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS = 64
NAMELESS = "nameless"

_ANY_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_IDS = {"mistral": re.compile(r"[a-zA-Z0-9]{9}")}
"""What an API wants the id of a call to look like, where it wants more than the others."""


def tidy(response: ModelResponse) -> ModelResponse:
    """The reply with names that may be sent back, and with an id of its own for each call."""
    parts = list(_tidied(response.parts))
    return response if parts == list(response.parts) else replace(response, parts=parts)


def _tidied(parts: Iterable[ModelResponsePart]) -> Iterable[ModelResponsePart]:
    seen: set[str] = set()
    for part in parts:
        if isinstance(part, TextPart | ThinkingPart):
            yield part if part.content == whole(part.content) else replace(part, content=whole(part.content))
            continue
        if not isinstance(part, ToolCallPart):
            yield part
            continue
        sent, count = whole(part.tool_call_id), 1
        own = sent
        while own in seen:
            count += 1
            own = f"{sent[:30]}-{count}"
        seen.add(own)
        args = cast("str | dict[str, object] | None", _mended(part.args))
        yield replace(part, tool_name=wire_name(part.tool_name), args=args, tool_call_id=own)


def _mended(value: object) -> object:
    """A value as of JSON, with whole characters only."""
    match value:
        case str():
            return whole(value)
        case dict():
            table = cast("dict[str, object]", value)
            return {whole(key): _mended(item) for key, item in table.items()}
        case list():
            return [_mended(item) for item in cast("list[object]", value)]
        case _:
            return value


def wire_name(name: str) -> str:
    return _NAME.sub("_", name)[:_NAME_CHARS] or NAMELESS


def wire_id(call: str, provider: str) -> str:
    """The id under which a call of another model is told to `provider`; the same for the same call, always."""
    if _IDS.get(provider, _ANY_ID).fullmatch(call):
        return call
    return "c" + hashlib.sha256(call.encode("utf-8", errors="replace")).hexdigest()[:8]
