"""Request and response bodies: strict JSON, streams of any size, progress as JSON lines."""

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
from cloister.sandbox.api import Report
from cloister.server.errors import problem

Result = TypeVar("Result")

JSON_BYTES = 1_048_576
"""Largest JSON body."""
JSON_SECONDS = 30.0
"""How long it may take to arrive."""


class StrictRequest(Request[Any, Any, State]):
    """Decodes a JSON body as the record its route names, without turning text into numbers."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        try:
            with anyio.fail_after(JSON_SECONDS):
                body = await self.body()
        except TimeoutError:
            raise UserError("slow_request", "The request took too long to arrive: send it at once.") from None
        try:
            return msgspec.json.decode(body, type=Any if field is None else field.annotation)
        except msgspec.MsgspecError as error:
            raise UserError("bad_request", describe(error, field and field.annotation)) from None
        except (UnicodeDecodeError, RecursionError):
            raise UserError("bad_request", "The request is not JSON in UTF-8.") from None


async def while_wanted(
    request: Request[Any, Any, State], leaving: anyio.Event, work: Awaitable[Result]
) -> Result:
    """The result of `work`, which is cancelled when the caller hangs up or the server stops."""
    results: list[Result] = []
    hung_up = False
    async with anyio.create_task_group() as tasks:

        async def caller_gone() -> None:
            nonlocal hung_up
            while (await request.receive())["type"] != "http.disconnect":
                pass
            hung_up = True
            tasks.cancel_scope.cancel()

        async def server_going() -> None:
            await leaving.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(caller_gone)
        tasks.start_soon(server_going)
        results.append(await work)
        tasks.cancel_scope.cancel()
    if not results and hung_up:
        raise UserError("hung_up", "The caller hung up before the answer.")
    if not results:
        raise HostError(
            "server_stopping", "The server is stopping and cancelled this: try again when it is back."
        )
    return results[0]


# Bodies of any size, passed on piece by piece.


LINGER_SECONDS = 2.0

Opened = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]

_HEADERS = [(b"content-type", b"application/octet-stream"), (b"content-disposition", b"attachment")]
_LINES = [(b"content-type", b"application/x-ndjson")]
LINE_SECONDS = 0.2
"""Shortest time between two lines of progress."""


async def body_of(request: Request[Any, Any, State]) -> AsyncGenerator[bytes]:
    """The body as it arrives. Raises `UserError` (`cut_off`) when the client hangs up in the middle of it."""
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
    """After an error, read on for a moment: a client that is cut off while it sends never reads the answer."""
    try:
        yield
    except UserError as error:
        if error.code != "cut_off":
            with anyio.move_on_after(LINGER_SECONDS), suppress(UserError):
                async for _ in body_of(request):
                    pass
        raise


class Streamed(Response[bytes]):
    """The pieces of `opened` as they come. Errors on entering are answered as usual."""

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
            # After an error the body has no end, which is how the client notices.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            tasks.cancel_scope.cancel()


class ProgressLines(Response[Any]):
    """JSON lines: `{"progress": …}` while `work` reports, then `{"result": …}` or `{"error": …}`."""

    def __init__(self, work: Callable[[Report], Awaitable[object]], leaving: anyio.Event) -> None:
        super().__init__(b"", media_type="application/x-ndjson")
        self._sending = _SendingLines(work, leaving)

    def to_asgi_response(self, *args: Any, **more: Any) -> ASGIResponse:
        return self._sending


class _SendingLines(ASGIResponse):
    __slots__ = ("_leaving", "_shown", "_told", "_work")

    def __init__(self, work: Callable[[Report], Awaitable[object]], leaving: anyio.Event) -> None:
        super().__init__()
        self._work = work
        self._leaving = leaving
        self._told: tuple[float | None, str] | None = None
        self._shown: tuple[float | None, str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _LINES})
        stopped = HostError(
            "server_stopping", "The server is stopping and cancelled this: try again when it is back."
        )
        last: dict[str, object] = {"error": _failure(stopped)}
        async with anyio.create_task_group() as tasks:

            async def tell() -> None:
                while True:
                    await anyio.sleep(LINE_SECONDS)
                    await self._tell(send)

            async def caller_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            async def server_going() -> None:
                await self._leaving.wait()
                tasks.cancel_scope.cancel()

            for task in (tell, caller_gone, server_going):
                tasks.start_soon(task)
            try:
                last = {"result": await self._work(self._report)}
            except Exception as error:  # the body has begun: its last line tells
                last = {"error": _failure(error)}
            tasks.cancel_scope.cancel()
        await self._tell(send)
        await send({"type": "http.response.body", "body": _line(last), "more_body": False})

    def _report(self, fraction: float | None, note: str) -> None:
        # Also called in other threads: the loop above looks at it.
        self._told = (fraction, note)

    async def _tell(self, send: Send) -> None:
        told = self._told
        if told is not None and told != self._shown:
            self._shown = told
            line = _line({"progress": {"fraction": told[0], "note": told[1]}})
            await send({"type": "http.response.body", "body": line, "more_body": True})


def _line(record: dict[str, object]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _failure(error: BaseException) -> dict[str, object]:
    status, body = problem(error)
    return {"status": status, "code": body.code, "message": body.message}
