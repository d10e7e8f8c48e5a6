"""Byte streams of the proxy: relay both ways with back-pressure, peek, and SOCKS5."""

from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address

import anyio
from anyio import CancelScope, EndOfStream, IncompleteRead
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteStream

from cloister.egress.quota import BROKEN, Spent

_READ_BYTES = 262_144


class Traffic:
    """Counts relayed bytes. `moved` is called with each count and may raise."""

    def __init__(self, moved: Callable[[int], None] | None = None) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self._moved = moved

    def sent(self, count: int) -> None:
        self.sent_bytes += count
        if self._moved:
            self._moved(count)

    def received(self, count: int) -> None:
        self.received_bytes += count
        if self._moved:
            self._moved(count)


class Pace:
    """A cancel scope with an idle timeout and an overall deadline."""

    def __init__(self, idle_seconds: float, ends: float) -> None:
        self.scope = CancelScope()
        self._idle_seconds = idle_seconds
        self._ends = ends
        self.moved()

    def moved(self) -> None:
        self.scope.deadline = min(anyio.current_time() + self._idle_seconds, self._ends)


class Flow:
    """Relays two directions. Both end when both sides are done, one breaks, or the connection is idle too long."""

    def __init__(self, client: ByteStream, server: ByteStream, traffic: Traffic, pace: Pace) -> None:
        self._client = client
        self._server = server
        self._traffic = traffic
        self._pace = pace

    async def tunnel(self, first: bytes) -> None:
        """Relay raw bytes. The end of one direction is passed on; the other continues."""

        async def up() -> None:
            await self._send(self._server, first, self._traffic.sent)
            await self._copy(self._client, self._server, self._traffic.sent)
            await self._server.send_eof()

        async def down() -> None:
            await self._copy(self._server, self._client, self._traffic.received)
            await self._client.send_eof()

        async def run(direction: Callable[[], Awaitable[None]]) -> None:
            try:
                await direction()
            except (*BROKEN, Spent):
                self._pace.scope.cancel()

        with self._pace.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, up)
                tasks.start_soon(run, down)

    async def _send(self, to: ByteStream, data: bytes, count: Callable[[int], None]) -> None:
        if data:
            await to.send(data)
            count(len(data))
            self._pace.moved()

    async def _copy(self, source: ByteStream, to: ByteStream, count: Callable[[int], None]) -> None:
        while True:
            try:
                data = await source.receive(_READ_BYTES)
            except EndOfStream:
                return
            self._pace.moved()
            await self._send(to, data, count)


class Inlet(BufferedByteStream):
    """A buffered stream that is read by line or length and accepts bytes back."""

    def unread(self, data: bytes) -> None:
        """Put `data` back in front of the unread bytes."""
        self._buffer[:0] = data

    async def peek(self, seconds: float) -> int:
        """Return the next byte without consuming it. Raises `EndOfStream`, also after `seconds` of silence."""
        if not self._buffer:
            with anyio.move_on_after(seconds):
                self.unread(await self.receive())
        if not self._buffer:
            raise EndOfStream
        return self._buffer[0]


# SOCKS5: no authentication, CONNECT only, a name or an address.


VERSION = 5
_CONNECT, _NO_AUTHENTICATION, _NONE_ACCEPTABLE = 1, 0, 0xFF
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

GENERAL, DENIED, UNREACHABLE, NO_COMMAND, NO_ADDRESS = 1, 2, 4, 7, 8
"""Reply codes for a failed request."""


class BadSocks(Exception):
    """The request is refused. `reply` is the SOCKS reply code."""

    def __init__(self, message: str, reply: int | None = None) -> None:
        super().__init__(message)
        self.reply = reply


async def asked(stream: BufferedByteStream) -> tuple[str, int]:
    """Read the greeting and the request. Return host and port; the host is not validated yet.

    Raises `BadSocks`. Only `answer` replies to the request.
    """
    try:
        version, count = await stream.receive_exactly(2)
        methods = await stream.receive_exactly(count) if count else b""
        if version != VERSION or _NO_AUTHENTICATION not in methods:
            await stream.send(bytes((VERSION, _NONE_ACCEPTABLE)))
            raise BadSocks("The proxy accepts SOCKS5 without authentication only.")
        await stream.send(bytes((VERSION, _NO_AUTHENTICATION)))
        version, command, reserved, kind = await stream.receive_exactly(4)
        if version != VERSION or reserved != 0:
            raise BadSocks("The SOCKS request is malformed.", GENERAL)
        host = await _host(stream, kind)
        port = int.from_bytes(await stream.receive_exactly(2), "big")
    except IncompleteRead:
        raise EndOfStream from None
    if command != _CONNECT:
        raise BadSocks("The proxy supports CONNECT only.", NO_COMMAND)
    if port == 0:
        raise BadSocks("A port is a number from 1 to 65535.", GENERAL)
    return host, port


async def _host(stream: BufferedByteStream, kind: int) -> str:
    match kind:
        case 1:
            return str(IPv4Address(await stream.receive_exactly(4)))
        case 4:
            return f"[{IPv6Address(await stream.receive_exactly(16))}]"
        case 3:
            name = await stream.receive_exactly((await stream.receive_exactly(1))[0] or 1)
            # SAFETY: a NUL or another illegal byte may end the name for one reader and not for another.
            if not _NAME_BYTES.issuperset(name):
                raise BadSocks("The host name contains illegal characters.", GENERAL)
            return name.decode("ascii").lower().removesuffix(".")
        case _:
            raise BadSocks("Unknown address type.", NO_ADDRESS)


async def answer(stream: ByteStream, reply: int) -> None:
    """Reply to the request. 0 means success."""
    await stream.send(bytes((VERSION, reply, 0, 1, 0, 0, 0, 0, 0, 0)))
