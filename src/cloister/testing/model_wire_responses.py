"""OpenAI's Responses API as it streams: one item after the other, each with its deltas."""

from collections.abc import Iterator, Mapping

from cloister.testing.model_server import Answer
from cloister.testing.model_wire import EVENT_STREAM, Sent, SentCall, Wire, json_answer, named


def _reply(sent: Sent) -> Answer:
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


def _error(status: int, kind: str, message: str) -> Answer:
    return json_answer(status, {"error": {"message": message, "type": kind, "param": None, "code": kind}})


RESPONSES = Wire(
    _reply,
    _error,
    {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
    },
    # A call's id is what its deltas are told apart by.
    lacks=frozenset({"repeated ids"}),
    too_long=("context_length_exceeded", "Your input exceeds the context window of this model."),
)
