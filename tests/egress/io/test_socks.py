"""SOCKS5 at the same door, with the same rules."""

import pytest
from anyio.abc import SocketStream
from tests.egress.world import World, echo, going, hello, listening, read_all, read_until

pytestmark = pytest.mark.anyio

GREETING = b"\x05\x01\x00"
YES = b"\x05\x00\x00\x01" + bytes(6)


def by_name(name: bytes, port: int, command: int = 1) -> bytes:
    return bytes((5, command, 0, 3, len(name))) + name + port.to_bytes(2, "big")


async def greeted(client: SocketStream) -> None:
    await client.send(GREETING)
    assert await client.receive(2) == b"\x05\x00"


async def test_a_name_is_judged_dialled_and_recorded_as_by_connect() -> None:
    world = World("example.com:22")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await greeted(client)
            await client.send(by_name(b"Example.COM.", 22) + b"hello")
            assert await read_until(client, b"hello") == YES + b"hello"
        await world.closed.wait()

    assert world.decisions == [("allow", "allow connect:example.com:22 (test)")]
    assert world.traffic == [(5, 5)]


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (by_name(b"evil.org", 443), 2),
        (by_name(b"allowed.com\0.evil.org", 443), 1),
        (by_name(b"evil.org\0.allowed.com", 443), 1),
        (by_name(b"allowed.com evil.org", 443), 1),
        (by_name(b"allowed.com%00.evil.org", 443), 1),
        (by_name(b"\xff\xfe", 443), 1),
        (by_name(b"::1", 443), 1),
        (by_name(b"127.0.0.1", 443), 2),
        (by_name(b"2130706433", 443), 2),
        (by_name(b"0x7f000001", 443), 2),
        (by_name(b"allowed.com", 0), 1),
        (by_name(b"allowed.com", 443, command=2), 7),
        (by_name(b"allowed.com", 443, command=3), 7),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb", 2),
        (b"\x05\x01\x00\x01\xa9\xfe\xa9\xfe\x00\x50", 2),
        (b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x01\xbb", 2),
        (b"\x05\x01\x00\x04" + bytes(10) + b"\xff\xff\x7f\x00\x00\x01\x01\xbb", 2),
        (b"\x05\x01\x00\x09\x00\x00", 8),
        (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00\x00", 1),
        (b"\x05\x01\x07\x03\x01a\x00\x50", 1),
    ],
)
async def test_a_hostile_request_is_refused_by_number_and_goes_nowhere(request_: bytes, reply: int) -> None:
    world = World("allowed.com")
    async with going(world) as connect, await connect() as client:
        await greeted(client)
        await client.send(request_)
        answer = await read_all(client)

    assert answer == bytes((5, reply, 0, 1)) + bytes(6)
    assert (world.resolved, world.dialled) == ([], [])


@pytest.mark.parametrize("greeting", [b"\x05\x01\x02", b"\x05\x00", b"\x05\x02\x01\x02"])
async def test_without_a_way_to_go_on_without_authentication_nothing_is_taken(greeting: bytes) -> None:
    world = World("allowed.com")
    async with going(world) as connect, await connect() as client:
        await client.send(greeting)
        assert await read_all(client) == b"\x05\xff"


async def test_socks_4_is_not_spoken() -> None:
    world = World("allowed.com")
    async with going(world) as connect, await connect() as client:
        await client.send(b"\x04\x01\x01\xbb\x00\x00\x00\x01user\x00allowed.com\x00")
        assert (await read_all(client)).startswith(b"HTTP/1.1 400 ")


async def test_a_name_without_an_address_is_unreachable() -> None:
    world = World("allowed.com")
    async with going(world) as connect, await connect() as client:
        await greeted(client)
        await client.send(by_name(b"allowed.com", 443))
        assert await read_all(client) == bytes((5, 4, 0, 1)) + bytes(6)


@pytest.mark.parametrize("opening", [hello("evil.org"), b"GET / HTTP/1.1\r\n\r\n"])
async def test_on_the_tls_port_the_tls_name_must_be_the_host_here_too(opening: bytes) -> None:
    world = World("allowed.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("allowed.com", port)
        async with await connect() as client:
            await greeted(client)
            await client.send(by_name(b"allowed.com", 443) + opening)
            await client.send_eof()
            assert await read_all(client) == YES
        await world.closed.wait()

    assert world.traffic == [(0, 0)]
