"""The streaming formats of three model APIs, as a provider writes them: answers for `model_server`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from cloister.testing.model_server import Answer

Ending = Literal["end", "tools", "length", "refused"]

EVENT_STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class SentCall:
    """A tool call as it goes over the wire: the JSON text of its arguments, in fragments."""

    id: str
    name: str
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """One reply, whatever the format."""

    text: tuple[str, ...] = ()
    calls: tuple[SentCall, ...] = ()
    ending: Ending = "end"
    input_tokens: int = 100
    cached_tokens: int = 40
    """Part of `input_tokens`."""
    output_tokens: int = 20


@dataclass(frozen=True, slots=True)
class Wire:
    """One API's way to say things."""

    reply: Callable[[Sent], Answer]
    error: Callable[[int, str, str], Answer]
    """Status, the API's own name for the error, message."""


def _event(data: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _openai_reply(sent: Sent) -> Answer:
    finish = {"end": "stop", "tools": "tool_calls", "length": "length", "refused": "content_filter"}[
        sent.ending
    ]

    def chunk(delta: object, reason: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return _event({**base, "choices": choices})

    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "test-model"}
    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces.extend(chunk({"content": text}) for text in sent.text)
    for at, call in enumerate(sent.calls):
        opening = {
            "index": at,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        pieces.append(chunk({"tool_calls": [opening]}))
        pieces.extend(
            chunk({"tool_calls": [{"index": at, "function": {"arguments": part}}]}) for part in call.fragments
        )
    usage = {
        "prompt_tokens": sent.input_tokens,
        "completion_tokens": sent.output_tokens,
        "total_tokens": sent.input_tokens + sent.output_tokens,
        "prompt_tokens_details": {"cached_tokens": sent.cached_tokens},
    }
    pieces += [chunk({}, finish), _event({**base, "choices": [], "usage": usage}), b"data: [DONE]\n\n"]
    return Answer(headers=EVENT_STREAM, pieces=tuple(pieces))


def _openai_error(status: int, kind: str, message: str) -> Answer:
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": kind}})


def _anthropic_reply(sent: Sent) -> Answer:
    stop = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "refused": "refusal"}[sent.ending]
    usage = {
        "input_tokens": sent.input_tokens - sent.cached_tokens,
        "cache_read_input_tokens": sent.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "test-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    pieces = [_named({"type": "message_start", "message": message}), _named({"type": "ping"})]
    blocks: list[tuple[object, list[object]]] = []
    if sent.text:
        deltas: list[object] = [{"type": "text_delta", "text": text} for text in sent.text]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for call in sent.calls:
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *call.fragments)]
        blocks.append(({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas))
    for at, (block, deltas) in enumerate(blocks):
        pieces.append(_named({"type": "content_block_start", "index": at, "content_block": block}))
        pieces.extend(
            _named({"type": "content_block_delta", "index": at, "delta": delta}) for delta in deltas
        )
        pieces.append(_named({"type": "content_block_stop", "index": at}))
    ended = {"stop_reason": stop, "stop_sequence": None}
    pieces.append(
        _named({"type": "message_delta", "delta": ended, "usage": {"output_tokens": sent.output_tokens}})
    )
    pieces.append(_named({"type": "message_stop"}))
    return Answer(headers=EVENT_STREAM, pieces=tuple(pieces))


def _named(event: dict[str, object]) -> bytes:
    return _event(event, str(event["type"]))


def _anthropic_error(status: int, kind: str, message: str) -> Answer:
    return _json(status, {"type": "error", "error": {"type": kind, "message": message}})


def _google_reply(sent: Sent) -> Answer:
    """Gemini sends each call whole, and has no word of its own for stopping at one."""
    finish = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}[sent.ending]
    parts: list[object] = [{"text": text} for text in sent.text]
    parts.extend(
        {"functionCall": {"id": c.id, "name": c.name, "args": msgspec.json.decode("".join(c.fragments))}}
        for c in sent.calls
    )
    usage = {
        "promptTokenCount": sent.input_tokens,
        "cachedContentTokenCount": sent.cached_tokens,
        "candidatesTokenCount": sent.output_tokens,
        "totalTokenCount": sent.input_tokens + sent.output_tokens,
    }

    def chunk(some: Iterable[object], reason: str | None = None) -> bytes:
        candidate: dict[str, object] = {"content": {"role": "model", "parts": list(some)}, "index": 0}
        if reason is not None:
            candidate["finishReason"] = reason
        return _event(
            {
                "candidates": [candidate],
                "usageMetadata": usage,
                "modelVersion": "test-model",
                "responseId": "r1",
            }
        )

    pieces = [chunk([part]) for part in parts]
    return Answer(headers=EVENT_STREAM, pieces=(*pieces, chunk([], finish)))


def _google_error(status: int, kind: str, message: str) -> Answer:
    return _json(status, {"error": {"code": status, "message": message, "status": kind}})


def _json(status: int, body: object) -> Answer:
    return Answer(status, JSON, (msgspec.json.encode(body),))


WIRES: dict[str, Wire] = {
    "anthropic": Wire(_anthropic_reply, _anthropic_error),
    "openai": Wire(_openai_reply, _openai_error),
    "google": Wire(_google_reply, _google_error),
    "compatible": Wire(_openai_reply, _openai_error),
}
