"""Server-sent events: the messages of a stream as `text/event-stream`, with ids that resume it."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import anyio
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope
from litestar.types import Send as AsgiSend

from cloister.server.messages import End, encode
from cloister.server.ws import GONE, ClientGone, Ending, Part, Sockets, TooSlow, ending_of, first

BEAT_SECONDS = 15.0
"""How often a comment is sent, so that proxies keep the connection and a lost client is noticed."""

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


class Message(NamedTuple):
    """One message of a stream; `place` resumes it after this message."""

    text: str
    place: int | None = None


Parts = Callable[[Callable[[Message], Awaitable[None]]], tuple[Part, ...]]


class EventStream(Response[bytes]):
    """Runs the parts of a stream until the first of them ends, and says why."""

    def __init__(self, parts: Parts, sockets: Sockets) -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._sending = _Sending(parts, sockets)

    def to_asgi_response(self, *args: Any, **more: Any) -> ASGIResponse:
        return self._sending


class _Sending(ASGIResponse):
    __slots__ = ("_parts", "_sockets")

    def __init__(self, parts: Parts, sockets: Sockets) -> None:
        super().__init__()
        self._parts = parts
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        lines = _Lines(send, self._sockets.send_seconds)
        with self._sockets.held():
            try:
                parts = (*self._parts(lines.tell), partial(_gone, receive), lines.beat)
                ending = await first(self._sockets.leaving, parts)
            except Exception as error:  # every error ends the stream
                ending = ending_of(error)
            if ending.code is None:
                return
            try:
                await lines.tell(Message(encode(End(ending.code, ending.reason)).decode()))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except (TooSlow, ClientGone):
                return


async def _gone(receive: Receive) -> Ending:
    while (await receive())["type"] != "http.disconnect":
        pass
    return GONE


class _Lines:
    """The body, piece by piece; each waits for a slow client only up to a deadline."""

    def __init__(self, send: AsgiSend, seconds: float) -> None:
        self._send = send
        self._seconds = seconds

    async def tell(self, message: Message) -> None:
        place = "" if message.place is None else f"id: {message.place}\n"
        # JSON has no line breaks outside of its strings, and none that are not escaped inside.
        await self._write(f"{place}data: {message.text}\n\n")

    async def beat(self) -> Ending:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            await self._write(":\n\n")

    async def _write(self, text: str) -> None:
        try:
            with anyio.fail_after(self._seconds):
                await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except TimeoutError:
            raise TooSlow from None
        except OSError:
            raise ClientGone from None
