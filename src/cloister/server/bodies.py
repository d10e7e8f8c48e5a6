"""How request bodies are read and how long their callers are waited for."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from cloister.core.errors import HostError, UserError, describe

Result = TypeVar("Result")

JSON_BYTES = 1_048_576
"""Largest JSON body."""


class StrictRequest(Request[Any, Any, State]):
    """Decodes a JSON body as the record its route names, without turning text into numbers."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        body = await self.body()
        try:
            return msgspec.json.decode(body, type=Any if field is None else field.annotation)
        except msgspec.MsgspecError as error:
            raise UserError("bad_request", describe(error)) from None
        except (UnicodeDecodeError, RecursionError):
            raise UserError("bad_request", "The request is not JSON in UTF-8.") from None


async def while_wanted(
    request: Request[Any, Any, State], leaving: anyio.Event, work: Callable[[], Awaitable[Result]]
) -> Result:
    """The result of `work`, which is cancelled when its caller hangs up or the server goes."""
    results: list[Result] = []
    async with anyio.create_task_group() as tasks:

        async def caller_gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async def server_going() -> None:
            await leaving.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(caller_gone)
        tasks.start_soon(server_going)
        results.append(await work())
        tasks.cancel_scope.cancel()
    if not results:
        raise HostError(
            "server_stopping", "The server is stopping and ended this: ask again when it is back."
        )
    return results[0]


# Bodies of any size, passed on piece by piece: what a client sends, and what it is sent.


LINGER_SECONDS = 2.0

Opened = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]

_HEADERS = [(b"content-type", b"application/octet-stream"), (b"content-disposition", b"attachment")]


async def body_of(request: Request[Any, Any, State]) -> AsyncGenerator[bytes]:
    """The body as it arrives. A client that goes in the middle of it is an error: half of it is not all of it."""
    while True:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            raise UserError("cut_off", "The request broke off before its end: send it again.")
        if event["type"] == "http.request":
            if body := event["body"]:
                yield body
            if not event["more_body"]:
                return


@asynccontextmanager
async def read_on_after_errors(request: Request[Any, Any, State]) -> AsyncGenerator[None]:
    """Take what the client still sends, for a moment: who is cut off in the middle of it never reads the answer."""
    try:
        yield
    except UserError as error:
        if error.code != "cut_off":
            with anyio.move_on_after(LINGER_SECONDS), suppress(UserError):
                async for _ in body_of(request):
                    pass
        raise


class Streamed(Response[bytes]):
    """What `opened` gives, as it comes. What it raises on entering is an error as any other."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(b"", media_type="application/octet-stream")
        self._opened = opened

    def to_asgi_response(self, *args: Any, **more: Any) -> ASGIResponse:
        return _Sending(self._opened)


class _Sending(ASGIResponse):
    __slots__ = ("_opened",)

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def caller_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            async with self._opened() as pieces:
                tasks.start_soon(caller_gone)
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            # An error before this leaves the body without its end, which is how a client knows.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            tasks.cancel_scope.cancel()
