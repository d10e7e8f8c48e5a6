"""The model endpoint: programs with the providers' own clients, through a real door, without a key."""

import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from anyio.abc import SocketAttribute, SocketStream
from tests.egress.world import entering, read_all

from cloister.core import limits
from cloister.core.ids import SandboxId
from cloister.core.requests import ToolCall, Usage
from cloister.egress.http.connection import Offer, read_head
from cloister.egress.model_endpoint.serve import HOST, Endpoint, status_of
from cloister.egress.proxy import Door
from cloister.egress.rules import DoorEvent
from cloister.egress.streams import Inlet
from cloister.model.api import AssistantMessage, Failure, Reply, TextDelta, ToolMessage, UserMessage
from cloister.policy.api import Action, Decision
from cloister.testing.models import SayingModel

pytestmark = pytest.mark.anyio

SANDBOX = SandboxId("s-test0000")
CALL = ToolCall("call-1", "weather", {"city": "Bern", "days": 2})
USAGE = Usage(30, 7, 10)
TEXT = (TextDelta("Hello "), TextDelta("there."), Reply("Hello there.", (), USAGE))
CALLS = (TextDelta("Let me look."), Reply("Let me look.", (CALL,), USAGE, "tools"))
SPENT = (Failure("budget", "The run's budget of 100 tokens is spent."),)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def sdk(name: str) -> Any:
    """A provider's client. Each takes seconds to import, and every worker collects this file."""
    return import_module(name)


def deny(action: Action) -> Decision:
    return Decision("deny", "nothing is allowed here")


async def record(sandbox: SandboxId, body: DoorEvent) -> None:
    raise AssertionError("the endpoint is no connection")


@asynccontextmanager
async def serving(model: SayingModel | None) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client as programs inside have one: their only way is the door, whose rules allow nothing."""
    door = Door(deny, record, offer=Offer(inside={HOST: Endpoint(lambda _: model).serve}))
    async with through(door, SANDBOX) as client:
        yield client


@asynccontextmanager
async def through(door: Door, sandbox: SandboxId) -> AsyncGenerator[httpx2.AsyncClient]:
    async def serve(client: SocketStream) -> None:
        await door.serve(sandbox, client)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        proxy = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with httpx2.AsyncClient(proxy=proxy, timeout=20) as client:
            yield client
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def by_openai(*said: tuple[Any, ...]) -> AsyncGenerator[tuple[Any, SayingModel]]:
    model = SayingModel(*said)
    async with serving(model) as http:
        yield (
            sdk("openai").AsyncOpenAI(
                api_key="none", base_url=f"http://{HOST}/v1", http_client=http, max_retries=0
            ),
            model,
        )


@asynccontextmanager
async def by_anthropic(
    *said: tuple[Any, ...],
) -> AsyncGenerator[tuple[Any, SayingModel]]:
    model = SayingModel(*said)
    async with serving(model) as http:
        yield (
            sdk("anthropic").AsyncAnthropic(
                api_key="none", base_url=f"http://{HOST}", http_client=http, max_retries=0
            ),
            model,
        )


async def test_chat_completions_answer_with_text_and_usage() -> None:
    async with by_openai(TEXT) as (client, model):
        found = await client.chat.completions.create(
            model="gpt-x",
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            temperature=0.5,
        )
    assert found.choices[0].message.content == "Hello there."
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (30, 7)
    (asked,) = model.asked
    assert (asked.system, asked.messages, asked.temperature) == ("Be brief.", (UserMessage("Hi"),), 0.5)


async def test_chat_completions_stream_text_and_calls() -> None:
    async with by_openai(CALLS) as (client, _):
        stream = await client.chat.completions.create(
            model="gpt-x",
            messages=[{"role": "user", "content": "Weather?"}],
            tools=[{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    texts = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    calls = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or ()]
    assert "".join(texts) == "Let me look."
    assert calls[0].function is not None
    assert msgspec.json.decode(calls[0].function.arguments or "") == CALL.arguments
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 37


async def test_stream_without_usage_has_a_choice_in_every_chunk() -> None:
    async with by_openai(TEXT) as (client, _):
        stream = await client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        assert all([chunk.choices async for chunk in stream])


async def test_chat_completions_carry_calls_and_their_results_back() -> None:
    async with by_openai(TEXT) as (client, model):
        await client.chat.completions.create(
            model="x",
            messages=[
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call-1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city": "Bern", "days": 2}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call-1", "content": "Sun."},
            ],
        )
    assert model.asked[0].messages[1:] == (
        AssistantMessage("", (CALL,)),
        ToolMessage("call-1", "weather", "Sun."),
    )


async def test_responses_answer_with_text_and_with_calls() -> None:
    async with by_openai(TEXT, CALLS) as (client, model):
        first = await client.responses.create(model="x", input="Hi", instructions="Be brief.")
        second = await client.responses.create(
            model="x",
            input=[{"role": "user", "content": "Weather?"}],
            tools=[{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}],
        )
    assert first.output_text == "Hello there."
    assert first.usage is not None
    assert first.usage.input_tokens_details.cached_tokens == 10
    assert model.asked[0].system == "Be brief."
    assert model.asked[1].tools[0].name == "weather"
    call = second.output[-1]
    assert call.type == "function_call"
    assert (call.call_id, msgspec.json.decode(call.arguments)) == ("call-1", CALL.arguments)


async def test_responses_stream_what_the_client_can_put_together() -> None:
    async with by_openai(CALLS) as (client, _), client.responses.stream(model="x", input="Hi") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 1
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["message", "function_call"]


async def test_responses_carry_calls_and_their_results_back() -> None:
    async with by_openai(TEXT) as (client, model):
        await client.responses.create(
            model="x",
            input=[
                {"role": "user", "content": "Weather?"},
                {
                    "type": "function_call",
                    "call_id": "call-1",
                    "name": "weather",
                    "arguments": '{"city":"Bern","days":2}',
                },
                {"type": "function_call_output", "call_id": "call-1", "output": "Sun."},
            ],
        )
    assert model.asked[0].messages[1:] == (
        AssistantMessage("", (CALL,)),
        ToolMessage("call-1", "weather", "Sun."),
    )


async def test_messages_answer_with_text_and_usage() -> None:
    async with by_anthropic(TEXT) as (client, model):
        found = await client.messages.create(
            model="claude-x",
            max_tokens=500,
            system="Be brief.",
            messages=[{"role": "user", "content": "Hi"}],
        )
    assert [block.text for block in found.content if block.type == "text"] == ["Hello there."]
    assert (found.usage.input_tokens, found.usage.cache_read_input_tokens) == (20, 10)
    assert (model.asked[0].system, model.asked[0].max_tokens) == ("Be brief.", 500)


async def test_messages_stream_what_the_client_can_put_together() -> None:
    async with (
        by_anthropic(CALLS) as (client, _),
        client.messages.stream(
            model="claude-x",
            max_tokens=500,
            messages=[{"role": "user", "content": "Weather?"}],
            tools=[{"name": "weather", "input_schema": {"type": "object"}}],
        ) as stream,
    ):
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    block = final.content[1]
    assert block.type == "tool_use"
    assert (block.id, block.input, final.stop_reason) == ("call-1", CALL.arguments, "tool_use")


async def test_messages_carry_pictures_calls_and_their_results_back() -> None:
    async with by_anthropic(TEXT) as (client, model):
        await client.messages.create(
            model="x",
            max_tokens=10,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                        },
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "call-1", "name": "weather", "input": CALL.arguments}
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "call-1", "content": "Sun."}],
                },
            ],
        )
    first, *rest = model.asked[0].messages
    assert isinstance(first, UserMessage)
    assert first.images[0].media_type == "image/png"
    assert rest == [AssistantMessage("", (CALL,)), ToolMessage("call-1", "weather", "Sun.")]


async def test_a_spent_budget_stops_each_client_at_once() -> None:
    async with by_openai(SPENT, SPENT) as (client, _):
        with pytest.raises(sdk("openai").APIStatusError) as chat:
            await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(sdk("openai").APIStatusError) as responses:
            await client.responses.create(model="x", input="Hi", stream=True)
    async with by_anthropic(SPENT) as (client, _):
        with pytest.raises(sdk("anthropic").APIStatusError) as messages:
            await client.messages.create(
                model="x", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
            )
    for error in (chat.value, responses.value, messages.value):
        assert error.status_code == 402
        assert "budget" in str(error)


async def test_a_stream_that_breaks_says_so_in_the_stream() -> None:
    broken = (TextDelta("Hel"), Failure("network", "The provider hung up.", retryable=True))
    async with by_openai(broken) as (client, _):
        stream = await client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        with pytest.raises(sdk("openai").APIError, match="hung up"):
            _ = [chunk async for chunk in stream]


async def test_what_a_provider_thinks_of_our_key_is_none_of_the_guests_business() -> None:
    assert {status_of(code) for code in ("auth", "quota", "network")} == {502}
    assert status_of("budget") == 402


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/chat/completions", b'{"messages": []}', 400),
        ("/v1/chat/completions", b'{"messages": [{"role": "wizard", "content": "x"}]}', 400),
        ("/v1/chat/completions", b"[" * 100_000, 400),
        ("/v1/responses", b'{"input": "x", "previous_response_id": "resp_1"}', 400),
        ("/v1/messages", b'{"messages": [{"role": "user", "content": [{"type": "document"}]}]}', 400),
        ("/v1/embeddings", b"{}", 404),
        ("/v1/messages/count_tokens", b"{}", 400),
        ("/v1x/messages", b"{}", 404),
        ("/v1/v1/messages", b"{}", 404),
    ],
)
async def test_what_cannot_be_understood_is_refused_in_one_sentence(
    path: str, body: bytes, status: int
) -> None:
    model = SayingModel()
    async with serving(model) as http:
        found = await http.post(f"http://{HOST}{path}", content=body)
    assert found.status_code == status
    assert found.json()["error"]["message"].endswith(".")
    assert model.asked == []


async def test_a_request_that_never_ends_growing_is_cut_off() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield b"x" * 1_000_000

    async with serving(SayingModel()) as http:
        try:
            found = await http.post(f"http://{HOST}/v1/messages", content=endless())
            assert found.status_code == 413
        except httpx2.TransportError:
            pass  # the answer was there, and the client was still sending


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", "too_large"),
        ("/v1/responses", "too_large"),
        ("/v1/messages", "request_too_large"),
    ],
)
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(path: str, kind: str) -> None:
    door = Door(deny, record, offer=Offer(inside={HOST: Endpoint(lambda _: SayingModel()).serve}))
    size = limits.ENDPOINT_BODY_BYTES + 1
    async with entering(door) as connect, await connect() as client:
        head = f"POST http://{HOST}{path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {size}\r\n\r\n"
        await client.send(head.encode())
        head, _, body = (await read_all(client)).decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 413 ")
    assert msgspec.json.decode(body)["error"]["type"] == kind


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    "filling",
    [b"[],", b"{},", b"0,", b'"",', b'{"role":"user","content":""},', b'{"a":[[]]},'],
)
@pytest.mark.parametrize("place", ["unknown", "messages", "schema", "arguments"])
async def test_a_request_takes_a_few_times_its_size_in_memory(path: str, filling: bytes, place: str) -> None:
    size = limits.ENDPOINT_BODY_BYTES // 4
    many = b"[" + filling * (size // len(filling)) + b"0]"
    body = {
        "unknown": b'{"messages": [{"role": "user", "content": "x"}], "input": "x", "more": %s}' % many,
        "messages": b'{"messages": %s, "input": %s}' % (many, many[:-2] + b"0]"),
        "schema": b'{"messages": [], "input": "x", "tools": [{"type": "function", "name": "x", "input_schema": {"a": %s},'
        b' "parameters": {"a": %s}, "function": {"name": "x", "parameters": {"a": %s}}}]}'
        % (many, b"0", b"0"),
        "arguments": b'{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"a": %s}}]}],'
        b' "input": [{"type": "function_call", "arguments": %s}]}'
        % (many, msgspec.json.encode(many.decode())),
    }[place]
    model = SayingModel()
    tracemalloc.start()
    try:
        async with serving(model) as http:
            found = await http.post(f"http://{HOST}{path}", content=body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.status_code, found.json()["error"]["message"][-1]) == (400, ".")
    assert peak < 8 * len(body)
    assert model.asked == []


async def test_model_is_listed_and_a_sandbox_without_one_gets_503() -> None:
    async with serving(SayingModel()) as http:
        listed = (await http.get(f"http://{HOST}/v1/models")).json()
    assert listed["data"][0]["id"] == "saying:model"
    async with serving(None) as http:
        assert (await http.get(f"http://{HOST}/v1/models")).status_code == 503


HELLO = {"model": "any", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}


async def test_only_so_many_are_answered_at_a_time_and_none_is_lost() -> None:
    """Each may hold a large body in memory: more than a few at a time could use up the machine's."""
    until = anyio.Event()
    model = SayingModel(*[TEXT] * limits.ENDPOINT_CALLS, until=until)
    codes: list[int] = []
    async with serving(model) as http, anyio.create_task_group() as tasks:

        async def ask() -> None:
            codes.append((await http.post(f"http://{HOST}/v1/messages", json=HELLO)).status_code)
            if codes == [429]:
                until.set()

        for _ in range(limits.ENDPOINT_CALLS + 1):
            tasks.start_soon(ask)
    assert codes == [429, *[200] * limits.ENDPOINT_CALLS]


async def test_calls_that_cost_nothing_because_they_fail_have_an_end_too() -> None:
    failing = (Failure("bad_request", "The provider does not take this."),)
    model = SayingModel(*[failing] * limits.ENDPOINT_FAILURES, TEXT)
    async with serving(model) as http:
        for _ in range(limits.ENDPOINT_FAILURES):
            found = await http.post(f"http://{HOST}/v1/messages", json=HELLO)
            assert (found.status_code, "does not take" in found.text) == (400, True)
        found = await http.post(f"http://{HOST}/v1/messages", json=HELLO)
    assert (found.status_code, "no more are made" in found.text) == (400, True)
    assert len(model.asked) == limits.ENDPOINT_FAILURES


async def test_a_sandbox_that_takes_all_it_may_leaves_the_others_of_its_door_theirs() -> None:
    """Forks have one door: attempts of a tournament must not take each other's places, nor their failures."""
    until, all_asked = anyio.Event(), anyio.Event()
    failing = (Failure("bad_request", "The provider does not take this."),)
    crowd = SayingModel(*[TEXT] * limits.ENDPOINT_CALLS, until=until)
    failed = SayingModel(*[failing] * limits.ENDPOINT_FAILURES)
    modest = SayingModel(TEXT)
    models = {"s-crowd": crowd, "s-failed": failed, "s-modest": modest}
    door = Door(deny, record, offer=Offer(inside={HOST: Endpoint(lambda name: models[name]).serve}))

    async def ask(http: httpx2.AsyncClient) -> int:
        return (await http.post(f"http://{HOST}/v1/messages", json=HELLO)).status_code

    async with AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(through(door, SandboxId(name))) for name in models]

        async def crowding() -> None:
            assert await ask(one) in (200, 429)
            all_asked.set()

        tasks = await stack.enter_async_context(anyio.create_task_group())
        for _ in range(limits.ENDPOINT_CALLS + 1):
            tasks.start_soon(crowding)
        for _ in range(limits.ENDPOINT_FAILURES):
            assert await ask(two) == 400
        await all_asked.wait()  # the one that had no place
        assert await ask(three) == 200
        until.set()


async def test_large_requests_of_one_sandbox_wait_for_each_other() -> None:
    until = anyio.Event()
    model = SayingModel(TEXT, TEXT, until=until)
    large = {**HELLO, "system": "x" * (limits.ENDPOINT_BODY_BYTES - 1_000)}
    codes: list[int] = []
    async with serving(model) as http, anyio.create_task_group() as tasks:

        async def ask() -> None:
            codes.append((await http.post(f"http://{HOST}/v1/messages", json=large)).status_code)
            if codes == [429]:
                until.set()

        for _ in range(3):
            tasks.start_soon(ask)
    assert codes == [429, 200, 200]


async def test_a_program_that_does_not_read_its_answer_is_hung_up_on() -> None:
    """Else it would hold a call to the provider, and what that may cost, for as long as it likes."""
    model = SayingModel(tuple(TextDelta("x" * 60_000) for _ in range(500)))
    endpoint = Endpoint(lambda _: model, send_seconds=0.2)
    over = anyio.Event()

    async def serve(stream: SocketStream) -> None:
        client = Inlet(stream)
        with pytest.raises(anyio.BrokenResourceError):
            await endpoint.serve(SANDBOX, await read_head(client), client)
        over.set()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(SocketAttribute.local_port)
        async with await anyio.connect_tcp("127.0.0.1", port) as silent:
            body = msgspec.json.encode(HELLO | {"stream": True})
            head = f"POST http://{HOST}/v1/messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
            await silent.send(head.encode() + body)
            with anyio.fail_after(20):
                await over.wait()
        tasks.cancel_scope.cancel()
