"""Cloister as an MCP server over HTTP, with the official client: tokens, roles, errors and the audit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from tests.server.conftest import Served

from cloister.app.mcp.tools import TOOLS
from cloister.core.events import AskRaised, PromptReceived
from cloister.core.requests import Role

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def speaking(served: Served, token: str | None = None) -> AsyncGenerator[ClientSession]:
    headers = {"Authorization": f"Bearer {token or served.token}"}
    url = f"http://127.0.0.1:{served.port}/mcp"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as client,
        streamable_http_client(url, http_client=client) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


async def token_of(served: Served, role: Role) -> str:
    made = await served.client.post("/v1/tokens", json={"name": f"a-{role}", "role": role})
    return made.json()["token"]


def text_of(result: types.CallToolResult) -> str:
    (part,) = result.content
    assert isinstance(part, types.TextContent)
    return part.text


async def test_the_tools_are_listed_and_a_run_is_followed_and_steered(served: Served) -> None:
    fence = await served.claimed_run("Fix the sums.")
    run = fence.run
    async with speaking(served) as session:
        listed = (await session.list_tools()).tools
        assert [tool.name for tool in listed] == [tool.name for tool in TOOLS]
        assert all(tool.input_schema["type"] == "object" for tool in listed)
        assert run in text_of(await session.call_tool("run_list", {}))
        await session.call_tool("run_say", {"run": run, "text": "Use integers."})
        ask = AskRaised("ask-1", 0, "bash: git push", "git push", 9e9, rule="ask push:* (p:1)")
        await served.app.backbone.append(fence, (ask,))
        heard: list[str] = []

        async def told(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message or "")

        followed = text_of(await session.call_tool("run_follow", {"run": "last"}, progress_callback=told))
        assert "Use integers." in followed
        assert "asks [ask-1]: bash: git push (ask push:* (p:1))" in followed
        assert any("Use integers." in line for line in heard)
        wrong = await session.call_tool("run_answer", {"run": run, "answer": "maybe"})
        assert (wrong.is_error, text_of(wrong)[:13]) == (True, "bad_arguments")
        done = await session.call_tool("run_answer", {"run": run, "answer": "deny"})
        assert not done.is_error
        assert "asks [" not in text_of(await session.call_tool("run_status", {"run": run}))
    events = await served.app.backbone.read(run)
    (said,) = [event.body for event in events if isinstance(event.body, PromptReceived)]
    assert (said.text, said.who) == ("Use integers.", "tester")


async def test_the_key_of_a_run_cannot_be_that_of_a_triggers_run(served: Served) -> None:
    async with speaking(served) as session:
        asked = {"prompt": "p", "repo": "/nowhere", "key": "trigger ask nightly 1"}
        refused = await session.call_tool("run_start", asked)
    assert (refused.is_error, text_of(refused)[:12]) == (True, "bad_request:")


async def test_roles_hold_and_mistakes_are_sentences(served: Served) -> None:
    fence = await served.claimed_run()
    viewer, operator = await token_of(served, "viewer"), await token_of(served, "operator")
    async with speaking(served, viewer) as session:
        assert fence.run in text_of(await session.call_tool("run_list", {}))
        for name, arguments in (
            ("run_stop", {"run": "last"}),
            ("run_start", {"prompt": "p", "repo": "/nowhere"}),
            ("sandbox_create", {}),
        ):
            refused = await session.call_tool(name, arguments)
            assert refused.is_error
            assert text_of(refused).startswith("denied: ")
        missing = await session.call_tool("run_status", {"run": "r-none"})
        assert text_of(missing).startswith("no_such_run: ")
        assert "no tool" in text_of(await session.call_tool("rm_rf", {}))
        extra = await session.call_tool("run_list", {"limit": 5, "more": 1})
        assert text_of(extra).startswith("bad_arguments: run_list: ")
    async with speaking(served, operator) as session:
        assert not (await session.call_tool("run_stop", {"run": "last"})).is_error
        assert text_of(await session.call_tool("sandbox_exec", {"sandbox": "s", "command": "id"})).startswith(
            "denied"
        )


async def test_a_stranger_a_page_of_another_site_and_a_large_request_are_refused(served: Served) -> None:
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    kinds = {"Accept": "application/json, text/event-stream"}
    no_token = await served.client.post("/mcp", json=ask, headers={"Authorization": "", **kinds})
    assert no_token.status_code == 401
    other = await served.client.post("/mcp", json=ask, headers={"Origin": "https://evil.example", **kinds})
    assert other.status_code == 403
    large = await served.client.post("/mcp", content=b"x" * 2_000_000, headers=kinds)
    assert large.status_code == 413
    assert (await served.client.get("/mcp", headers=kinds)).status_code == 405
    assert (await served.client.post("/mcp", content=b"[" * 100_000, headers=kinds)).status_code == 400
