"""Anthropic's Messages API, as programs inside the sandbox use it."""

import secrets
from typing import Literal

import msgspec

from cloister.core.requests import ToolCall, Usage
from cloister.egress.model_endpoint.api import (
    Asked,
    BadRequest,
    JsonObject,
    Writer,
    distinct,
    event,
    max_tokens,
    picture,
    tool,
    understood,
    written,
)
from cloister.model.api import (
    AssistantMessage,
    Failure,
    Image,
    Message,
    Reply,
    Request,
    ToolMessage,
    UserMessage,
)

_STOP = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens"}
_KINDS = {
    400: "invalid_request_error",
    402: "billing_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_THOUGHTS = ("thinking", "redacted_thinking")


class _Source(msgspec.Struct, frozen=True):
    type: str
    media_type: str = ""
    data: str = ""


class _Block(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    source: _Source | None = None
    id: str = ""
    name: str = ""
    input: JsonObject = {}
    tool_use_id: str = ""
    content: "str | tuple[_Block, ...] | None" = None
    is_error: bool = False


class _Said(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[_Block, ...]


class _Tool(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    input_schema: JsonObject | None = None
    type: str | None = None


class _Body(msgspec.Struct, frozen=True):
    messages: tuple[_Said, ...]
    model: str = "default"
    system: str | tuple[_Block, ...] = ""
    max_tokens: int | None = None
    tools: tuple[_Tool, ...] | None = None
    temperature: float | None = None
    stream: bool | None = None


class Messages:
    """`POST /v1/messages`."""

    def read(self, body: bytes) -> Asked:
        found = understood(body, _Body)
        # One with another type is run by a provider, or known to one model only.
        tools = [one for one in found.tools or () if one.type in (None, "custom")]
        request = Request(
            _texts(found.system),
            _conversation(found.messages),
            distinct([tool(one.name, one.description, one.input_schema) for one in tools]),
            max_tokens(found.max_tokens),
            found.temperature,
        )
        return Asked(request, found.model, bool(found.stream))

    def writer(self, asked: Asked) -> Writer:
        return _Writer(asked.model)

    def error(self, status: int, code: str, message: str) -> bytes:
        return msgspec.json.encode(_error(_KINDS.get(status, "api_error"), message))


def _error(kind: str, message: str) -> JsonObject:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _texts(content: str | tuple[_Block, ...] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(block.text for block in content if block.type == "text")


def _conversation(said: tuple[_Said, ...]) -> tuple[Message, ...]:
    messages: list[Message] = []
    names: dict[str, str] = {}
    for one in said:
        blocks = (_Block("text", one.content),) if isinstance(one.content, str) else one.content
        if one.role == "assistant":
            reply = _reply(blocks)
            names.update({call.id: call.name for call in reply.calls})
            messages.append(reply)
        else:
            messages.extend(_from_user(blocks, names))
    if not messages:
        raise BadRequest("The request has no message to answer.")
    return tuple(messages)


def _reply(blocks: tuple[_Block, ...]) -> AssistantMessage:
    calls: list[ToolCall] = []
    for block in blocks:
        match block.type:
            case "tool_use":
                calls.append(ToolCall(block.id, block.name, block.input))
            case "text":
                pass
            case kind if kind in _THOUGHTS:
                pass  # those of another conversation: the run's model has not thought them
            case kind:
                raise BadRequest(f"Content of the type {kind[:40]!r} is not supported here.")
    return AssistantMessage(_texts(blocks), tuple(calls))


def _from_user(blocks: tuple[_Block, ...], names: dict[str, str]) -> list[Message]:
    """Tool results first, directly after their calls, then the user's text."""
    results: list[Message] = []
    for block in blocks:
        if block.type == "tool_result":
            inner = block.content if isinstance(block.content, tuple) else ()
            name = names.get(block.tool_use_id, "")
            results.append(ToolMessage(block.tool_use_id, name, _texts(block.content), _images(inner)))
        elif block.type not in ("text", "image"):
            raise BadRequest(f"Content of the type {block.type[:40]!r} is not supported here.")
    text, images = _texts(blocks), _images(blocks)
    return [*results, UserMessage(text, images)] if text or images or not results else results


def _images(blocks: tuple[_Block, ...]) -> tuple[Image, ...]:
    found: list[Image] = []
    for block in blocks:
        if block.type == "image":
            if block.source is None or block.source.type != "base64":
                raise BadRequest("Send images as base64: image addresses are not fetched.")
            found.append(picture(block.source.media_type, block.source.data))
    return tuple(found)


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
    }


class _Writer:
    def __init__(self, model: str) -> None:
        self._base: JsonObject = {
            "id": "msg_" + secrets.token_hex(12),
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._texted = False

    def begin(self) -> bytes:
        message: JsonObject = {**self._base, "content": [], "stop_reason": None, "stop_sequence": None}
        return _named({"type": "message_start", "message": {**message, "usage": _usage(Usage())}})

    def text(self, text: str) -> bytes:
        opening = b"" if self._texted else _opened(0, {"type": "text", "text": ""})
        self._texted = True
        return opening + _delta(0, {"type": "text_delta", "text": text})

    def end(self, reply: Reply) -> bytes:
        pieces: list[bytes] = []
        if self._texted:
            pieces.append(_named({"type": "content_block_stop", "index": 0}))
        for number, call in enumerate(reply.calls, start=int(self._texted)):
            block: JsonObject = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            pieces.append(_opened(number, block))
            pieces.append(_delta(number, {"type": "input_json_delta", "partial_json": written(call)}))
            pieces.append(_named({"type": "content_block_stop", "index": number}))
        stop = {"stop_reason": _STOP[reply.stop], "stop_sequence": None}
        pieces.append(_named({"type": "message_delta", "delta": stop, "usage": _usage(reply.usage)}))
        return b"".join([*pieces, _named({"type": "message_stop"})])

    def failed(self, failure: Failure) -> bytes:
        kind = "overloaded_error" if failure.code == "overloaded" else "api_error"
        return event(_error(kind, failure.message), "error")

    def whole(self, reply: Reply) -> bytes:
        said: list[JsonObject] = [{"type": "text", "text": reply.text}]
        calls: list[JsonObject] = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in reply.calls
        ]
        content = [*(said if reply.text else ()), *calls]
        ending = {"stop_reason": _STOP[reply.stop], "stop_sequence": None, "usage": _usage(reply.usage)}
        return msgspec.json.encode({**self._base, "content": content, **ending})


def _named(data: JsonObject) -> bytes:
    return event(data, str(data["type"]))


def _opened(number: int, block: JsonObject) -> bytes:
    return _named({"type": "content_block_start", "index": number, "content_block": block})


def _delta(number: int, delta: JsonObject) -> bytes:
    return _named({"type": "content_block_delta", "index": number, "delta": delta})
