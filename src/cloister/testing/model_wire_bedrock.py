"""Amazon Bedrock's ConverseStream: JSON in the binary frames of Amazon's event streams."""

import struct
import zlib
from collections.abc import Iterator

import msgspec

from cloister.testing.model_server import Answer
from cloister.testing.model_wire import JSON, Sent, Wire

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
