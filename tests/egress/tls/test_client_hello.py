"""The greeting of TLS: which name it asks for, and what it may hide."""

import pytest
from anyio import EndOfStream
from anyio.abc import ByteReceiveStream
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.egress.world import World, echo, going, hello, listening, read_all, read_until

from cloister.egress.tls import NotTls, hides_a_name, receive_hello

pytestmark = pytest.mark.anyio


PLAIN = hello("example.com")


class Coming(ByteReceiveStream):
    """Bytes that come one by one, or as many as asked for."""

    def __init__(self, data: bytes, step: int = 65_536) -> None:
        self._data = data
        self._step = step

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        if not self._data:
            raise EndOfStream
        size = min(self._step, max_bytes)
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    async def aclose(self) -> None:
        return None


def with_extension(data: bytes, kind: int, value: bytes = b"\0" * 32) -> bytes:
    """A ClientHello in one record with one more extension."""
    message = data[5:]
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    more = kind.to_bytes(2, "big") + len(value).to_bytes(2, "big") + value
    extensions = message[at + 2 :] + more
    body = message[4:at] + len(extensions).to_bytes(2, "big") + extensions
    return in_records(b"\x01" + len(body).to_bytes(3, "big") + body, 16_000)


def in_records(message: bytes, size: int) -> bytes:
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


@pytest.mark.parametrize("step", [1, 7, 65_536])
@pytest.mark.parametrize("size", [100, 16_000])
async def test_the_name_is_found_however_the_greeting_is_cut(step: int, size: int) -> None:
    data = in_records(hello("example.com")[5:], size)
    assert await receive_hello(Coming(data, step)) == (data, "example.com")


async def test_a_greeting_in_too_many_pieces_is_none() -> None:
    with pytest.raises(NotTls):
        await receive_hello(Coming(in_records(hello("example.com")[5:], 4)))


async def test_a_name_that_is_not_text_is_no_name_and_no_noise() -> None:
    data = hello("example.com").replace(b"example.com", b"ex\xff\xfeple.com")
    with pytest.raises(NotTls):
        await receive_hello(Coming(data))


def test_a_hidden_name_is_seen_and_a_plain_greeting_hides_none() -> None:
    assert not hides_a_name(hello("example.com"))
    assert not hides_a_name(with_extension(hello("example.com"), 0x1234))
    assert hides_a_name(with_extension(hello("example.com"), 0xFE0D))
    assert hides_a_name(with_extension(hello("example.com"), 0xFE0D, b""))


@pytest.mark.parametrize("outer", ["example.com", "front.test", None])
async def test_a_greeting_with_an_encrypted_one_within_reaches_no_server(outer: str | None) -> None:
    world = World("example.com")
    async with listening(echo) as port, going(world) as connect:
        world.has("example.com", port)
        async with await connect() as client:
            await client.send(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            await read_until(client, b"\r\n\r\n")
            await client.send(with_extension(hello(outer), 0xFE0D))
            assert await read_all(client) == b""
        await world.closed.wait()

    assert [effect for effect, _ in world.decisions] == ["allow", "deny"]
    assert world.traffic == [(0, 0)]


async def test_a_plain_request_to_the_tls_port_goes_nowhere() -> None:
    world = World("example.com")
    async with going(world) as connect, await connect() as client:
        await client.send(b"GET http://example.com:443/ HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
        assert (await read_all(client)).startswith(b"HTTP/1.1 400 ")
    assert world.resolved == []


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(0, 500))
def test_any_bytes_hide_a_name_or_not_and_nothing_breaks(data: bytes, at: int) -> None:
    hides_a_name(data)
    hides_a_name(PLAIN[:at] + data + PLAIN[at:])
