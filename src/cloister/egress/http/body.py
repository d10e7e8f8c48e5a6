"""Bodies with a length, chunked, or until the connection closes. Chunks are parsed strictly."""

import re
from collections.abc import AsyncIterator

from anyio import DelimiterNotFound, EndOfStream, IncompleteRead
from anyio.streams.buffered import BufferedByteReceiveStream

from cloister.egress.http.head import Framing

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
