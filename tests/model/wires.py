"""The streaming formats of the model APIs, as answers for `model_server`."""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from tests.model.provider_server import Answer

# Common to all APIs


Ending = Literal["end", "tools", "length", "refused"]

EVENT_STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class SentCall:
    """A tool call on the wire: the JSON text of its arguments, in fragments."""

    id: str
    name: str
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """One reply, independent of the format."""

    text: tuple[str, ...] = ()
    calls: tuple[SentCall, ...] = ()
    ending: Ending = "end"
    input_tokens: int = 100
    cached_tokens: int = 40
    """Part of `input_tokens`."""
    output_tokens: int = 20


@dataclass(frozen=True, slots=True)
class Wire:
    """The wire format of one API."""

    reply: Callable[[Sent], Answer]
    error: Callable[[int, str, str], Answer]
    """Status, the API's own name for the error, message."""
    errors: dict[int, str] = field(default_factory=dict[int, str])
    """Status → what the API calls it."""
    lacks: frozenset[str] = frozenset()
    """What the API cannot express: `refused`, `fragments` of a call, `reasoning` that is sent back, `repeated ids`."""
    too_long: tuple[str, str] = ("", "")
    """Name and message of the error for a conversation that is too long."""
    key_header: str = "authorization"
    """The header that carries the key."""


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def named(data: dict[str, object]) -> bytes:
    """An event with its type as its name."""
    return event(data, str(data["type"]))


def json_answer(status: int, body: object) -> Answer:
    return Answer(status, JSON, (msgspec.json.encode(body),))


# Amazon Bedrock's ConverseStream: JSON in the binary frames of Amazon's event streams.


FRAMES = {"content-type": "application/vnd.amazon.eventstream"}


def frame(kind: str, payload: object, *, error: bool = False) -> bytes:
    """One event, or an error in its place: lengths, their checksum, headers, the payload, a checksum of it all."""
    what = "exception" if error else "event"
    headers = b"".join(
        _header(name, value)
        for name, value in (
            (f":{what}-type", kind),
            (":content-type", "application/json"),
            (":message-type", what),
        )
    )
    body = msgspec.json.encode(payload)
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return start + struct.pack(">I", zlib.crc32(start))


def _header(name: str, value: str) -> bytes:
    text_type = 7
    return (
        struct.pack(">B", len(name))
        + name.encode()
        + struct.pack(">BH", text_type, len(value))
        + value.encode()
    )


def _reply(sent: Sent) -> Answer:
    return Answer(headers=FRAMES, pieces=tuple(_pieces(sent)))


def _pieces(sent: Sent) -> Iterator[bytes]:
    yield frame("messageStart", {"role": "assistant"})
    at = 0
    if sent.text:
        for text in sent.text:
            yield frame("contentBlockDelta", {"contentBlockIndex": at, "delta": {"text": text}})
        yield frame("contentBlockStop", {"contentBlockIndex": at})
        at += 1
    for call in sent.calls:
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        yield frame("contentBlockStart", {"contentBlockIndex": at, "start": start})
        for part in call.fragments:
            delta = {"toolUse": {"input": part}}
            yield frame("contentBlockDelta", {"contentBlockIndex": at, "delta": delta})
        yield frame("contentBlockStop", {"contentBlockIndex": at})
        at += 1
    stop = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "refused": "content_filtered"}
    yield frame("messageStop", {"stopReason": stop[sent.ending]})
    usage = {
        "inputTokens": sent.input_tokens - sent.cached_tokens,
        "cacheReadInputTokens": sent.cached_tokens,
        "cacheWriteInputTokens": 0,
        "outputTokens": sent.output_tokens,
        "totalTokens": sent.input_tokens + sent.output_tokens,
    }
    yield frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})


def _error(status: int, kind: str, message: str) -> Answer:
    return Answer(status, {**JSON, "x-amzn-errortype": kind}, (msgspec.json.encode({"message": message}),))


BEDROCK = Wire(
    _reply,
    _error,
    {
        400: "ValidationException",
        401: "UnrecognizedClientException",
        404: "ResourceNotFoundException",
        429: "ThrottlingException",
        500: "InternalServerException",
        503: "ServiceUnavailableException",
    },
    too_long=("ValidationException", "Input is too long for requested model."),
)


# OpenAI's Responses API as it streams: one item after the other, each with its deltas.


def _responses_reply(sent: Sent) -> Answer:
    pieces = [_whole("response.created", {"status": "in_progress"})]
    at = 0
    if sent.text:
        pieces.extend(_message(sent.text, at))
        at += 1
    for call in sent.calls:
        pieces.extend(_call(call, at))
        at += 1
    cut = {"length": "max_output_tokens", "refused": "content_filter"}.get(sent.ending)
    usage = {
        "input_tokens": sent.input_tokens,
        "input_tokens_details": {"cached_tokens": sent.cached_tokens},
        "output_tokens": sent.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sent.input_tokens + sent.output_tokens,
    }
    if cut is None:
        pieces.append(_whole("response.completed", {"status": "completed", "usage": usage}))
    else:
        ended = {"status": "incomplete", "incomplete_details": {"reason": cut}, "usage": usage}
        pieces.append(_whole("response.incomplete", ended))
    return Answer(headers=EVENT_STREAM, pieces=tuple(pieces))


def _whole(kind: str, more: Mapping[str, object]) -> bytes:
    response: dict[str, object] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "test-model",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
    }
    return named({"type": kind, "sequence_number": 0, "response": {**response, **more}})


def _message(texts: tuple[str, ...], at: int) -> Iterator[bytes]:
    item: dict[str, object] = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress"}
    where = {"item_id": "msg_1", "output_index": at, "content_index": 0, "sequence_number": 0}
    part: dict[str, object] = {"type": "output_text", "text": "", "annotations": []}
    yield _item("response.output_item.added", at, {**item, "content": []})
    yield named({"type": "response.content_part.added", **where, "part": part})
    for text in texts:
        yield named({"type": "response.output_text.delta", **where, "delta": text, "logprobs": []})
    whole = "".join(texts)
    yield named({"type": "response.output_text.done", **where, "text": whole, "logprobs": []})
    done = {**item, "status": "completed", "content": [{**part, "text": whole}]}
    yield _item("response.output_item.done", at, done)


def _call(call: SentCall, at: int) -> Iterator[bytes]:
    item = {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": call.name}
    where = {"item_id": f"fc_{call.id}", "output_index": at, "sequence_number": 0}
    yield _item("response.output_item.added", at, {**item, "arguments": "", "status": "in_progress"})
    for part in call.fragments:
        yield named({"type": "response.function_call_arguments.delta", **where, "delta": part})
    whole = "".join(call.fragments)
    yield named({"type": "response.function_call_arguments.done", **where, "arguments": whole})
    yield _item("response.output_item.done", at, {**item, "arguments": whole, "status": "completed"})


def _item(kind: str, at: int, item: Mapping[str, object]) -> bytes:
    return named({"type": kind, "output_index": at, "sequence_number": 0, "item": item})


def _responses_error(status: int, kind: str, message: str) -> Answer:
    return json_answer(status, {"error": {"message": message, "type": kind, "param": None, "code": kind}})


RESPONSES = Wire(
    _responses_reply,
    _responses_error,
    {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
    },
    # The deltas of different calls are distinguished by the id of the call.
    lacks=frozenset({"repeated ids"}),
    too_long=("context_length_exceeded", "Your input exceeds the context window of this model."),
)


def _openai_reply(sent: Sent) -> Answer:
    finish = {"end": "stop", "tools": "tool_calls", "length": "length", "refused": "content_filter"}[
        sent.ending
    ]

    def chunk(delta: object, reason: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return event({**base, "choices": choices})

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
    pieces += [chunk({}, finish), event({**base, "choices": [], "usage": usage}), b"data: [DONE]\n\n"]
    return Answer(headers=EVENT_STREAM, pieces=tuple(pieces))


def _openai_error(status: int, kind: str, message: str) -> Answer:
    return json_answer(status, {"error": {"message": message, "type": kind, "param": None, "code": kind}})


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
    pieces = [named({"type": "message_start", "message": message}), named({"type": "ping"})]
    blocks: list[tuple[object, list[object]]] = []
    if sent.text:
        deltas: list[object] = [{"type": "text_delta", "text": text} for text in sent.text]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for call in sent.calls:
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *call.fragments)]
        blocks.append(({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas))
    for at, (block, deltas) in enumerate(blocks):
        pieces.append(named({"type": "content_block_start", "index": at, "content_block": block}))
        pieces.extend(named({"type": "content_block_delta", "index": at, "delta": delta}) for delta in deltas)
        pieces.append(named({"type": "content_block_stop", "index": at}))
    ended = {"stop_reason": stop, "stop_sequence": None}
    pieces.append(
        named({"type": "message_delta", "delta": ended, "usage": {"output_tokens": sent.output_tokens}})
    )
    pieces.append(named({"type": "message_stop"}))
    return Answer(headers=EVENT_STREAM, pieces=tuple(pieces))


def _anthropic_error(status: int, kind: str, message: str) -> Answer:
    return json_answer(status, {"type": "error", "error": {"type": kind, "message": message}})


def _google_reply(sent: Sent) -> Answer:
    """Gemini sends each call as a whole, and has no finish reason for calls."""
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
        return event(
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
    return json_answer(status, {"error": {"code": status, "message": message, "status": kind}})


def _mistral_reply(sent: Sent) -> Answer:
    """As OpenAI's, but all calls come together as a whole, and the usage comes with the last piece."""
    finish = {"end": "stop", "tools": "tool_calls", "length": "length", "refused": "error"}[sent.ending]
    base = {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "test-model"}

    def chunk(delta: object, reason: str | None = None, **more: object) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return event({**base, "choices": choices, **more})

    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces.extend(chunk({"content": text}) for text in sent.text)
    calls = [
        {"index": at, "id": call.id, "function": {"name": call.name, "arguments": "".join(call.fragments)}}
        for at, call in enumerate(sent.calls)
    ]
    if calls:
        pieces.append(chunk({"tool_calls": calls}))
    usage = {
        "prompt_tokens": sent.input_tokens,
        "completion_tokens": sent.output_tokens,
        "total_tokens": sent.input_tokens + sent.output_tokens,
        "prompt_tokens_details": {"cached_tokens": sent.cached_tokens},
    }
    pieces += [chunk({"content": ""}, finish, usage=usage), b"data: [DONE]\n\n"]
    return Answer(headers=EVENT_STREAM, pieces=tuple(pieces))


def _mistral_error(status: int, kind: str, message: str) -> Answer:
    body = {
        "object": "error",
        "message": message,
        "type": kind,
        "param": None,
        "code": "3051" if kind == "3051" else "3000",
    }
    return json_answer(status, body)


_PLAIN_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_GOOGLE_ERRORS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_TOO_LONG = ("context_length_exceeded", "This model's maximum context length is 8192 tokens.")
CHAT = Wire(_openai_reply, _openai_error, _PLAIN_ERRORS, lacks=frozenset({"reasoning"}), too_long=_TOO_LONG)

WIRES: dict[str, Wire] = {
    "anthropic": Wire(
        _anthropic_reply,
        _anthropic_error,
        _PLAIN_ERRORS,
        too_long=("invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
    ),
    "openai": CHAT,
    "openai-responses": RESPONSES,
    "google": Wire(
        _google_reply,
        _google_error,
        _GOOGLE_ERRORS,
        # It sends arguments as an object, never as text.
        lacks=frozenset({"fragments"}),
        too_long=(
            "INVALID_ARGUMENT",
            "The input token count (2000000) exceeds the maximum number of tokens allowed (1000000).",
        ),
        key_header="x-goog-api-key",
    ),
    "mistral": Wire(
        _mistral_reply,
        _mistral_error,
        {},
        lacks=frozenset({"refused", "fragments", "reasoning"}),
        too_long=(
            "3051",
            "Prompt contains 40000 tokens, too large for model with 32768",
        ),
    ),
    "bedrock": BEDROCK,
    "compatible": CHAT,
}
