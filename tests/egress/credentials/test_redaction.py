"""The redactor reveals a secret to nobody who does not know all of it: not by sizes, not by order, not by timing."""

import ssl
import string
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import anyio.lowlevel
import msgspec
import pytest
from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.egress.world import ESTABLISHED, PUBLIC, SANDBOX, World, read_until

from cloister.core.requests import CredentialEntry
from cloister.egress.authority import Authority
from cloister.egress.credentials import Keeper, Redactor, Vault, read_credentials, spellings
from cloister.egress.http.connection import Offer
from cloister.egress.http.exchange import Exchange
from cloister.egress.http.head import parse_head
from cloister.egress.proxy import Door
from cloister.egress.rules import Outside
from cloister.egress.streams import Inlet, Pace, Traffic

pytestmark = pytest.mark.anyio

HOST = "api.test"
FIRST = "ghp_q7Rk2Lw9Zx4Vn8Bt6Ys1Dc3Fh5Jm0Pg"
SECOND = "correct horse battery staple, and /more+of=it"
ALPHABET = string.ascii_letters + string.digits + "_"

Framing = Literal["chunked", "length", "close"]


class Line(ByteStream):
    """One end of a connection in memory. Each item arrives as it was sent, so that nothing depends on a scheduler."""

    def __init__(self, mine: deque[bytes], theirs: deque[bytes]) -> None:
        self._mine = mine
        self._theirs = theirs
        self._left = b""
        self.heard: list[bytes] = []
        """Each item as it arrived."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while not self._left:
            while not self._mine:
                await anyio.lowlevel.checkpoint()
            self._left = self._mine.popleft()
            if not self._left:
                raise EndOfStream
            self.heard.append(self._left)
        data, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        self._theirs.append(item)

    async def send_eof(self) -> None:
        self._theirs.append(b"")

    async def aclose(self) -> None:
        self._theirs.append(b"")


def line() -> tuple[Line, Line]:
    here, there = deque[bytes](), deque[bytes]()
    return Line(here, there), Line(there, here)


def records(heard: list[bytes]) -> list[int]:
    """The sizes of the TLS records in what arrived, by their headers."""
    data = b"".join(heard)
    sizes: list[int] = []
    while data:
        sizes.append(5 + int.from_bytes(data[3:5], "big"))
        data = data[sizes[-1] :]
    return sizes


def answer(framing: Framing, pieces: list[bytes]) -> Iterator[bytes]:
    """An honest server's reply that consists of stored bytes, in these pieces."""
    match framing:
        case "chunked":
            yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            yield from (b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
            yield b"0\r\n\r\n"
        case "length":
            yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sum(map(len, pieces))
            yield from pieces
        case "close":
            yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
            yield from pieces


class Watched:
    """A program inside that has a server return bytes of its choice, and sees all that a network shows."""

    def __init__(self, secret: str | None, framing: Framing) -> None:
        self._framing: Framing = framing
        self._world = World(HOST)
        self._world.names[HOST] = [PUBLIC]
        entry = msgspec.convert({"name": "forge", "from": "env:TOKEN", "host": HOST}, CredentialEntry)
        vault = Vault({} if secret is None else {"TOKEN": secret})
        outside = Outside(self._world.resolve, self._dial, self._world.outside.trust)
        self._door = Door(
            self._world.decide,
            self._world.record,
            outside=outside,
            offer=Offer(Keeper(read_credentials((entry,), "test"), vault)),
        )
        self._pieces: list[bytes] = []
        self._client: TLSStream | None = None
        self._raw: Line | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Watched"]:
        async with anyio.create_task_group() as self._tasks:
            yield self
            self._tasks.cancel_scope.cancel()

    async def _dial(self, address: str, port: int) -> ByteStream:
        near, far = line()
        self._tasks.start_soon(self._secure, far)
        return near

    async def _secure(self, far: Line) -> None:
        context = self._world.authority.context(HOST)
        async with await TLSStream.wrap(
            far, server_side=True, ssl_context=context, standard_compatible=False
        ) as stream:
            with suppress(EndOfStream):
                await self._serve(stream)

    async def _serve(self, stream: ByteStream) -> None:
        while True:
            await read_until(stream, b"\r\n\r\n")
            for piece in answer(self._framing, self._pieces):
                await stream.send(piece)
            if self._framing == "close":
                return

    async def _connect(self) -> TLSStream:
        self._raw, theirs = line()
        self._tasks.start_soon(self._door.serve, SANDBOX, theirs)
        await self._raw.send(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        assert await read_until(self._raw, b"\r\n\r\n") == ESTABLISHED
        trust = ssl.create_default_context(cadata=self._door.authority.pem.decode())
        return await TLSStream.wrap(self._raw, hostname=HOST, ssl_context=trust, standard_compatible=False)

    async def ask(self, *pieces: bytes) -> tuple[list[bytes], list[int]]:
        if self._client is None or self._framing == "close":
            self._client = await self._connect()
        assert self._raw is not None
        self._pieces = list(pieces)
        await self._client.send(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        parts: list[bytes] = []
        end = b"0\r\n\r\n" if self._framing == "chunked" else b"\n.\n"
        try:
            while not b"".join(parts).endswith(end):
                parts.append(await self._client.receive())
                if len(parts) == 1:
                    self._raw.heard.clear()  # session tickets come before the head of a first reply
        except (EndOfStream, BrokenResourceError):
            pass
        return parts, records(self._raw.heard)


Ask = Callable[[bytes, bytes, bytes], Awaitable[tuple[list[bytes], list[int]]]]
"""Have these pieces returned; what arrives, as it arrives, and the sizes of the records that carry it."""


async def guessing(ask: Ask, requests: int) -> list[tuple[list[bytes], list[int]]]:
    """What an adaptive attacker sees: it extends its guess by the letter that looks different from the others."""
    seen: list[tuple[list[bytes], list[int]]] = []
    known = ""
    while len(seen) < requests:
        looks: dict[str, list[str]] = {}
        for letter in ALPHABET:
            parts, sizes = await ask(f"stored: {known}{letter}".encode(), b"!" * 5, b"\n.\n")
            seen.append((parts, sizes))
            looks.setdefault(str((list(map(len, parts)), sizes)), []).append(letter)
        odd = min(looks.values(), key=len)
        known = (known + odd[len(seen) // 7 % len(odd)])[-40:]
    return seen


class Session:
    """The server's side of a TLS session as the proxy has it, without a connection."""

    def __init__(self) -> None:
        authority, self._out, inlet = Authority(), ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = authority.context(HOST).wrap_bio(inlet, self._out, server_side=True)
        trust = ssl.create_default_context(cadata=authority.pem.decode())
        back = ssl.MemoryBIO()
        client = trust.wrap_bio(back, inlet, server_hostname=HOST)
        for _ in range(4):
            for end in (client, self._end):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
            back.write(self._out.read())

    def records(self, items: list[bytes]) -> list[int]:
        """The sizes of the records that carry these items, each sent as the proxy sends it."""
        for item in items:
            self._end.write(item)
        return records([self._out.read()])


async def relayed(secret: str | None, framing: Framing) -> Ask:
    redacted = spellings(secret) if secret else ()
    session = Session()

    async def ask(*pieces: bytes) -> tuple[list[bytes], list[int]]:
        (client, inside), (server, far) = line(), line()
        for item in answer(framing, list(pieces)):
            await far.send(item)
        await far.send_eof()
        head = parse_head(b"GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n")
        pace = Pace(60, anyio.current_time() + 60)
        await Exchange(Inlet(client), Inlet(server), Traffic(), pace, Redactor(redacted)).run(head, b"")
        await client.send_eof()
        with suppress(EndOfStream):
            while True:
                await inside.receive()
        return inside.heard, session.records(inside.heard)

    return ask


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_ten_thousand_adapted_guesses_look_the_same_whatever_the_secret_is(framing: Framing) -> None:
    seen = await guessing(await relayed(FIRST, framing), 10_000)
    assert seen == await guessing(await relayed(SECOND, framing), 10_000)
    assert all(sum(sizes) > sum(map(len, items)) for items, sizes in seen)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_the_sizes_of_tls_records_are_the_same_whatever_the_secret_is(framing: Framing) -> None:
    saw: list[list[tuple[list[bytes], list[int]]]] = []
    for secret in (FIRST, SECOND, None):
        async with Watched(secret, framing).open() as watched:
            rounds = 1 if framing == "close" else 2  # there each request takes a handshake of its own
            saw.append(await guessing(watched.ask, len(ALPHABET) * rounds))
    assert all(sizes for _, sizes in saw[0])
    assert saw[0] == saw[1] == saw[2]


PLAIN = st.text(ALPHABET + " %&\"'/\\+=<>~!", min_size=8, max_size=60)


@settings(deadline=None)
@given(PLAIN, PLAIN, st.lists(st.binary(max_size=80) | st.integers(0, 300), max_size=12), st.data())
def test_two_redactors_differ_only_where_a_whole_secret_is(
    first: str, second: str, stream: list[bytes | int], data: st.DataObject
) -> None:
    needles = sorted({*spellings(first), *spellings(second)})
    pieces: list[bytes] = []
    for piece in stream:
        if isinstance(piece, int):  # a part of a secret, in one of its spellings
            needle = data.draw(st.sampled_from(needles))
            piece = needle[piece % 3 : 1 + piece % len(needle)]
        pieces.append(piece)
    assume(not any(needle in b"".join(pieces) for needle in needles))
    one, other, none = Redactor(spellings(first)), Redactor(spellings(second)), Redactor(())
    told = [(one.feed(piece), other.feed(piece), none.feed(piece)) for piece in pieces]
    told.append((one.end(), other.end(), none.end()))
    assert all(a == b == c for a, b, c in told)
    assert b"".join(a for a, _, _ in told) == b"".join(pieces)


@pytest.mark.parametrize("size", [1, 1_000, 65_536, 262_144])
def test_a_secret_is_found_in_a_long_run_without_a_line_end_however_it_is_cut(size: int) -> None:
    longest = "'" * 8_192
    needles = spellings(longest) | spellings(FIRST)
    middle = b"x" * (5_000 if size == 1 else 150_000)
    data = middle.join([b"", *sorted(needles, key=len), b""])
    if size == 1:
        data = data[-30_000:]
    redactor = Redactor(needles)
    told = b"".join(redactor.feed(data[at : at + size]) for at in range(0, len(data), size)) + redactor.end()
    assert len(told) == len(data)
    assert told == Redactor(needles).whole(data)
    assert not any(needle in told for needle in needles)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"delta": "gh"}\n\n',
        b"INFO building gh\n",
        b"progress 50 %\r",
        b"caf\xc3\xa9",
        b"\x00\x01\x02",
    ],
)
def test_a_line_is_passed_on_at_once(line: bytes) -> None:
    redactor = Redactor(spellings(FIRST))
    assert [redactor.feed(line) for _ in range(3)] == [line] * 3


@pytest.mark.parametrize("secret", [b"", b"two\nlines", b"caf\xc3\xa9-token", b"x" * 50_000])
def test_a_secret_that_could_not_be_found_in_a_stream_is_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="printable"):
        Redactor([secret])
