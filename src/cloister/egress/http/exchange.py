"""One HTTP request and its reply, relayed between two connections that may both be reused."""

import re
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import anyio
import msgspec
from anyio import DelimiterNotFound, EndOfStream, IncompleteRead
from anyio.streams.buffered import BufferedByteReceiveStream

from cloister.egress.credentials import Redactor
from cloister.egress.http.head import BadReply, Framing, Head, Reply, parse_reply, reply_head
from cloister.egress.quota import BROKEN, Refused, Spent
from cloister.egress.streams import Inlet, Pace, Traffic

# Bodies with a length, chunked, or until the connection closes. Chunks are parsed strictly.


READ_BYTES = 262_144
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t\x20-\x7e]*)?")
_LINE_BYTES = 4_096
_TRAILERS = 32


class BadBody(Exception):
    """The body does not match its head."""


async def pieces(
    stream: BufferedByteReceiveStream, framing: Framing, *, strict: bool
) -> AsyncIterator[bytes]:
    """Yield a body without its chunk framing. Raises `BadBody`; `strict` refuses chunk extensions and trailers."""
    if framing == "chunked":
        async for piece in _chunked(stream, strict=strict):
            yield piece
        return
    left = None if framing == "close" else framing
    while left is None or left > 0:
        try:
            data = await stream.receive(READ_BYTES if left is None else min(left, READ_BYTES))
        except EndOfStream:
            if left is None:
                return
            raise BadBody("The body ended before its length.") from None
        if left is not None:
            left -= len(data)
        yield data


async def _chunked(stream: BufferedByteReceiveStream, *, strict: bool) -> AsyncIterator[bytes]:
    while size := await _size(stream, strict=strict):
        async for piece in pieces(stream, size, strict=strict):
            yield piece
        if await _exactly(stream, 2) != b"\r\n":
            raise BadBody("A chunk is longer than its stated size.")
    for _ in range(_TRAILERS):
        line = await _line(stream)
        if not line:
            return
        if strict:
            raise BadBody("Trailers are not supported here.")
    raise BadBody("A body has too many trailers.")


async def _size(stream: BufferedByteReceiveStream, *, strict: bool) -> int:
    found = _SIZE.fullmatch(await _line(stream))
    if found is None or (strict and (found[2] or found[0] != found[1])):
        raise BadBody("The size of a chunk is malformed.")
    return int(found[1], 16)


async def _line(stream: BufferedByteReceiveStream) -> bytes:
    try:
        return await stream.receive_until(b"\r\n", _LINE_BYTES)
    except DelimiterNotFound:
        raise BadBody("A line between chunks is too long.") from None
    except IncompleteRead:
        raise BadBody("The body ended before its last chunk.") from None


async def _exactly(stream: BufferedByteReceiveStream, count: int) -> bytes:
    try:
        return await stream.receive_exactly(count)
    except IncompleteRead:
        raise BadBody("The body ended before its last chunk.") from None


def chunk(data: bytes) -> bytes:
    """Encode one chunk. An empty chunk is the last."""
    return b"%x\r\n%s\r\n" % (len(data), data)


_HEAD_BYTES = 65_536
_INTERIM = 16
_INFLATED_BYTES = 262_144
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


_MEMBERS = 1_000


class Inflater:
    """An incremental decompressor. A reply may consist of several members; other bytes after one are dropped."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._made = 0
        self._begin()

    def _begin(self) -> None:
        self._stream = zlib.decompressobj(self._bits)
        self._made += 1

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """Raises `BadBody`."""
        try:
            while raw and self._made <= _MEMBERS:
                yield self._stream.decompress(raw, _INFLATED_BYTES)
                raw = self._stream.unconsumed_tail
                if self._stream.eof:
                    raw = self._stream.unused_data
                    self._begin()
        except zlib.error:
            if self._made == 1:
                raise BadBody("The server's reply is not compressed as stated.") from None
            self._made = _MEMBERS + 1


class Kept(NamedTuple):
    """Which of the two connections can be reused."""

    client: bool
    server: bool


class Exchange:
    """Relays one request and its reply."""

    def __init__(
        self,
        client: Inlet,
        server: Inlet,
        traffic: Traffic,
        pace: Pace,
        redactor: Redactor | None = None,
    ) -> None:
        self._client = client
        self._server = server
        self._traffic = traffic
        self._pace = pace
        self._redactor = redactor
        self._failed: Exception | None = None
        self.began = False
        """True once any part of the reply has arrived."""
        self.status = 0

    async def run(self, head: Head, forward: bytes, body: AsyncIterator[bytes] | None = None) -> Kept:
        """Raises `Refused` while the client can still be answered, and `BROKEN` errors when a peer is gone."""
        kept: Kept | None = None
        with self._pace.scope:
            if not head.body:
                await self._send_up(forward)
                kept = await self._down(head)
            else:
                kept = await self._both(head, forward, body)
        if kept is None:
            if not self.began:
                raise Refused(502, "The server did not answer in time.")
            return Kept(client=False, server=False)
        return kept

    async def _both(self, head: Head, forward: bytes, body: AsyncIterator[bytes] | None) -> Kept:
        sent = False
        kept: Kept | None = None
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def up() -> None:
                nonlocal sent, failure
                try:
                    await self._send_up(forward)
                    await self._body_up(head, body)
                    sent = True
                except (BadBody, EndOfStream) as error:
                    failure = Refused(400, str(error)) if isinstance(error, BadBody) else error
                    tasks.cancel_scope.cancel()
                except (Spent, *BROKEN) as error:
                    failure = error
                    # A server that rejects a body often replies before it closes: wait a moment for the reply.
                    self._pace.scope.deadline = min(self._pace.scope.deadline, anyio.current_time() + 1)

            tasks.start_soon(up)
            try:
                kept = await self._down(head)
            except (Refused, Spent, *BROKEN) as error:
                failure = failure or error
            tasks.cancel_scope.cancel()
        if kept is None:
            raise failure or Refused(502, "The server did not answer.")
        return kept if sent else Kept(client=False, server=False)

    async def _send_up(self, data: bytes) -> None:
        await self._server.send(data)
        self._traffic.sent(len(data))
        self._pace.moved()

    async def _body_up(self, head: Head, body: AsyncIterator[bytes] | None) -> None:
        if head.waits and body is None:
            await self._client.send(CONTINUE)
        async for piece in body or pieces(self._client, head.body, strict=True):
            await self._send_up(chunk(piece) if head.body == "chunked" else piece)
        if head.body == "chunked":
            await self._send_up(chunk(b""))

    async def _down(self, head: Head) -> Kept:
        try:
            reply = await self._reply(head)
        except BadReply as error:
            raise Refused(502, str(error)) from None
        self.status = reply.status
        inflater, headers = self._decoding(reply)
        framing: Framing = reply.body
        if inflater is not None and framing:
            framing = "chunked"
        if framing == "chunked" and head.old:
            framing = "close"
        keep = head.keep and framing != "close"
        if self._redactor:
            hide = self._redactor.whole
            headers = tuple((hide(key), hide(value)) for key, value in headers)
            reply = msgspec.structs.replace(reply, reason=hide(reply.reason))
        await self._client.send(reply_head(reply, headers, framing, keep=keep))
        try:
            await self._body_down(reply, framing, inflater)
        except BadBody:
            return Kept(client=False, server=False)
        return Kept(client=keep, server=reply.keep and not head.body and not self._server.buffer)

    async def _reply(self, head: Head) -> Reply:
        for _ in range(_INTERIM):
            try:
                data = await self._server.receive_until(b"\r\n\r\n", _HEAD_BYTES)
            except DelimiterNotFound:
                raise BadReply("The head of the server's reply is too long.") from None
            except IncompleteRead:
                raise BadReply("The server closed the connection without a reply.") from None
            self.began = True
            self._traffic.received(len(data) + 4)
            self._pace.moved()
            reply = parse_reply(data + b"\r\n\r\n", head.method)
            if reply.status == 101:
                raise BadReply("The server wants to switch to another protocol than HTTP.")
            if reply.status >= 200:
                return reply
        raise BadReply("The server sent too many interim replies.")

    def _decoding(self, reply: Reply) -> tuple[Inflater | None, tuple[tuple[bytes, bytes], ...]]:
        """A decompressor for a reply that could hide a secret, and the headers without the encoding."""
        if self._redactor is None or not reply.body:
            return None, reply.headers
        if reply.status == 206:
            raise Refused(502, "The server sent a partial reply that was not requested.")
        if reply.coding == "identity":
            return None, reply.headers
        if reply.coding is None:
            raise Refused(502, "The server's reply has a compression that the proxy cannot inspect.")
        plain = tuple(h for h in reply.headers if h[0].lower() not in (b"content-encoding", b"etag"))
        return Inflater(47 if reply.coding == "gzip" else 15), plain

    async def _body_down(self, reply: Reply, framing: Framing, inflater: Inflater | None) -> None:
        async for raw in pieces(self._server, reply.body, strict=False):
            self._traffic.received(len(raw))
            self._pace.moved()
            for piece in inflater.pieces(raw) if inflater else (raw,):
                data = self._redactor.feed(piece) if self._redactor else piece
                await self._send_down(data, framing)
        if self._redactor:
            await self._send_down(self._redactor.end(), framing)
        if framing == "chunked":
            await self._client.send(chunk(b""))

    async def _send_down(self, data: bytes, framing: Framing) -> None:
        if data:
            await self._client.send(chunk(data) if framing == "chunked" else data)
            self._pace.moved()
