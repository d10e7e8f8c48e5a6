"""Names and ids of tool calls in forms that every API takes back. Pure.

A model may call anything anything, and a server may give two calls one id; sent back as it came, that makes a
provider refuse the rest of the conversation.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ToolCallPart

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
        if not isinstance(part, ToolCallPart):
            yield part
            continue
        own, count = part.tool_call_id, 1
        while own in seen:
            count += 1
            own = f"{part.tool_call_id[:30]}-{count}"
        seen.add(own)
        yield replace(part, tool_name=wire_name(part.tool_name), tool_call_id=own)


def wire_name(name: str) -> str:
    return _NAME.sub("_", name)[:_NAME_CHARS] or NAMELESS


def wire_id(call: str, provider: str) -> str:
    """The id under which a call of another model is told to `provider`; the same for the same call, always."""
    if _IDS.get(provider, _ANY_ID).fullmatch(call):
        return call
    return "c" + hashlib.sha256(call.encode("utf-8", errors="replace")).hexdigest()[:8]
