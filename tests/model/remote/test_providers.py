"""What goes over the wire to a provider, and what comes back unchanged on the next turn."""

import base64
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import msgspec
import pytest
from tests.model.provider_server import Answer, ModelServer, open_model_server
from tests.model.wires import CHAT, EVENT_STREAM, WIRES, Sent, SentCall, event, frame, named
from tests.whole.conformance.suites.model import check_failure, check_reply, items_of

from cloister.core import limits
from cloister.core.requests import ToolCall
from cloister.model.api import (
    AssistantMessage,
    Image,
    Message,
    Model,
    Reply,
    Request,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from cloister.model.catalog import CATALOG, FIRST_LISTED, Amazon
from cloister.model.remote.messages import LOST_RESULT
from cloister.model.remote.providers import open_remote
from cloister.model.remote.wire_formats import Endpoint

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
KINDS = tuple(WIRES)
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


def endpoint(kind: str, name: str, url: str) -> Endpoint:
    if kind == "bedrock":  # whose key is not sent over plain HTTP, see below
        return Endpoint(kind, name, url, None, Amazon("us-east-1", "AKIATEST", KEY))
    return Endpoint(kind, name, url, KEY)


@asynccontextmanager
async def connected(kind: str, name: str = "test-model") -> AsyncGenerator[Remote]:
    async with open_model_server() as server, open_remote(endpoint(kind, name, server.url)) as model:
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
    body = await sent_body(remote, UserMessage("Go."), AssistantMessage(""), UserMessage("Well?"))
    assert 0 <= body.find("Go.") < body.find("Well?")


async def test_opaque_of_another_model_is_replaced_by_its_text(remote: Remote) -> None:
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


async def test_reasoning_is_sent_back_only_to_the_model_that_wrote_it() -> None:
    """Another model of the same provider may not read the seal; the first one finds it unchanged when it is back."""
    async with connected("anthropic", "first") as first:
        first.server.say(_claude_thinks())
        reply = await check_reply(first.model)
        said = (UserMessage("Go."), AssistantMessage(reply.text, reply.calls, reply.opaque))
        async with connected("anthropic", "second") as second:
            body = await sent_body(second, *said, UserMessage("On."))
            assert "I look." in body
            assert "sig==" not in body
            assert "A deep thought." not in body
        back = await sent_body(first, *said, AssistantMessage("I am the second."), UserMessage("On."))
    assert "sig==" in back
    assert "A deep thought." in back
    assert "I am the second." in back


async def test_calls_of_another_model_get_ids_that_this_one_takes(remote: Remote) -> None:
    """Mistral takes nine letters and digits, nobody takes spaces; each result stays with its call."""
    calls = tuple(ToolCall(f"toolu 01/{at} " + "x" * 60, "bash", {"command": "ls"}) for at in range(2))
    results = [ToolMessage(call.id, "bash", f"result {at}") for at, call in enumerate(calls)]
    body = await sent_body(remote, UserMessage("Go."), AssistantMessage("I look.", calls), *results)
    assert "toolu" not in body
    assert body.index("result 0") < body.index("result 1")
    again = await sent_body(remote, UserMessage("Go."), AssistantMessage("I look.", calls), *results)
    assert again == body, "the front of a conversation never changes"


async def test_calls_of_other_models_with_the_same_id_get_different_ids(remote: Remote) -> None:
    turns: list[Message] = []
    for command in ("ls one", "ls two"):  # some servers begin to count anew with each reply
        call = ToolCall("call_0", "bash", {"command": command})
        turns += [AssistantMessage("", (call,)), ToolMessage("call_0", "bash", f"did {command}")]
    body = await sent_body(remote, UserMessage("Look."), *turns)
    ids = re.findall(r'"(?:id|tool_use_id|tool_call_id|call_id|toolUseId)"\s*:\s*"([^"]+)"', body)
    if remote.kind != "google":  # which tells calls apart by their order
        assert len(set(ids)) == 2, ids
        assert sorted(ids.count(one) for one in set(ids)) == [2, 2]
    assert body.index("did ls one") < body.index("did ls two")


async def test_mistral_gets_ids_of_nine_characters_for_calls_of_other_models() -> None:
    async with connected("mistral") as remote:
        body = await sent_body(
            remote,
            UserMessage("Go."),
            AssistantMessage("", (ToolCall("toolu_01A09q90qw90lq917835lq9", "bash", {}),)),
            ToolMessage("toolu_01A09q90qw90lq917835lq9", "bash", "a.py"),
        )
    ids = re.findall(r'"(?:tool_call_id|id)":"([^"]*)"', body)
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert re.fullmatch("[a-zA-Z0-9]{9}", ids[0])


async def test_geminis_thought_signature_comes_back_with_the_call() -> None:
    async with connected("google") as remote:
        reply, body = await _answered_and_sent_back(remote, _gemini_thinks())
    assert reply.calls[0].arguments == {"command": "ls"}
    assert "c2lnPT0=" in body


_CHAT_ERRORS = (
    ("overloaded", event({"error": {"message": "boom", "type": "server_error", "code": None}})),
    ("rate_limit", event({"error": {"message": "slow", "type": "tokens", "code": "rate_limit_exceeded"}})),
)
_ERRORS_INSIDE = {
    "anthropic": (
        ("overloaded", named({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})),
        ("rate_limit", named({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}})),
    ),
    "openai": _CHAT_ERRORS,
    "openai-responses": (
        ("overloaded", named({"type": "error", "code": "server_error", "message": "boom"})),
    ),
    "google": (
        ("overloaded", event({"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}})),
        ("rate_limit", event({"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}})),
    ),
    # Its API has no error inside a stream; a server in between may write one all the same.
    "mistral": (
        ("bad_reply", event({"object": "error", "message": "busy", "type": "internal_server_error"})),
    ),
    "bedrock": (
        ("overloaded", frame("modelStreamErrorException", {"message": "boom"}, error=True)),
        ("rate_limit", frame("throttlingException", {"message": "slow"}, error=True)),
    ),
    "compatible": _CHAT_ERRORS,
}


async def test_an_error_inside_a_stream_is_classified(remote: Remote) -> None:
    whole = WIRES[remote.kind].reply(Sent(text=("Hello, ", "I will ", "look.")))
    for code, error in _ERRORS_INSIDE[remote.kind]:
        remote.server.say(Answer(headers=whole.headers, pieces=(*whole.pieces[:3], error)))
        failure = await check_failure(remote.model)
        assert (failure.code, failure.retryable) == (code, True)


async def test_exhausted_quota_is_not_retried() -> None:
    async with connected("openai") as remote:
        remote.server.say(
            WIRES["openai"].error(429, "insufficient_quota", "You exceeded your current quota.")
        )
        failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("quota", False)


async def test_the_key_travels_in_one_header_and_nowhere_else(remote: Remote) -> None:
    body = await sent_body(remote, UserMessage("Go."))
    [asked] = remote.server.asked
    if remote.kind == "bedrock":
        assert KEY not in str(asked.headers), "what is secret signs and is not sent"
        return
    found = {name: value.removeprefix("Bearer ") for name, value in asked.headers.items() if KEY in value}
    assert found == {WIRES[remote.kind].key_header: KEY}
    assert KEY not in asked.path
    assert KEY not in body


@pytest.mark.parametrize("kind", CATALOG)
async def test_the_usual_model_of_each_provider_can_be_asked(kind: str) -> None:
    call = SentCall("c", "bash", ('{"command": "ls"}',))
    usual = CATALOG[kind].model.replace(FIRST_LISTED, "some-model")
    async with connected(kind, usual) as remote:
        remote.server.say(WIRES.get(kind, CHAT).reply(Sent(text=("Ok.",), calls=(call,), ending="tools")))
        reply = await check_reply(remote.model)
    assert (reply.text, reply.stop) == ("Ok.", "tools")


async def test_a_key_of_bedrock_is_not_sent_over_plain_http() -> None:
    async with open_model_server() as server:
        plain = Endpoint("bedrock", "test-model", server.url, KEY, Amazon("us-east-1"))
        async with open_remote(plain) as model:
            await check_failure(model, secret=KEY)
        assert server.asked == []


async def test_claude_gets_cache_marks() -> None:
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


PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


async def test_images_are_sent_with_messages_and_tool_results(remote: Remote) -> None:
    body = await sent_body(
        remote,
        UserMessage("Look at this.", (Image(PICTURE, "image/png"),)),
        AssistantMessage("I take one myself.", (CALL,)),
        ToolMessage("call_1", "bash", "a screenshot", (Image(PICTURE[::-1], "image/png"),)),
    )
    for picture in (PICTURE, PICTURE[::-1]):
        encoded = (base64.b64encode(picture).decode(), base64.urlsafe_b64encode(picture).decode())
        assert any(form in body for form in encoded)
    assert body.index("Look at this.") < body.index("a screenshot")


async def test_too_large_image_is_replaced_by_a_note(remote: Remote) -> None:
    large = Image(PICTURE + bytes(limits.IMAGE_BYTES), "image/png")
    body = await sent_body(remote, UserMessage("Look at this.", (large,)))
    assert "was left out: it is too large" in body
    assert len(body) < limits.IMAGE_BYTES


FORM: dict[str, object] = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["a", "b"]}, "why": {"type": "string"}},
    "required": ["verdict", "why"],
    "additionalProperties": False,
}
JUDGE = Request("Judge.", (UserMessage("Which is better?"),), (), schema=FORM)


async def test_a_reply_can_be_asked_for_in_a_form(remote: Remote) -> None:
    good = '{"verdict": "a", "why": "It is shorter."}'
    remote.server.say(WIRES[remote.kind].reply(Sent(text=(good[:9], good[9:]))))
    reply = await check_reply(remote.model, JUDGE)
    assert msgspec.json.decode(reply.text) == {"verdict": "a", "why": "It is shorter."}
    assert "verdict" in remote.server.asked[0].body.decode(), "the form is sent along"


WRONG = ("I like a.", '{"verdict": "c", "why": ""}', '{"verdict": "a"}', '{"verdict')


async def test_reply_that_violates_the_schema_is_a_retryable_failure(remote: Remote) -> None:
    for text in WRONG:
        remote.server.say(WIRES[remote.kind].reply(Sent(text=(text,))))
        failure = await check_failure(remote.model, request=JUDGE)
        assert (failure.code, failure.retryable) == ("bad_reply", True), text


async def test_a_form_in_a_code_block_is_still_a_form() -> None:
    async with connected("compatible") as remote:
        remote.server.say(
            WIRES["compatible"].reply(Sent(text=('```json\n{"verdict": "b", "why": "x"}\n```',)))
        )
        reply = (await items_of(remote.model, JUDGE))[-1]
    assert isinstance(reply, Reply)
    assert reply.text == '{"verdict": "b", "why": "x"}'


def _gpt_reasons() -> Answer:
    item: dict[str, object] = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": "c2VjcmV0",
    }
    said = WIRES["openai-responses"].reply(Sent(text=("I look.",)))
    thought = [
        named({"type": f"response.output_item.{when}", "output_index": 9, "sequence_number": 0, "item": item})
        for when in ("added", "done")
    ]
    return Answer(headers=EVENT_STREAM, pieces=(said.pieces[0], *thought, *said.pieces[1:]))


async def test_gpts_reasoning_comes_back_sealed() -> None:
    async with connected("openai-responses", "gpt-5.4") as remote:
        _, body = await _answered_and_sent_back(remote, _gpt_reasons())
    assert "c2VjcmV0" in body


def _bedrock_thinks() -> Answer:
    deltas = ({"text": "A deep thought."}, {"signature": "sig=="})
    thought = [
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": delta}})
        for delta in deltas
    ]
    stop = frame("contentBlockStop", {"contentBlockIndex": 0})
    text = frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "I look."}})
    said = WIRES["bedrock"].reply(Sent(text=("x",)))
    return Answer(headers=said.headers, pieces=(said.pieces[0], *thought, stop, text, *said.pieces[2:]))


async def test_claudes_thinking_on_bedrock_comes_back_signed() -> None:
    async with connected("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0") as remote:
        reply, body = await _answered_and_sent_back(remote, _bedrock_thinks())
    assert reply.text == "I look."
    assert "A deep thought." in body
    assert "sig==" in body


async def test_claude_on_bedrock_gets_cache_marks() -> None:
    async with connected("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0") as remote:
        assert "cachePoint" in await sent_body(remote, UserMessage("Go."))


async def test_boto3_is_imported_only_for_bedrock() -> None:
    """It is an optional dependency and slow to import."""
    code = "import sys, cloister.model.remote.providers; print(*{'boto3', 'botocore'} & set(sys.modules))"
    done = await anyio.run_process([sys.executable, "-c", code], stderr=None)
    assert done.stdout.strip() == b""
