"""Clients of harnesses: typed and grouped tools, tunnels, requests without a proxy, short paths, sizes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.egress.model_endpoint.test_endpoint import (
    HELLO,
    SANDBOX,
    TEXT,
    by_anthropic,
    by_openai,
    deny,
    record,
    serving,
)
from tests.egress.world import entering, read_all

from cloister.core.requests import ToolCall, Usage
from cloister.egress.http.connection import Offer
from cloister.egress.http.head import HERE
from cloister.egress.model_endpoint.serve import HOST, Endpoint, hosts
from cloister.egress.proxy import Door
from cloister.model.api import AssistantMessage, Reply, ToolMessage
from cloister.testing.models import SayingModel

pytestmark = pytest.mark.anyio

PATCH = ToolCall("call-1", "apply_patch", {"input": "*** Begin Patch"})
SPAWN = ToolCall("call-2", "multi_agent_v1__spawn_agent", {"task": "look"})
BOTH = (Reply("", (PATCH, SPAWN), Usage(30, 7), "tools"),)
TOOLS = [
    {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False},
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Agents.",
        "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}}],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Apply a patch.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"},
    },
    {"type": "web_search", "external_web_access": False},
    {"type": "shell_of_the_future", "name": "shell"},
]


async def test_responses_take_the_tools_of_a_harness_and_call_each_as_it_has_it() -> None:
    model = SayingModel(BOTH, BOTH)
    body = {"model": "x", "input": "Go.", "tools": TOOLS}
    async with serving(model) as http:
        found = (await http.post(f"http://{HOST}/v1/responses", json=body)).json()
        streamed = await http.post(f"http://{HOST}/v1/responses", json={**body, "stream": True})
    asked = model.asked[0].tools
    assert [one.name for one in asked] == ["shell", "multi_agent_v1__spawn_agent", "apply_patch"]
    assert "start: begin" in asked[2].description
    assert asked[2].parameters["required"] == ["input"]
    patch, spawn = found["output"]
    assert (patch["type"], patch["name"], patch["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin Patch",
    )
    assert (spawn["type"], spawn["namespace"], spawn["name"]) == (
        "function_call",
        "multi_agent_v1",
        "spawn_agent",
    )
    events = [
        msgspec.json.decode(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["custom_tool_call", "function_call"]
    assert [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"] == [
        "*** Begin Patch"
    ]


async def test_responses_take_back_the_calls_of_grouped_and_free_form_tools() -> None:
    model = SayingModel(TEXT)
    items = [
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "custom_tool_call", "call_id": "call-1", "name": "apply_patch", "input": "*** Begin Patch"},
        {
            "type": "function_call",
            "call_id": "call-2",
            "namespace": "multi_agent_v1",
            "name": "spawn_agent",
            "arguments": '{"task":"look"}',
        },
        {"type": "custom_tool_call_output", "call_id": "call-1", "output": "Done."},
        {"type": "function_call_output", "call_id": "call-2", "output": "Seen."},
    ]
    async with serving(model) as http:
        found = await http.post(f"http://{HOST}/v1/responses", json={"input": items, "tools": TOOLS})
    assert found.status_code == 200
    assert model.asked[0].messages[1:] == (
        AssistantMessage("", (PATCH, SPAWN)),
        ToolMessage("call-1", "apply_patch", "Done."),
        ToolMessage("call-2", "multi_agent_v1__spawn_agent", "Seen."),
    )


async def test_chat_takes_free_form_tools_and_leaves_hosted_ones_out() -> None:
    call = (Reply("", (PATCH,), Usage(30, 7), "tools"),)
    async with by_openai(call, TEXT) as (client, model):
        tools = [
            {"type": "custom", "custom": {"name": "apply_patch", "description": "Apply a patch."}},
            {"type": "web_search"},
        ]
        first = await client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Go."}], tools=tools
        )
        made = first.choices[0].message.tool_calls[0]
        await client.chat.completions.create(
            model="x",
            messages=[
                {"role": "user", "content": "Go."},
                {"role": "assistant", "tool_calls": [made.model_dump()]},
                {"role": "tool", "tool_call_id": made.id, "content": "Done."},
            ],
            tools=tools,
        )
    assert (made.type, made.custom.input) == ("custom", "*** Begin Patch")
    assert [one.name for one in model.asked[0].tools] == ["apply_patch"]
    assert model.asked[1].messages[1:] == (
        AssistantMessage("", (PATCH,)),
        ToolMessage("call-1", "apply_patch", "Done."),
    )


async def test_messages_leave_tools_that_a_provider_runs_out() -> None:
    async with by_anthropic(TEXT) as (client, model):
        await client.messages.create(
            model="x",
            max_tokens=9,
            messages=[{"role": "user", "content": "Hi"}],
            tools=[
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                {"type": "custom", "name": "look", "input_schema": {"type": "object"}},
            ],
        )
    assert [one.name for one in model.asked[0].tools] == ["look"]


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages", "/messages/"])
async def test_paths_work_without_the_version(path: str) -> None:
    async with serving(SayingModel(TEXT)) as http:
        found = await http.post(f"http://{HOST}{path}", json={**HELLO, "input": "hi"})
    assert (found.status_code, "Hello there." in found.text) == (200, True)


async def test_tokens_are_counted_without_asking_the_model() -> None:
    async with by_anthropic() as (client, model):
        messages = [{"role": "user", "content": "x" * 4_000}]
        counted = await client.messages.count_tokens(model="x", messages=messages)
    assert 900 < counted.input_tokens < 1_500
    assert model.asked == []


async def test_a_model_is_described_with_its_context_window_under_any_name() -> None:
    async with by_openai() as (client, model):
        found = await client.models.retrieve("gpt-x")
        listed = await client.models.list()
    assert (found.id, found.context_window) == ("gpt-x", model.window)
    assert [(one.id, one.context_window) for one in listed.data] == [(model.name, model.window)]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/v1"])
async def test_a_client_that_looks_whether_the_endpoint_is_there_finds_it(method: str, path: str) -> None:
    async with serving(SayingModel()) as http:
        found = await http.request(method, f"http://{HOST}{path}")
    assert (found.status_code, bool(found.content)) == (200, method == "GET")


def door(model: SayingModel) -> Door:
    return Door(deny, record, offer=Offer(inside=hosts(lambda _: model)))


@asynccontextmanager
async def tunnelled(model: SayingModel, first: bytes) -> AsyncGenerator[tuple[bytes, bytes]]:
    """The answers to `first`, and to a request that follows it in the same connection."""
    async with entering(door(model)) as connect, await connect() as client:
        await client.send(first)
        begun = await client.receive()
        body = msgspec.json.encode(HELLO)
        if b" 200 " in begun or begun == b"\5\0":
            if begun == b"\5\0":
                name = HOST.encode()
                await client.send(b"\5\1\0\3" + bytes([len(name)]) + name + (80).to_bytes(2, "big"))
                begun = await client.receive()
            head = f"POST /v1/messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
            await client.send(head.encode() + body)
        yield begun, await read_all(client)


async def test_a_client_that_tunnels_plain_http_too_reaches_the_endpoint() -> None:
    """Node's `fetch` does, with a proxy from the environment."""
    connect = f"CONNECT {HOST}:80 HTTP/1.1\r\nHost: {HOST}:80\r\n\r\n".encode()
    async with tunnelled(SayingModel(TEXT), connect) as (begun, answer):
        assert begun.startswith(b"HTTP/1.1 200 ")
        assert b"Hello there." in answer
    async with tunnelled(SayingModel(TEXT), b"\5\1\0") as (begun, answer):
        assert begun[:2] == b"\5\0"
        assert b"Hello there." in answer


async def test_a_tunnel_for_tls_gets_the_address_in_plain_http() -> None:
    connect = f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode()
    async with tunnelled(SayingModel(), connect) as (begun, _):
        assert begun.startswith(b"HTTP/1.1 400 ")
        assert f"use http://{HOST}/".encode() in begun


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_client_without_a_proxy_reaches_the_endpoint_on_the_loopback(name: str) -> None:
    model = SayingModel(TEXT)
    async with entering(door(model)) as connect, await connect() as client:
        body = msgspec.json.encode(HELLO)
        head = f"POST /v1/messages HTTP/1.1\r\nHost: {name}:3128\r\nContent-Length: {len(body)}\r\n\r\n"
        await client.send(head.encode() + body)
        assert b"Hello there." in await read_all(client)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1.evil.test\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\n\r\n",
        b"GET /v1/models HTTP/1.0\r\n\r\n",
    ],
)
async def test_a_request_for_another_server_is_refused_by_the_proxy(head: bytes) -> None:
    async with entering(door(SayingModel())) as connect, await connect() as client:
        await client.send(head)
        assert b" 400 " in await read_all(client)


async def test_the_loopback_of_the_host_is_not_the_loopback_of_the_sandbox() -> None:
    """Asked of the proxy by name, it is a host like any other: the policy judges it."""
    asked: list[str] = []
    offer = Offer(inside={HERE: Endpoint(lambda name: asked.append(name)).serve})
    async with entering(Door(deny, record_any, offer=offer)) as connect, await connect() as client:
        await client.send(b"GET http://127.0.0.1:3128/v1/models HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n")
        assert b" 403 " in await read_all(client)
    assert asked == []


async def record_any(sandbox: object, body: object) -> None:
    assert sandbox == SANDBOX


async def test_without_a_service_there_the_proxy_has_no_pages_of_its_own() -> None:
    async with entering(Door(deny, record)) as connect, await connect() as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n")
        assert b"This is a proxy" in await read_all(client)
