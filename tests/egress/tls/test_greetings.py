"""TLS clients at the door: greetings that are late, cut, large or missing, and the TLS that real clients speak."""

import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from anyio import BrokenResourceError
from anyio.abc import ByteReceiveStream, ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSAttribute, TLSStream
from tests.egress.tls.test_client_hello import in_records
from tests.egress.world import (
    CONNECT,
    ESTABLISHED,
    World,
    echo,
    going,
    hello,
    listening,
    over_tls,
    read_all,
    read_until,
    scripted,
    secure_going,
)

from cloister.core import limits
from cloister.core.requests import DoorBounds
from cloister.egress.tls import NotTls, receive_hello

pytestmark = pytest.mark.anyio

Connect = Callable[[], Awaitable[SocketStream]]
HELLO = hello("example.com")
ALLOWED = ("allow", "allow connect:example.com (test)")
NOT_TLS = ("deny", "port 443 carries TLS, and this is not")
LATE = ("deny", "no TLS greeting in 0.2 seconds")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def tunnel(connect: Connect) -> SocketStream:
    client = await connect()
    await client.send(CONNECT % (443, 443))
    assert await read_until(client, b"\r\n\r\n") == ESTABLISHED
    return client


async def stall(connect: Connect) -> None:
    """Send part of a greeting and wait until the door gives up: then `head_seconds` have passed."""
    async with await tunnel(connect) as client:
        await client.send(HELLO[:100])
        assert await read_all(client) == b""


async def test_a_client_that_is_late_with_its_first_byte_is_served() -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world, DoorBounds(head_seconds=0.2)) as connect:
        world.has("example.com", port)
        async with await connect() as before_connect, await tunnel(connect) as before_greeting:
            await stall(connect)
            await before_connect.send(CONNECT % (443, 443) + HELLO)
            assert await read_until(before_connect, HELLO[-20:]) == ESTABLISHED + HELLO
            await before_greeting.send(HELLO)
            assert await read_until(before_greeting, HELLO[-20:]) == HELLO

    assert sorted(world.decisions) == [ALLOWED] * 3 + [LATE]


async def test_a_client_of_a_host_whose_requests_are_read_may_be_late_too() -> None:
    world = World("request:GET example.com/**")
    serve = over_tls(world, "example.com", scripted([], OK))
    async with listening(serve) as port, secure_going(world, DoorBounds(head_seconds=0.2)) as connect:
        world.has("example.com", port)
        async with await connect("example.com") as late, await connect("example.com") as stalled:
            await stalled.send(b"GET / HTTP/1.1\r\n")
            assert await read_all(stalled) == b""
            await late.send(b"GET /page HTTP/1.1\r\nHost: example.com\r\n\r\n")
            assert (await read_until(late, b"ok")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("count", "step"), [(20, 1), (250, 40), (250, 500)])
@pytest.mark.parametrize("record_bytes", [50, 16_000])
async def test_hundreds_of_clients_greet_in_pieces_at_once(count: int, step: int, record_bytes: int) -> None:
    world = World("example.com")
    opening = in_records(HELLO[5:], record_bytes)
    everyone = anyio.Event()
    open_tunnels = 0

    async def greet(connect: Connect) -> None:
        nonlocal open_tunnels
        async with await tunnel(connect) as client:
            open_tunnels += 1
            if open_tunnels == count:
                everyone.set()
            await everyone.wait()
            for at in range(0, len(opening), step):
                await client.send(opening[at : at + step])
            assert await read_until(client, opening[-20:]) == opening

    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(greet, connect)

    assert world.decisions == [ALLOWED] * count


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("sent", [0, 1, 5, 100], ids=lambda sent: f"{sent} bytes")
async def test_a_client_that_leaves_before_its_greeting_is_complete_is_not_refused(
    sent: int, reset: bool
) -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        async with await tunnel(connect) as client:
            await client.send(HELLO[:sent])
            if reset:
                raw = client.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await world.closed.wait()

    assert world.decisions == [ALLOWED]
    assert world.traffic == [(0, 0)]


async def test_a_silent_client_is_closed_as_idle_and_not_refused() -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world, DoorBounds(idle_seconds=0.1)) as connect:
        world.has("example.com", port)
        async with await connect() as wordless:
            assert await read_all(wordless) == b""
        async with await tunnel(connect) as client:
            assert await read_all(client) == b""
        await world.closed.wait()

    assert world.decisions == [ALLOWED]
    assert world.traffic == [(0, 0)]


async def test_silent_clients_are_bounded_in_number() -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world, DoorBounds(connections=3)) as connect:
        world.has("example.com", port)
        silent = [await tunnel(connect) for _ in range(2)] + [await connect()]
        async with await connect() as one_more:
            await one_more.send(CONNECT % (443, 443))
            assert (await read_all(one_more)).startswith(b"HTTP/1.1 503 ")
        for client in silent:
            await client.aclose()


async def test_a_greeting_that_begins_and_does_not_end_is_cut_off() -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world, DoorBounds(head_seconds=0.2)) as connect:
        world.has("example.com", port)
        await stall(connect)

    assert world.decisions == [ALLOWED, LATE]
    assert world.traffic == [(0, 0)]


WRONG = [
    b"G",
    b"\x15",
    b"\x80",
    b"\x16G",
    b"\x16\x02",
    b"\x16\x03\x01\x00\x00",
    b"\x16\x03\x01\x40\x01",
    b"\x16\x03\x01\x02\x00\x02",
    b"\x16\x03\x01\x02\x00\x01\x01",
    b"\x16\x03\x01\x00\x04\x01\x00\x02\x00G",
    b"\x16\x03\x01\x00\x04\x01\x00\x02\x00\x17",
]


@pytest.mark.parametrize("wrong", WRONG, ids=bytes.hex)
async def test_what_is_not_tls_is_refused_at_its_first_wrong_byte(wrong: bytes) -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        async with await tunnel(connect) as client:
            await client.send(wrong[:-1])
            await client.send(wrong[-1:])
            # The client stays open and says no more.
            assert await read_all(client) == b""
        await world.closed.wait()

    assert world.decisions == [ALLOWED, NOT_TLS]
    assert world.traffic == [(0, 0)]


class Fed(ByteReceiveStream):
    """A stream that returns the given pieces, and fails a reader that wants more."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return self._pieces.pop(0)

    async def aclose(self) -> None:
        return None


def extended(changed: dict[int, Callable[[bytes], bytes]], first: bytes = b"") -> bytes:
    """The greeting with some extensions rewritten, and `first` in front of all extensions."""
    message = HELLO[5:]
    at = 4 + 2 + 32
    at += 1 + message[at]
    suites = 2 + int.from_bytes(message[at : at + 2], "big")
    grease = (suites).to_bytes(2, "big") + b"\x1a\x1a" + message[at + 2 : at + suites]
    begun = message[4:at] + grease
    at += suites
    begun += message[at : at + 1 + message[at]]
    at += 1 + message[at]
    extensions, rest = first, message[at + 2 :]
    while rest:
        kind, size = struct.unpack("!HH", rest[:4])
        value, rest = rest[4 : 4 + size], rest[4 + size :]
        if kind == 21:  # padding is only for small greetings
            continue
        value = changed.get(kind, bytes)(value)
        extensions += struct.pack("!HH", kind, len(value)) + value
    body = begun + len(extensions).to_bytes(2, "big") + extensions
    return in_records(b"\x01" + len(body).to_bytes(3, "big") + body, 16_000)


def prefixed(value: bytes, first: bytes) -> bytes:
    """A list with a length of two bytes, and one more entry in front."""
    return (len(value) - 2 + len(first)).to_bytes(2, "big") + first + value[2:]


GROUPS, KEY_SHARE, VERSIONS = 10, 51, 43
POST_QUANTUM = struct.pack("!HH", 0x11EC, 1_216) + bytes(range(256)) * 4 + bytes(192)
GREASE_SHARE = struct.pack("!HH", 0x2A2A, 1) + b"\0"
BROWSER = extended(
    {
        GROUPS: lambda value: prefixed(value, b"\x2a\x2a\x11\xec"),
        KEY_SHARE: lambda value: prefixed(value, GREASE_SHARE + POST_QUANTUM),
        VERSIONS: lambda value: bytes((len(value) + 1,)) + b"\x3a\x3a" + value[1:],
    },
    first=b"\x4a\x4a\x00\x00",
)
"""As browsers and recent clients greet: GREASE everywhere, and a post-quantum key share that fills two packets."""
TICKET = extended({35: lambda _: bytes(range(256)) * 40})
"""A session ticket of 10 KB, as servers issue that keep a client's certificates in it."""


@pytest.mark.parametrize("opening", [BROWSER, TICKET], ids=["post-quantum and GREASE", "large ticket"])
@pytest.mark.parametrize("step", [1, 1_380, 65_536])
async def test_large_greetings_pass_however_they_are_cut(opening: bytes, step: int) -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        async with await tunnel(connect) as client:
            for at in range(0, len(opening), step):
                await client.send(opening[at : at + step])
            assert await read_until(client, opening[-20:]) == opening

    assert len(opening) > 1_460
    assert world.decisions == [ALLOWED]


async def test_early_data_behind_a_cut_greeting_counts_towards_no_limit() -> None:
    early = b"\x17\x03\x03\x3f\xf0" + bytes(16_368)
    rest = HELLO[300:] + early
    pieces = (HELLO[:300], rest[: limits.DOOR_HEAD_BYTES])
    assert await receive_hello(Fed(*pieces)) == (b"".join(pieces), "example.com")


async def test_a_greeting_over_the_limit_is_refused_before_it_has_arrived() -> None:
    begun = b"\x16\x03\x01\x40\x00\x01" + (limits.DOOR_HEAD_BYTES + 1).to_bytes(3, "big")
    with pytest.raises(NotTls):
        await receive_hello(Fed(begun))


def trusting(world: World) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=world.authority.pem.decode())


async def handshake(
    connect: Connect, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, bytes]:
    """A TLS client in a tunnel. Return its connection and the reply to one request."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="example.com", session=session)
    async with await tunnel(connect) as client:

        async def until_done(step: Callable[[], bytes | int | None]) -> bytes | int | None:
            while True:
                try:
                    done = step()
                except ssl.SSLWantReadError:
                    done = None
                    await client.send(outgoing.read()) if outgoing.pending else None
                    incoming.write(await client.receive())
                    continue
                await client.send(outgoing.read()) if outgoing.pending else None
                return done

        await until_done(tls.do_handshake)
        await until_done(lambda: tls.write(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"))
        reply = b""
        while not reply.endswith(b"ok"):
            reply += bytes(await until_done(lambda: tls.read(4_096)) or b"")
    return tls, reply


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
async def test_both_versions_of_tls_pass_and_resume_their_sessions(version: ssl.TLSVersion) -> None:
    world = World("example.com")
    context = trusting(world)
    context.minimum_version = context.maximum_version = version
    async with listening(over_tls(world, "example.com", scripted([], OK))) as port, going(world) as connect:
        world.has("example.com", port)
        first, reply = await handshake(connect, context)
        second, again = await handshake(connect, context, first.session)

    assert reply == again == OK
    assert (first.version(), first.session_reused) == (version.name.replace("_", "."), False)
    assert second.session_reused
    assert world.decisions == [ALLOWED] * 2


async def test_http2_is_negotiated_in_a_tunnel() -> None:
    world = World("example.com")
    serving = world.authority.context("example.com")
    serving.set_alpn_protocols(["h2", "http/1.1"])
    asking = trusting(world)
    asking.set_alpn_protocols(["h2", "http/1.1"])
    async with listening(over_tls(world, "example.com", scripted([], OK))) as port, going(world) as connect:
        world.has("example.com", port)
        async with await tunnel(connect) as client:
            secure = await TLSStream.wrap(client, hostname="example.com", ssl_context=asking)
            assert secure.extra(TLSAttribute.alpn_protocol) == "h2"


async def test_where_requests_are_read_a_client_that_offers_http2_gets_http1() -> None:
    world = World("request:GET example.com/**")
    serve = over_tls(world, "example.com", scripted([], OK))
    async with listening(serve) as port, secure_going(world, alpn=["h2", "http/1.1"]) as connect:
        world.has("example.com", port)
        async with await connect("example.com") as client:
            assert client.extra(TLSAttribute.alpn_protocol) == "http/1.1"
            await client.send(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
            assert (await read_until(client, b"ok")).startswith(b"HTTP/1.1 200 ")


async def test_each_side_of_a_tunnel_may_end_first_while_the_other_goes_on() -> None:
    async def serve(stream: ByteStream) -> None:
        """End first, then read to the end, and tell what came."""
        async with stream:
            await stream.send(b"all I say")
            await stream.send_eof()
            heard.append(await read_all(stream))

    heard: list[bytes] = []
    world = World("example.com")
    async with listening(serve) as port, going(world) as connect:
        world.has("example.com", port)
        async with await tunnel(connect) as client:
            await client.send(HELLO)
            assert await read_all(client) == b"all I say"
            await client.send(b" and more")
        await world.closed.wait()
    assert heard == [HELLO + b" and more"]


async def test_idle_tunnels_take_no_turn_from_a_busy_one() -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        idle = [await tunnel(connect) for _ in range(limits.DOOR_CONNECTIONS - 1)]
        async with await tunnel(connect) as busy:
            await busy.send(HELLO)
            assert await read_until(busy, HELLO[-20:]) == HELLO
        for client in idle:
            with suppress(BrokenResourceError):
                await client.send(HELLO)
            assert await read_until(client, HELLO[-20:]) == HELLO
            await client.aclose()

    assert world.decisions == [ALLOWED] * limits.DOOR_CONNECTIONS
