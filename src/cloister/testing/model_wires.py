"""The streaming formats of the model APIs, as a provider writes them: answers for `model_server`."""

from collections.abc import Iterable

import msgspec

from cloister.testing.model_server import Answer
from cloister.testing.model_wire import EVENT_STREAM, Sent, Wire, event, json_answer, named
from cloister.testing.model_wire_bedrock import BEDROCK
from cloister.testing.model_wire_responses import RESPONSES


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
    """As OpenAI's, but all calls come at once and whole, and the counts with the last piece."""
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
CHAT = Wire(_openai_reply, _openai_error, _PLAIN_ERRORS, too_long=_TOO_LONG)

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
        lacks=frozenset({"refused"}),
        too_long=(
            "3051",
            "Prompt contains 40000 tokens, too large for model with 32768",
        ),
    ),
    "bedrock": BEDROCK,
    "compatible": CHAT,
}
