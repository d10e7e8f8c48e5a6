"""How the door says no: a status and one sentence."""

from contextlib import suppress

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream

BROKEN = (BrokenResourceError, ClosedResourceError, OSError)
"""How a peer that is gone shows."""

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 262_144
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class Refused(Exception):
    """The client is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


async def answer(client: ByteStream, status: int, sentence: str) -> None:
    """Send a whole answer, then read what is still coming for a moment, so that the answer is not lost to a reset."""
    body = f"{sentence}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with anyio.move_on_after(_LINGER_SECONDS), suppress(EndOfStream, *BROKEN):
        await client.send(head.encode("ascii") + body)
        with suppress(NotImplementedError):  # TLS has no half of a connection to end
            await client.send_eof()
        left = _LINGER_BYTES
        while left > 0:
            left -= len(await client.receive())
