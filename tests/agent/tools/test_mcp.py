"""Tools of MCP servers on stdio: calls, rules, what misbehaves, and declarations that cannot be used."""

import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from anyio.abc import ByteStream, SocketStream
from anyio.streams.tls import TLSStream
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from tests.agent.loop_bench import FIX, LoopBench, open_bench
from tests.agent.tools.mcp_server import INJECTION, WRONG_SCHEMAS
from tests.egress.world import World, listening

from cloister.agent.tools.api import Observation
from cloister.agent.tools.mcp.connection import CALL_MESSAGES, STARTS
from cloister.agent.tools.mcp.door import Way
from cloister.agent.tools.mcp.servers import McpTools, declared, of_mcp_json, of_repository
from cloister.agent.tools.toolset import ToolPlace, open_tools
from cloister.app.wiring import mcp_secrets, mcp_ways
from cloister.core.errors import Bug, UserError
from cloister.core.events import (
    ActionDecided,
    AskRaised,
    ConnectionDecided,
    RequestDecided,
    ToolReturned,
    ToolsOffered,
)
from cloister.core.requests import CredentialEntry, McpServer, NewRun
from cloister.egress.credentials import Vault, read_credentials
from cloister.egress.factory import Doorway
from cloister.policy.api import Layer, Pointed, Policy, Rule
from cloister.policy.layers import BUILT_IN

pytestmark = pytest.mark.anyio

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
SERVER = McpServer(command=(sys.executable, PROGRAM), seconds=30)


async def no_way(place: ToolPlace, server: str) -> Way:
    raise Bug("no server at an address")


def call(name: str, arguments: str = "") -> str:
    more = f", {arguments}" if arguments else ""
    return f'[[reply]]\ncalls = [{{ tool = "{name}"{more} }}]\n'


def place_of(bench: LoopBench, policy: Policy = (BUILT_IN,)) -> ToolPlace:
    return ToolPlace(0, bench.journal, bench.computer, NewRun("p", "r"), bench.bare, bench.base, policy)


async def work(
    bench: LoopBench, script: str, servers: dict[str, McpServer], policy: Policy = (BUILT_IN,)
) -> list[ToolReturned]:
    source = McpTools(servers, "config.toml", no_way)
    async with open_tools((source,), place_of(bench, policy)) as tools:
        bench.tools = tools
        await bench.work(script + FIX, policy=policy, ask_seconds=0.01)
    return [body for body in bench.journal.bodies if isinstance(body, ToolReturned)]


@pytest.fixture
async def bench(tmp_path: Path) -> LoopBench:
    return await open_bench(tmp_path)


async def test_a_tool_of_a_server_is_called_by_its_rule_and_its_text_is_untrusted(bench: LoopBench) -> None:
    calls = call("s_echo", 'text = "hi"') + call("s_picture") + call("s_slow") + call("s_refuse")
    calls += call("s_echo", "text = 3")
    rules = (BUILT_IN, Layer("host", (Rule("mcp:s.refuse*", "deny", "p:1"),)))
    echo, picture, slow, refused, wrong, *_ = await work(bench, calls, {"s": SERVER}, rules)
    assert (echo.ok, echo.text, echo.origin) == (True, "hi", "server")
    assert picture.text == "[image/png, about 3,000 bytes, not shown]\n[resource file:///a]\ninside"
    assert slow.text == "done"
    assert "s: 3 of 3 step" in str(bench.journal.deltas)
    assert refused.text == "Not allowed: deny mcp:s.refuse* (p:1)."
    assert wrong.text == "Invalid arguments of `s_echo`: text must be of the type string."
    decided = [body.action for body in bench.journal.bodies if isinstance(body, ActionDecided)]
    assert decided[0] == 'mcp:s.echo: {"text":"hi"}'
    (offered,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
    assert {one.name for one in offered.tools} >= {"s_echo", "s_bash", "s_odd_name_with_"}
    assert offered.tools[0].source == "config.toml [mcp.s]"


async def test_a_server_that_dies_hangs_or_floods_costs_its_call_and_the_next_one_works(
    bench: LoopBench,
) -> None:
    quick = McpServer(command=SERVER.command, seconds=3)
    bad = ("s_die", "s_hang", "s_flood")
    script = "".join(call(name) + call("s_echo", f'text = "after {name}"') for name in bad)
    done = await work(bench, script, {"s": quick})
    texts = [one.text for one in done[:6]]
    assert texts[1::2] == [f"after {name}" for name in bad]
    assert texts[0].startswith("The MCP server s ended.")
    assert "out of cheese" in texts[0]
    assert texts[2].startswith("The MCP server s did not answer within 3 s.")
    assert "more than 4,194,304 bytes" in texts[4]
    assert [one.ok for one in done[:6]] == [False, True] * 3


async def test_a_server_is_started_at_most_five_times(bench: LoopBench) -> None:
    done = await work(bench, call("s_die") * (STARTS + 1), {"s": SERVER})
    again = ["starts it again" in one.text for one in done[: STARTS + 1]]
    assert again == [True] * (STARTS - 1) + [False] * 2
    assert "ended 5 times and is not started again" in done[STARTS].text


async def test_a_server_that_sends_without_end_is_ended_and_the_next_call_works(bench: LoopBench) -> None:
    bad = ("s_chatter", "s_linger", "s_shout")
    script = "".join(call(name) + call("s_echo", 'text = "1"') + call("s_echo", 'text = "2"') for name in bad)
    with anyio.fail_after(60):
        done = await work(bench, script, {"s": SERVER})
    chatter, linger, shout = (done[at : at + 3] for at in (0, 3, 6))
    told = "The MCP server s ended. It sent too many messages. The next call starts it again."
    assert (chatter[0].ok, chatter[0].text) == (False, told)
    assert (linger[0].ok, shout[0].ok) == (True, True)
    # One that goes on after its answer may cost the next call too.
    assert [one[2].text for one in (chatter, linger, shout)] == ["2"] * 3
    assert len(bench.journal.deltas) <= CALL_MESSAGES + 100


async def test_a_schema_that_providers_refuse_costs_its_tool(bench: LoopBench) -> None:
    wrong = McpServer(command=(*SERVER.command, "--wrong"))
    async with open_tools((McpTools({"s": wrong}, "c", no_way),), place_of(bench)) as tools:
        assert {name for name in tools.added if name.removeprefix("s_") in WRONG_SCHEMAS} == {"s_deep"}
        assert "s_echo" in tools.added
    (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
    told = dict(zip(WRONG_SCHEMAS, event.problems, strict=False))
    for name, why in (
        ("banana", "is no JSON Schema ('banana' is not valid under any of the given schemas)"),
        ("listed", "is no JSON Schema ('n' is not of type 'array')"),
        ("spaces", "has the property 'two words': use at most 64 letters, digits, _, . and -"),
        ("either", "is not that of one object"),
        ("large", "has more than 8,192 bytes"),
    ):
        assert told[name] == f"The tool {name!r} of c [mcp.s] is left out: its schema {why}."


async def test_a_list_of_tools_that_is_not_mcp_costs_the_tools_of_its_server(bench: LoopBench) -> None:
    wrong = McpServer(command=(*SERVER.command, "--text"))
    async with open_tools((McpTools({"s": wrong, "t": SERVER}, "c", no_way),), place_of(bench)) as tools:
        assert {name.partition("_")[0] for name in tools.added} == {"t"}
    (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
    assert event.problems[0].startswith(
        "c [mcp.s]: The MCP server s sent a list of tools that is not MCP (tools.16.inputSchema.type: Input should be 'object')."
    )


async def test_a_server_can_ask_neither_the_model_nor_a_person(bench: LoopBench) -> None:
    asked, *_ = await work(bench, call("s_ask"), {"s": SERVER})
    assert asked.ok
    assert asked.text.count('"code"') == 2, asked.text
    assert "password" not in asked.text
    assert not [body for body in bench.journal.bodies if isinstance(body, AskRaised)]


async def test_what_a_server_says_gives_it_no_rights(bench: LoopBench) -> None:
    push = call("bash", 'command = "git push origin HEAD:main"')
    grave = (Pointed("tool:bash:git push*", "p:1"), Pointed("mcp:s.echo*", "p:2"))
    high = (BUILT_IN, Layer("host", high_impact=grave))
    echo = call("s_echo", 'text = "x"')
    first, injected, pushed, again, *_ = await work(
        bench, echo + call("s_inject") + push + echo, {"s": SERVER}, high
    )
    assert (first.text, again.ok) == ("x", False), "high impact counts from the first answer of a server on"
    assert (injected.text, injected.origin) == (INJECTION, "server")
    assert not pushed.ok, pushed.text
    assert [body.action for body in bench.journal.bodies if isinstance(body, AskRaised)] == [
        "bash: git push origin HEAD:main",
        'mcp:s.echo: {"text":"x"}',
    ]


async def test_a_server_on_the_host_has_its_secret_by_reference_and_cannot_repeat_it(
    bench: LoopBench, tmp_path: Path
) -> None:
    secret = 'tok-"7f31/\\b2'
    (tmp_path / "token").write_text(secret)
    check = (
        "/bin/sh",
        "-c",
        '[ ${#TOKEN} = 13 ] && printf "%s\\n" "$TOKEN" >&2 && exec "$0" "$1"',
        *SERVER.command,
    )
    places = {"s": f"file:{tmp_path}/token", "gone": "env:NO_SUCH", "odd": "vault:x"}
    servers = {
        name: McpServer(command=check, where="host", secrets={"TOKEN": place})
        for name, place in places.items()
    }
    source = McpTools(servers, "c", no_way, reveal=mcp_secrets(Vault({})))
    async with open_tools((source,), place_of(bench)) as tools:
        (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
        assert len(event.problems) == 2
        assert (
            "gone cannot be started: its secret c [mcp.gone] TOKEN has no value: the variable NO_SUCH"
            in "".join(event.problems)
        )
        echoed = await tools.added["s_echo"].run(
            bench.computer, {"text": f"<{secret}>"}, lambda stream, data: None
        )
        died = await tools.added["s_die"].run(bench.computer, {}, lambda stream, data: None)
    assert echoed.text == "<[TOKEN]>"
    assert "It printed: [TOKEN] Welcome to the server! out of cheese" in died.text


async def test_a_server_that_cannot_be_used_is_a_problem_and_the_others_work(bench: LoopBench) -> None:
    servers = {
        "missing": McpServer(command=("no-such-program",)),
        "silent": McpServer(command=("sleep", "600"), start_seconds=0.5),
        "chatty": McpServer(command=("sh", "-c", "echo not MCP at all; exit 1")),
        "s": McpServer(command=SERVER.command, tools=("echo", "no_such")),
        "on_host": McpServer(command=(sys.executable, PROGRAM), where="host"),
        "wrong": McpServer(),
    }
    async with open_tools((McpTools(servers, "c", no_way),), place_of(bench)) as tools:
        assert "s_echo" in tools.added
        assert "on_host_env" in tools.added
        assert tools.added["on_host_env"].grant is None
        assert "s_die" not in tools.added
        done = await tools.added["on_host_env"].run(bench.computer, {}, lambda stream, data: None)
    assert set(done.text.split()) <= {"HOME", "LANG", "PATH", "LC_CTYPE"}
    (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
    told = "\n".join(sorted(event.problems))
    assert "c [mcp.wrong]: give `command` or `url`." in told
    assert (
        "c [mcp.missing]: The MCP server missing cannot be started: There is no program no-such-program."
        in told
    )
    assert "The MCP server silent was not ready within 0.5 s." in told
    assert "The MCP server chatty does not speak MCP, or has ended. It printed: not MCP at all" in told
    assert "c [mcp.s] has no tool 'no_such'." in told


async def test_many_tools_of_a_server_are_searched_and_cost_little(bench: LoopBench) -> None:
    many = McpServer(command=(*SERVER.command, "--more"))
    async with open_tools((McpTools({"s": many}, "c", no_way),), place_of(bench)) as tools:
        assert len(tools.added) == 116
        assert len(tools.specs) < 12
        assert sum(len(str(spec)) for spec in tools.specs) < 12_000


async def test_the_repositorys_servers_come_from_the_base_and_stay_in_the_sandbox(tmp_path: Path) -> None:
    own = f'[mcp.own]\ncommand = ["{sys.executable}", "{PROGRAM}"]\n[mcp.host]\ncommand = ["/bin/x"]\nwhere = "host"\n'
    files = {
        "check.py": "import calc\nassert calc.add(1, 2) == 3\n",
        "calc.py": "def add(a, b):\n    return a - b\n",
        ".cloister/config.toml": own,
        ".mcp.json": f'{{"mcpServers": {{"other": {{"command": "{sys.executable}", "args": ["{PROGRAM}"]}}}}}}',
    }
    bench = await open_bench(tmp_path, files)
    async with open_tools((McpTools({}, "c", no_way),), place_of(bench)) as tools:
        assert {name.partition("_")[0] for name in tools.added} == {"own"}
    async with open_tools((McpTools({}, "c", no_way, mcp_json=True),), place_of(bench)) as tools:
        assert {name.partition("_")[0] for name in tools.added} == {"own", "other"}
    event = next(body for body in bench.journal.bodies if isinstance(body, ToolsOffered))
    at = bench.base[:12]
    assert event.problems == (
        f".cloister/config.toml@{at} [mcp.host]: only the organisation's settings may let a server run on the host.",
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (McpServer(), "give `command` or `url`"),
        (McpServer(command=("a",), url="https://x.example"), "give `command` or `url`"),
        (McpServer(url="file:///etc/passwd"), "`url` is an address"),
        (McpServer(url="https://u:p@x.example"), "`url` is an address"),
        (McpServer(url="https://x.example", grant="allow"), "only the organisation's settings may grant"),
        (McpServer(command=("a",), where="host"), "only the organisation's settings may let"),
        (McpServer(command=("a\0",)), "there is a NUL character"),
        (McpServer(command=("a",), secrets={"T": "env:T"}), "`secrets` are for a program on the host"),
    ],
)
def test_wrong_server_of_a_repository_is_named(entry: McpServer, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        declared("x", entry, "repository", "f")
    assert caught.value.message.startswith(f"f: {problem}")


def test_secrets_and_mistakes_in_files_of_other_agents_are_named() -> None:
    found, problems = of_mcp_json(
        '{"mcpServers": {"x": {"url": "https://x.example/mcp", "headers": {"A": "b"}}}}'
    )
    assert [one.entry.url for one in found] == ["https://x.example/mcp"]
    assert "headers is not used" in problems[0]
    assert of_mcp_json("[" * 100_000)[0] == []
    assert of_repository({".cloister/config.toml": "[mcp]\nx = 3\n"})[1] != []


HOST = "tickets.example.org"
SECRET = "s3cr3t-company-token-0123456789"


async def copied(source: ByteStream, into: ByteStream, end: anyio.CancelScope) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await into.send(data)
    end.cancel()


@asynccontextmanager
async def company_server(world: World) -> AsyncGenerator[list[str]]:
    """A server at `https://HOST/mcp` that wants a token; yields the paths of the requests that it refused."""
    made = MCPServer("company")

    async def ticket(number: int) -> str:
        """Look up a ticket."""
        return f"ticket {number}, by {SECRET}"

    async def dump() -> str:
        """All tickets."""
        return "x" * 100_000_000

    async def chatter(ctx: Context[Any, Any]) -> str:
        """Report progress without end."""
        for step in range(1_000_000):
            await ctx.report_progress(step, message="x")
        return "done"

    for tool in (ticket, dump, chatter):
        made.add_tool(tool)
    refused: list[str] = []
    anywhere = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = made.streamable_http_app(transport_security=anywhere)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {SECRET}".encode():
            refused.append(scope["path"])
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(guarded, log_level="critical", lifespan="on"))

        async def relay(client: SocketStream) -> None:
            context = world.authority.context(HOST)
            secure = await TLSStream.wrap(
                client, server_side=True, ssl_context=context, standard_compatible=False
            )
            async with (
                secure,
                await anyio.connect_tcp("127.0.0.1", port) as plain,
                anyio.create_task_group() as both,
            ):
                both.start_soon(copied, secure, plain, both.cancel_scope)
                both.start_soon(copied, plain, secure, both.cancel_scope)

        async with listening(relay) as secure_port, anyio.create_task_group() as tasks:
            world.has(HOST, secure_port)
            tasks.start_soon(server.serve, [listener])
            yield refused
            server.should_exit = True
            tasks.cancel_scope.cancel()


async def test_a_server_at_an_address_is_reached_through_the_proxy_with_a_credential(
    bench: LoopBench,
) -> None:
    world = World()
    async with company_server(world) as refused:
        entry = CredentialEntry("company", "env:TOKEN", HOST, header="Authorization: Bearer {}")
        vault = Vault({"TOKEN": SECRET})
        doorway = Doorway(credentials=read_credentials((entry,), "c"), vault=vault, outside=world.outside)
        servers = {"co": McpServer(url=f"https://{HOST}/mcp", grant="allow", start_seconds=20)}
        source = McpTools(servers, "c", mcp_ways(doorway))
        async with open_tools((source,), place_of(bench)) as tools:  # no rule allows the connection
            assert list(tools.added) == []
        (event,) = [body for body in bench.journal.bodies if isinstance(body, ToolsOffered)]
        assert f"The connection to {HOST}:443 was denied: no rule allows it." in event.problems[0]
        rules = (Rule(f"connect:{HOST}", "allow", "p:1"), Rule("credential:company", "allow", "p:2"))
        policy = (BUILT_IN, Layer("host", rules, may_widen=True))
        async with open_tools((source,), place_of(bench, policy)) as tools:
            assert list(tools.added) == ["co_ticket", "co_dump", "co_chatter"]

            async def called(name: str, **arguments: Any) -> Observation:
                return await tools.added[name].run(bench.computer, arguments, lambda stream, data: None)

            done = await called("co_ticket", number=7)
            flood, chatter = await called("co_dump"), await called("co_chatter")
            again = await called("co_ticket", number=8)
        assert (done.ok, done.text) == (True, f"ticket 7, by {'*' * len(SECRET)}")
        assert not flood.ok and flood.text.startswith("The MCP server co ended."), flood.text[:300]
        assert not chatter.ok and "too many messages" in chatter.text, chatter.text[:300]
        assert again.ok, again.text
        assert refused == []
    bodies = bench.journal.bodies
    decided = [body for body in bodies if isinstance(body, ConnectionDecided)]
    assert {(body.sandbox, body.effect) for body in decided} == {("mcp:co", "deny"), ("mcp:co", "allow")}
    assert any(body.credential == "company" for body in bodies if isinstance(body, RequestDecided))
    assert SECRET not in str(bodies)
