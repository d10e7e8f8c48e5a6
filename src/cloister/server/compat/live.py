"""Answers of other services' wires that come piece by piece, with a beat while nothing comes."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope
from litestar.types import Send as AsgiSend

Tell = Callable[[bytes], Awaitable[None]]
BEAT_SECONDS = 20.0
"""How often a beat is sent, so that proxies keep the connection."""
SEND_SECONDS = 600.0
"""How long a client may leave the answer unread."""


class Live(Response[bytes]):
    """The pieces that `produce` tells; then `last`, which gets the error that ended it, or None.

    A client that leaves cancels `produce`.
    """

    def __init__(
        self,
        produce: Callable[[Tell], Awaitable[None]],
        media_type: str,
        last: Callable[[Exception | None], bytes],
        beat: bytes = b"",
    ) -> None:
        super().__init__(b"", media_type=media_type)
        self._sending = _Sending(produce, media_type, last, beat)

    def to_asgi_response(self, *args: Any, **more: Any) -> ASGIResponse:
        return self._sending


class _Sending(ASGIResponse):
    __slots__ = ("_beat", "_last", "_produce", "_type")

    def __init__(
        self,
        produce: Callable[[Tell], Awaitable[None]],
        media_type: str,
        last: Callable[[Exception | None], bytes],
        beat: bytes,
    ) -> None:
        super().__init__()
        self._produce, self._type, self._last, self._beat = produce, media_type, last, beat

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        headers = [(b"content-type", self._type.encode()), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        failure: Exception | None = None

        async def tell(piece: bytes) -> None:
            with anyio.fail_after(SEND_SECONDS):
                await send({"type": "http.response.body", "body": piece, "more_body": True})

        async with anyio.create_task_group() as tasks:

            async def caller_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            async def beats() -> None:
                while self._beat:
                    await anyio.sleep(BEAT_SECONDS)
                    await tell(self._beat)

            tasks.start_soon(caller_gone)
            tasks.start_soon(beats)
            try:
                await self._produce(tell)
            except Exception as error:  # the answer has begun: its last piece tells
                failure = error
            tasks.cancel_scope.cancel()
        with suppress(OSError, TimeoutError):
            await send({"type": "http.response.body", "body": self._last(failure), "more_body": False})
