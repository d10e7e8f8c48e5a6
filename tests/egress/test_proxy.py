"""The door, with real sockets on both sides."""

import subprocess
import sys
from collections.abc import Sequence

import anyio
import httpx
import pytest
from anyio import BrokenResourceError
from anyio.abc import SocketStream
from tests.agent.loop_bench import MemoryJournal
from tests.egress.world import (
    CONNECT,
    ESTABLISHED,
    GET,
    PUBLIC,
    SANDBOX,
    World,
    ask,
    echo,
    entering,
    going,
    hello,
    listening,
    read_all,
    read_until,
    web,
)

from cloister.agent.taint import Provenance
from cloister.core import limits
from cloister.core.events import ConnectionDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds
from cloister.egress.factory import Doorway
from cloister.egress.proxy import Door
from cloister.egress.rules import DoorEvent, Outside
from cloister.policy.api import Layer, Pointed, Rule

pytestmark = pytest.mark.anyio


async def test_a_tunnel_carries_bytes_both_ways_and_its_end_is_recorded_with_counts() -> None:
    world = World("example.com:22")
    world.names["example.com"] = [PUBLIC]
    async with listening(echo) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(CONNECT % (22, 22))
            assert await read_until(client, b"\r\n\r\n") == ESTABLISHED
            await client.send(b"hello")
            assert await read_until(client, b"hello") == b"hello"
            await client.send(b"bye")
            await client.send_eof()
            assert await read_all(client) == b"bye"
        await world.closed.wait()

    assert world.decisions == [("allow", "allow connect:example.com:22 (test)")]
    assert world.traffic == [(8, 8)]
    assert world.dialled == [PUBLIC]


async def test_a_large_transfer_survives_a_reader_that_is_slow_to_start() -> None:
    payload = bytes(range(256)) * 40_000

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.send(payload)

    world = World("example.com:22")
    world.names["example.com"] = [PUBLIC]
    async with listening(serve) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(CONNECT % (22, 22))
            await client.send_eof()
            assert await read_all(client) == ESTABLISHED + payload
        await world.closed.wait()

    assert world.traffic == [(0, len(payload))]


async def test_each_request_of_a_connection_goes_on_alone_and_is_judged_alone() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    async with listening(web(seen, 5)) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        reply = await ask(
            connect,
            b"POST http://example.com/x HTTP/1.1\r\nHost: example.com\r\nProxy-Connection: keep-alive\r\n"
            b"Content-Length: 5\r\n\r\nhello"
            b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n",
        )
        await world.closed.wait()

    first, second = reply.split(b"\r\n\r\nok")
    assert (first[:12], second[:12]) == (b"HTTP/1.1 200", b"HTTP/1.1 403")
    assert seen == [
        b"POST /x HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    ]
    assert world.traffic == [(len(seen[0]), len(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))]
    assert world.decisions == [("allow", "allow connect:example.com (test)"), ("deny", "no rule allows it")]


async def test_a_body_that_comes_later_is_carried() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    async with listening(web(seen, 6)) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(b"PUT http://example.com/ HTTP/1.0\r\nContent-Length: 6\r\n\r\nabc")
            await client.send(b"def")
            assert (await read_all(client)).endswith(b"ok")

    assert seen[0].endswith(b"\r\n\r\nabcdef")


async def test_a_denied_name_is_answered_with_the_rule_and_never_looked_up() -> None:
    world = World("example.com")
    async with going(world) as connect:
        reply = await ask(connect, b"CONNECT secret.evil.org:443 HTTP/1.1\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert reply.endswith(b"\r\n\r\nsecret.evil.org:443 is denied: no rule allows it.\n")
    assert world.resolved == []
    assert world.log == [
        ConnectionDecided(SANDBOX, "secret.evil.org", 443, "deny", "no rule allows it"),
    ]


async def test_an_empty_policy_allows_nothing() -> None:
    world = World()
    async with going(world) as connect:
        assert b" 403 " in await ask(connect, GET)


async def test_a_rule_that_asks_is_a_no_for_a_connection() -> None:
    world = World("example.com")
    world.policy = (*world.policy, Layer("org", (Rule("connect:example.com", "ask"),)))
    async with going(world) as connect:
        assert b" 403 " in await ask(connect, GET)

    assert world.decisions == [("deny", "ask connect:example.com: a connection cannot wait for a person")]


@pytest.mark.parametrize(
    "host",
    [
        "0xA9FEA9FE",
        "2852039166",
        "0251.0376.0251.0376",
        "169.254.43518",
        "169.16689662",
        "0xa9.0xfe.0xa9.0xfe",
        "127.1",
        "0",
        "0x7f.1",
        "017700000001",
        "127.0.0.1",
        "169.254.169.254",
        "[::1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
    ],
)
async def test_addresses_in_any_spelling_are_denied_and_recorded(host: str) -> None:
    world = World("example.com", "*.example.com")
    async with going(world) as connect:
        reply = await ask(connect, f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())

    assert reply.startswith(b"HTTP/1.1 403 ")
    assert [effect for effect, _ in world.decisions] == ["deny"]
    assert (world.resolved, world.dialled) == ([], [])


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.7"],
        ["169.254.169.254"],
        [PUBLIC, "127.0.0.1"],
        [PUBLIC, "::ffff:10.0.0.1"],
        ["::1", PUBLIC],
        ["0.0.0.0"],
        ["fe80::1%eth0"],
    ],
)
async def test_an_allowed_name_with_any_address_inside_is_denied(addresses: list[str]) -> None:
    world = World("example.com")
    world.names["example.com"] = addresses
    async with going(world) as connect:
        reply = await ask(connect, GET)

    assert reply.startswith(b"HTTP/1.1 403 ")
    assert [effect for effect, _ in world.decisions] == ["deny"]
    assert world.dialled == []


async def test_a_name_that_changes_its_address_is_dialled_where_it_was_judged() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    async with listening(web(seen)) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        assert (await ask(connect, GET)).endswith(b"ok")
        world.names["example.com"] = ["127.0.0.1"]
        assert b" 403 " in await ask(connect, GET)

    assert world.resolved == ["example.com", "example.com"]
    assert world.dialled == [PUBLIC]


async def test_a_neighbour_is_reached_when_a_rule_names_host_and_port() -> None:
    seen: list[bytes] = []
    async with listening(web(seen)) as port:
        world = World(f"git.corp.test:{port}", "*.corp.test", "wiki.corp.test")
        world.names = {"git.corp.test": ["127.0.0.1"], "wiki.corp.test": ["127.0.0.1"]}
        world.listeners["127.0.0.1"] = port
        async with going(world) as connect:
            url = f"git.corp.test:{port}"
            reply = await ask(
                connect, f"GET http://{url}/ HTTP/1.1\r\nHost: {url}\r\nConnection: close\r\n\r\n".encode()
            )
            assert reply.endswith(b"ok")
            refused = await ask(
                connect, b"GET http://wiki.corp.test/ HTTP/1.1\r\nHost: wiki.corp.test\r\n\r\n"
            )
            assert b"loopback" in refused
            assert b"connect:wiki.corp.test:80" in refused


async def test_the_metadata_service_is_not_opened_by_naming_a_host_that_points_to_it() -> None:
    world = World("metadata.test:80")
    world.names["metadata.test"] = ["169.254.169.254"]
    async with going(world) as connect:
        assert b" 403 " in await ask(connect, b"GET http://metadata.test/ HTTP/1.0\r\n\r\n")


async def test_a_layer_that_may_not_widen_opens_no_neighbour() -> None:
    world = World("127.0.0.1:80", may_widen=False)
    async with going(world) as connect:
        assert b" 403 " in await ask(connect, b"GET http://127.0.0.1/ HTTP/1.0\r\n\r\n")


async def test_with_the_real_resolver_and_dialler_a_listed_address_and_localhost_are_reached() -> None:
    seen: list[bytes] = []
    async with listening(web(seen)) as port:
        world = World(f"127.0.0.1:{port}", f"localhost:{port}")
        async with entering(Door(world.decide, world.record)) as connect:
            for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
                reply = await ask(
                    connect,
                    f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(),
                )
                assert reply.endswith(b"ok")

    assert len(seen) == 2


async def test_an_ordinary_http_client_goes_through() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]

    async def serve(client: SocketStream) -> None:
        await door.serve(SANDBOX, client)

    door = Door(world.decide, world.record, outside=Outside(world.resolve, world.dial))
    async with listening(web(seen)) as server_port, listening(serve) as door_port:
        world.listeners[PUBLIC] = server_port
        async with httpx.AsyncClient(proxy=f"http://127.0.0.1:{door_port}", timeout=10) as client:
            allowed = await client.get("http://example.com/page?q=1")
            denied = await client.get("http://evil.org/")
            with pytest.raises(httpx.ProxyError):
                await client.get("https://evil.org/")

    assert (allowed.status_code, allowed.text) == (200, "ok")
    assert (denied.status_code, denied.text) == (403, "evil.org:80 is denied: no rule allows it.\n")
    assert seen[0].startswith(b"GET /page?q=1 HTTP/1.1\r\nHost: example.com\r\n")


async def test_a_name_that_does_not_resolve_and_a_host_that_does_not_answer_are_502() -> None:
    world = World("example.com", "down.com")
    world.names["down.com"] = [PUBLIC]
    async with going(world) as connect:
        assert (await ask(connect, GET)).startswith(b"HTTP/1.1 502 ")
        assert (await ask(connect, b"CONNECT down.com:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")

    assert [type(body).__name__ for body in world.log] == ["ConnectionDecided", "ConnectionClosed"] * 2


OWN_ADDRESS = """
import socket, sys
import anyio
from tests.egress.world import World, ask, entering, hello
from cloister.egress.proxy import Door
from cloister.egress.rules import Outside

async def main():
    for address in sys.argv[1:]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 80), family=family)
        listener.settimeout(0)
        world = World("own.test")
        world.names["own.test"] = ["1.1.1.1", address]
        async with entering(Door(world.decide, world.record, outside=Outside(world.resolve))) as connect:
            for port in (80, 443):
                reply = await ask(connect, b"CONNECT own.test:%d HTTP/1.1\\r\\n\\r\\n" % port)
                print(reply.split(b"\\r\\n\\r\\n")[1].decode().strip().replace(":%d" % port, ":PORT"))
        try:
            listener.accept()
            print("dialled")
        except BlockingIOError:
            pass
        print([effect for effect, _ in world.decisions])

anyio.run(main)
"""


def test_this_machines_own_public_address_is_denied_without_dialling_whether_a_port_is_open_or_not() -> None:
    own = (PUBLIC, "2606:2800:220:1::1")
    script = "ip link set lo up; " + "".join(f"ip addr add {address} dev lo nodad; " for address in own)
    argv = ["unshare", "-n", "/bin/sh", "-ec", f'{script} exec "$@"', "sh", sys.executable, "-c"]
    ran = subprocess.run([*argv, OWN_ADDRESS, *own], capture_output=True, text=True, timeout=60, check=True)

    def denied(address: str) -> str:
        return (
            f"own.test:PORT is denied: its address {address} is this machine's; "
            "only a rule for connect:own.test:PORT can allow it."
        )

    assert ran.stdout.splitlines() == [
        line for address in own for line in (denied(address), denied(address), "['deny', 'deny']")
    ]


async def test_slow_lookups_of_one_sandbox_leave_the_other_sandboxes_theirs() -> None:
    world = World("example.com", "other.test")
    waiting = 0
    full = anyio.Event()

    async def slow(host: str, port: int) -> Sequence[str]:
        nonlocal waiting
        if host == "other.test":
            return [PUBLIC]
        waiting += 1
        if waiting == limits.DOOR_LOOKUPS:
            full.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        return None

    bounds = DoorBounds(dial_seconds=5)
    door = Door(world.decide, record, outside=Outside(slow, world.dial), bounds=bounds)
    async with listening(web([])) as port, entering(door) as connect, anyio.create_task_group() as tasks:
        world.listeners[PUBLIC] = port
        for _ in range(3 * limits.DOOR_LOOKUPS):
            tasks.start_soon(ask, connect, GET)
        await full.wait()
        await anyio.wait_all_tasks_blocked()
        assert waiting == limits.DOOR_LOOKUPS

        async def other(client: SocketStream) -> None:
            await door.serve(SandboxId("s-other000"), client)

        async with listening(other) as second:
            client = await anyio.connect_tcp("127.0.0.1", second)
            await client.send(GET.replace(b"example.com", b"other.test"))
            assert (await read_all(client)).endswith(b"ok")
            await client.aclose()
        tasks.cancel_scope.cancel()


async def test_names_are_looked_up_in_threads_of_their_own_with_all_addresses() -> None:
    assert "127.0.0.1" in await Outside().resolve("localhost", 80)
    with pytest.raises(OSError):
        await Outside().resolve("no-such-name.invalid", 80)


async def test_resolving_that_never_ends_is_cut_off() -> None:
    world = World("example.com")

    async def never(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        raise AssertionError

    door = Door(
        world.decide, world.record, outside=Outside(never, world.dial), bounds=DoorBounds(dial_seconds=0.01)
    )
    async with entering(door) as connect:
        assert (await ask(connect, GET)).startswith(b"HTTP/1.1 502 ")


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    seen: list[bytes] = []
    world = World("example.com")
    world.names["example.com"] = ["1.1.1.1", PUBLIC]
    async with listening(web(seen)) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        assert (await ask(connect, GET)).endswith(b"ok")

    assert world.dialled == ["1.1.1.1", PUBLIC]


async def test_tls_for_the_host_that_was_judged_goes_through_byte_for_byte() -> None:
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    opening = hello("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(CONNECT % (443, 443))
            await read_until(client, b"\r\n\r\n")
            await client.send(opening[:7])
            await client.send(opening[7:])
            assert await read_until(client, opening[-20:]) == opening


async def test_a_hello_sent_together_with_the_connect_is_judged_too() -> None:
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    opening = hello("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(CONNECT % (443, 443) + opening)
            assert await read_until(client, opening[-20:]) == ESTABLISHED + opening


@pytest.mark.parametrize(
    "opening",
    [
        hello("evil.org"),
        hello("a.example.com"),
        hello(None),
        b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01" + b"\xff" * 40_000,
    ],
    ids=["other", "below", "nameless", "http", "ssh", "endless"],
)
async def test_on_the_tls_port_anything_else_is_closed_before_the_server_sees_it(opening: bytes) -> None:
    arrived: list[bytes] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            arrived.append(await read_all(stream))

    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    async with listening(serve) as port, going(world) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(CONNECT % (443, 443))
            assert await read_until(client, b"\r\n\r\n") == ESTABLISHED
            try:
                await client.send(opening)
                await client.send_eof()
            except (BrokenResourceError, OSError):
                pass
            assert await read_all(client) == b""
        await world.closed.wait()

    assert b"".join(arrived) == b""
    assert [effect for effect, _ in world.decisions] == ["allow", "deny"]
    assert world.traffic == [(0, 0)]


async def test_a_listed_address_speaks_tls_without_a_name() -> None:
    world = World("127.0.0.1:443")
    opening = hello(None)
    async with listening(echo) as port, going(world) as connect:
        world.listeners["127.0.0.1"] = port
        async with await connect() as client:
            await client.send(b"CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n" + opening)
            assert await read_until(client, opening[-20:]) == ESTABLISHED + opening


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", b"400"),
        (b"GET http://example.com/ HTTP/1.1\r\nHost: evil.org\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00", b"400"),
        (b"GET http://example.com/ HTTP/1.1\r\nX: " + b"a" * 20_000, b"431"),
        (
            b"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"400",
        ),
    ],
)
async def test_malformed_requests_are_refused_and_go_nowhere(data: bytes, status: bytes) -> None:
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]
    async with going(world) as connect:
        assert (await ask(connect, data)).startswith(b"HTTP/1.1 " + status)

    assert (world.log, world.resolved) == ([], [])


async def test_a_head_that_does_not_end_is_cut_off() -> None:
    world = World("example.com")
    async with going(world, DoorBounds(head_seconds=0.01)) as connect:
        assert (await ask(connect, b"GET http://example.com/ HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_leaves_without_a_word_is_no_event() -> None:
    world = World("example.com")
    async with going(world) as connect, await connect() as client:
        await client.send_eof()
        assert await read_all(client) == b""

    assert world.log == []


async def test_a_connection_on_which_nothing_moves_is_closed() -> None:
    world = World("example.com:22")
    world.names["example.com"] = [PUBLIC]
    async with listening(echo) as port, going(world, DoorBounds(idle_seconds=0.05)) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as client:
            await client.send(CONNECT % (22, 22))
            assert await read_all(client) == ESTABLISHED
        await world.closed.wait()

    assert world.traffic == [(0, 0)]


async def test_over_the_limit_a_connection_is_refused_until_another_ends() -> None:
    world = World("example.com:22")
    world.names["example.com"] = [PUBLIC]
    async with listening(echo) as port, going(world, DoorBounds(connections=1)) as connect:
        world.listeners[PUBLIC] = port
        async with await connect() as first:
            await first.send(CONNECT % (22, 22))
            await read_until(first, b"\r\n\r\n")
            assert (await ask(connect, GET)).startswith(b"HTTP/1.1 503 ")
        await world.closed.wait()
        async with await connect() as second:
            await second.send(CONNECT % (22, 22))
            assert await read_until(second, b"\r\n\r\n") == ESTABLISHED


async def test_a_decision_that_cannot_be_recorded_is_not_acted_on() -> None:
    world = World("example.com")
    world.names["example.com"] = [PUBLIC]

    async def broken(sandbox: SandboxId, body: DoorEvent) -> None:
        raise RuntimeError("the log is gone")

    failed = anyio.Event()
    door = Door(world.decide, broken, outside=Outside(world.resolve, world.dial))

    async def serve(client: SocketStream) -> None:
        with pytest.raises(RuntimeError):
            await door.serve(SANDBOX, client)
        failed.set()

    async with listening(serve) as port:
        with anyio.fail_after(60):
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                await client.send(GET)
                assert await read_all(client) == b""
            await failed.wait()

    assert world.dialled == []


async def test_when_the_sandbox_goes_away_its_connections_end_and_are_recorded() -> None:
    world = World("example.com:22")
    world.names["example.com"] = [PUBLIC]
    async with listening(echo) as port:
        world.listeners[PUBLIC] = port
        async with going(world) as connect:
            client = await connect()
            await client.send(CONNECT % (22, 22) + b"x")
            await read_until(client, b"x")
        assert world.traffic == [(1, 1)]
        await client.aclose()


async def test_where_a_rule_says_so_anything_may_be_spoken_on_the_tls_port() -> None:
    world = World("example.com", "other.test", "raw:example.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        world.has("other.test", port, "93.184.216.35")
        for opening in (b"SSH-2.0-x\r\n", hello("another.test")):
            async with await connect() as client:
                await client.send(CONNECT % (443, 443))
                assert await read_until(client, b"\r\n\r\n") == ESTABLISHED
                await client.send(opening)
                assert await read_until(client, opening) == opening
        # The rule is for one host, and opens none.
        async with await connect() as client:
            await client.send(b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\nSSH-2.0-x\r\n")
            assert await read_all(client) == ESTABLISHED
    assert ("deny", "port 443 carries TLS, and this is not") in world.decisions


async def test_plain_http_to_the_tls_port_takes_the_same_rule() -> None:
    asked = b"GET http://example.com:443/ HTTP/1.1\r\nHost: example.com:443\r\nConnection: close\r\n\r\n"
    seen: list[bytes] = []
    world = World("example.com")
    async with listening(web(seen)) as port, going(world) as connect:
        world.has("example.com", port)
        assert (await ask(connect, asked)).startswith(b"HTTP/1.1 400 ")
        world.policy = World("example.com", "raw:example.com").policy
        assert (await ask(connect, asked)).endswith(b"ok")
    assert len(seen) == 1


async def test_after_text_from_outside_what_is_of_high_impact_does_not_pass() -> None:
    """One connection brings text in; the next one of high impact is refused, and no person is waited for."""
    world = World("example.com", "drop.test")
    high = Layer("org", high_impact=(Pointed("connect:drop.test", "policy:1"),))
    journal = MemoryJournal()

    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        await world.record(sandbox, body)
        await journal.append(body)

    read = Provenance(None, journal)
    doorway = Doorway(outside=world.outside)
    outfit = doorway.outfit((high, *world.policy), record, untrusted=lambda: read.untrusted)
    drop = GET.replace(b"example.com", b"drop.test")
    async with listening(web([])) as port, entering(outfit) as connect:
        world.has("example.com", port)
        world.has("drop.test", port, "93.184.216.35")
        assert (await ask(connect, drop)).endswith(b"ok")
        refused = await ask(connect, drop)
        assert b" 403 " in refused and b"high impact after untrusted text" in refused
        assert (await ask(connect, GET)).endswith(b"ok")
    why = "ask connect:drop.test (policy:1): high impact after untrusted text"
    assert world.decisions[1] == ("deny", f"{why}: a connection cannot wait for a person")
