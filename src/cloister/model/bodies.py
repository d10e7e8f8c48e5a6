"""HTTP bodies from servers that are not ours, with an end: what is longer, or packed, is not taken."""

from collections.abc import AsyncGenerator

import httpx2

from cloister.core import limits

BODY_BYTES = 64 * limits.REPLY_BYTES
"""Largest body of one answer: a long reply in pieces of one token, with all that APIs wrap around each."""


class EndlessBody(Exception):
    """A body that went on beyond its bound, or that is packed, so that nobody knows how long it gets."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > self._most:
                raise EndlessBody(f"more than {self._most:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def bound(response: httpx2.Response, most: int = BODY_BYTES) -> None:
    """Let nobody read more than `most` bytes of it. Raises `EndlessBody` when it is packed, which we ask not to be."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise EndlessBody("a packed body")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream, most)
