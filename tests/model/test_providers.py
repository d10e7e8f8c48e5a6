"""What goes over the wire to a provider, and what comes back unchanged on the next turn."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from cloister.core.records import ToolCall
from cloister.model.api import (
    AssistantMessage,
    Message,
    Model,
    Reply,
    Request,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from cloister.model.catalog import CATALOG
from cloister.model.messages import LOST_RESULT
from cloister.model.providers import open_compatible, open_provider
from cloister.testing.model_conformance import check_failure, check_reply
from cloister.testing.model_server import Answer, ModelServer, open_model_server
from cloister.testing.model_wires import EVENT_STREAM, WIRES, Sent, SentCall

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
KINDS = ("anthropic", "openai", "google", "compatible")
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
BASH = ToolSpec("bash", "Run a command.", SCHEMA)
CALL = ToolCall("call_1", "bash", {"command": "ls"})


@dataclass(frozen=True)
class Remote:
    kind: str
    model: Model
    server: ModelServer


@asynccontextmanager
async def connected(kind: str) -> AsyncGenerator[Remote]:
    async with open_model_server() as server:
        opened = (
            open_compatible("test-model", url=server.url, key=KEY)
            if kind == "compatible"
            else open_provider(kind, "test-model", key=KEY, url=server.url)
        )
        async with opened as model:
            yield Remote(kind, model, server)


@pytest.fixture(params=KINDS)
async def remote(request: pytest.FixtureRequest) -> AsyncGenerator[Remote]:
    async with connected(str(request.param)) as remote:
        yield remote


async def sent_body(remote: Remote, *messages: Message) -> str:
    """The body of a request with this conversation, as text."""
    remote.server.say(WIRES[remote.kind].reply(Sent(text=("Ok.",))))
    request = Request("Be careful.", messages, (BASH,), max_tokens=321, temperature=0.25)
    await check_reply(remote.model, request)
    return remote.server.asked[-1].body.decode()


async def test_the_system_prompt_the_tools_and_the_limits_are_sent(remote: Remote) -> None:
    body = await sent_body(remote, UserMessage("Go on."))
    for part in ("Be careful.", "Go on.", '"bash"', "Run a command.", '"command"', "321", "0.25"):
        assert part in body, part


async def test_calls_and_results_are_sent_in_pairs(remote: Remote) -> None:
    body = await sent_body(
        remote,
        UserMessage("Go."),
        AssistantMessage("I look.", (CALL, ToolCall("call_2", "bash", {"command": "pwd"}))),
        ToolMessage("call_1", "bash", "a.py"),
        ToolMessage("call_2", "bash", "/work"),
        UserMessage("Hurry."),
    )
    positions = [body.index(part) for part in ("I look.", "ls", "pwd", "a.py", "/work", "Hurry.")]
    assert positions == sorted(positions)


async def test_a_call_whose_result_was_lost_gets_one_that_says_so(remote: Remote) -> None:
    body = await sent_body(remote, UserMessage("Go."), AssistantMessage("", (CALL,)), UserMessage("And now?"))
    assert body.index(LOST_RESULT) < body.index("And now?")


async def test_a_result_that_answers_no_call_is_left_out(remote: Remote) -> None:
    body = await sent_body(
        remote,
        UserMessage("Go."),
        AssistantMessage("Hm."),
        ToolMessage("call_9", "bash", "stray"),
        UserMessage("So?"),
    )
    assert "stray" not in body


async def test_a_call_with_invalid_arguments_can_be_sent_back(remote: Remote) -> None:
    bad = ToolCall("call_1", "bash", {"_invalid": '{"command": "l'})
    body = await sent_body(
        remote,
        UserMessage("Go."),
        AssistantMessage("", (bad,)),
        ToolMessage("call_1", "bash", "not an object"),
    )
    assert "_invalid" in body
    assert "not an object" in body


async def test_an_empty_reply_of_another_model_can_be_sent_back(remote: Remote) -> None:
    await sent_body(remote, UserMessage("Go."), AssistantMessage(""), UserMessage("Well?"))


async def test_anothers_opaque_is_replaced_by_the_words_it_stood_for(remote: Remote) -> None:
    foreign = (
        '{"provider":"script","reply":0,"step":1,"captures":{}}',
        '{"provider":"elsewhere","response":{"parts":[]}}',
        f'{{"provider":"{remote.kind}","response":{{"kind":"nonsense"}}}}',
        "not json at all",
    )
    for opaque in foreign:
        body = await sent_body(
            remote, UserMessage("Go."), AssistantMessage("I look.", opaque=opaque), UserMessage("And?")
        )
        assert "I look." in body


def _claude_thinks() -> Answer:
    """A thinking block with its signature before the text, as the Messages API streams it."""
    start: dict[str, object] = {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "test-model",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 9, "output_tokens": 1},
        },
    }
    events: list[dict[str, object]] = [
        start,
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "A deep "},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "thought."},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": "sig=="},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I look."}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 7},
        },
        {"type": "message_stop"},
    ]
    pieces = tuple(
        f"event: {event['type']}\ndata: {msgspec.json.encode(event).decode()}\n\n".encode()
        for event in events
    )
    return Answer(headers=EVENT_STREAM, pieces=pieces)


def _gemini_thinks() -> Answer:
    """A function call with the thought signature that must come back with it."""
    call = {"functionCall": {"name": "bash", "args": {"command": "ls"}}, "thoughtSignature": "c2lnPT0="}
    chunk = {
        "candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 7, "totalTokenCount": 16},
    }
    return Answer(headers=EVENT_STREAM, pieces=(b"data: " + msgspec.json.encode(chunk) + b"\n\n",))


async def _answered_and_sent_back(remote: Remote, answer: Answer) -> tuple[Reply, str]:
    remote.server.say(answer)
    reply = await check_reply(remote.model)
    results = [ToolMessage(call.id, call.name, "a.py") for call in reply.calls]
    kept = AssistantMessage(reply.text, reply.calls, reply.opaque)
    return reply, await sent_body(remote, UserMessage("Go."), kept, *results, UserMessage("On."))


async def test_claudes_thinking_is_not_text_and_comes_back_signed() -> None:
    async with connected("anthropic") as remote:
        reply, body = await _answered_and_sent_back(remote, _claude_thinks())
    assert reply.text == "I look."
    assert "A deep thought." in body
    assert "sig==" in body


async def test_geminis_thought_signature_comes_back_with_the_call() -> None:
    async with connected("google") as remote:
        reply, body = await _answered_and_sent_back(remote, _gemini_thinks())
    assert reply.calls[0].arguments == {"command": "ls"}
    assert "c2lnPT0=" in body


async def test_an_error_inside_a_running_stream_is_told_apart() -> None:
    async with connected("anthropic") as remote:
        error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
        remote.server.say(Answer(headers=EVENT_STREAM, pieces=(*_claude_thinks().pieces[:8], error)))
        failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("overloaded", True)


async def test_an_account_without_credit_is_not_asked_again() -> None:
    async with connected("openai") as remote:
        remote.server.say(
            WIRES["openai"].error(429, "insufficient_quota", "You exceeded your current quota.")
        )
        failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("quota", False)


async def test_the_key_travels_in_one_header_and_nowhere_else(remote: Remote) -> None:
    body = await sent_body(remote, UserMessage("Go."))
    [asked] = remote.server.asked
    assert [value.removeprefix("Bearer ") for value in asked.headers.values() if KEY in value] == [KEY]
    assert KEY not in asked.path
    assert KEY not in body


@pytest.mark.parametrize("kind", CATALOG)
async def test_the_usual_model_of_each_provider_can_be_asked(kind: str) -> None:
    async with open_model_server() as server:
        server.say(
            WIRES[kind].reply(Sent(text=("Ok.",), calls=(SentCall("c", "bash", ('{"command": "ls"}',)),)))
        )
        async with open_provider(kind, CATALOG[kind].model, key=KEY, url=server.url) as model:
            reply = await check_reply(model)
    assert (reply.text, reply.stop) == ("Ok.", "tools")


async def test_claude_is_told_what_to_cache() -> None:
    async with connected("anthropic") as remote:
        assert "cache_control" in await sent_body(remote, UserMessage("Go."))


async def test_two_replies_can_be_under_way_at_once(remote: Remote) -> None:
    reply = WIRES[remote.kind].reply(Sent(text=("One ", "two.")))
    remote.server.say(reply, reply)
    request = Request("Be careful.", (UserMessage("Go."),), ())
    async with remote.model.stream(request) as first, remote.model.stream(request) as second:
        for items in (second, first):
            ended = [item async for item in items][-1]
            assert isinstance(ended, Reply)
            assert ended.text == "One two."
