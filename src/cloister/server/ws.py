"""WebSockets: sends with a deadline, one way to end a conversation, and a close frame to all at shutdown."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import anyio
import msgspec
from litestar.connection import WebSocket
from litestar.datastructures import State
from litestar.exceptions import WebSocketDisconnect

from cloister.core.errors import CloisterError
from cloister.core.ids import RunId
from cloister.server.auth import SUBPROTOCOL
from cloister.server.errors import problem
from cloister.server.messages import EventTexts

logger = logging.getLogger(__name__)

Socket = WebSocket[Any, Any, State]

MESSAGE_BYTES = 2_097_152
"""Largest message a client may send."""

WATCHERS = 50
"""Names of people who watch a run, at most so many in a message."""

_REASON_BYTES = 123
"""The longest reason that fits into a close frame."""

NORMAL, GOING_AWAY, UNEXPECTED, TRY_LATER = 1000, 1001, 1011, 1013


class Ending(msgspec.Struct, frozen=True):
    """How a conversation ends. `code` is None when the client is already gone."""

    code: int | None
    reason: str = ""


GONE = Ending(None)

PUSH = "cloister.push"
"""The extension of the scope that sends a frame at once."""


class TooSlow(Exception):
    """The client did not take a message in time."""


class ClientGone(Exception):
    """The client hung up."""


class Sockets:
    """The open WebSockets, so that the server can close all of them when it stops."""

    def __init__(self, send_seconds: float = 10.0, close_seconds: float = 10.0) -> None:
        self.send_seconds = send_seconds
        """How long one message may wait for a client that does not read."""
        self.close_seconds = close_seconds
        """How long it then has to read up to the close frame."""
        self.leaving = anyio.Event()
        self.audience = Audience()
        self.texts = EventTexts()
        self._open = 0
        self._none_left = anyio.Event()

    @contextmanager
    def held(self) -> Generator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0 and self.leaving.is_set():
                self._none_left.set()

    async def leave(self, seconds: float) -> None:
        """End every conversation and wait for that, at most `seconds`."""
        self.leaving.set()
        if self._open:
            with anyio.move_on_after(seconds):
                await self._none_left.wait()


class Audience:
    """Who watches which run."""

    def __init__(self) -> None:
        self._present: dict[RunId, Counter[str]] = {}
        self._news: dict[RunId, anyio.Event] = {}

    @contextmanager
    def joined(self, run: RunId, name: str) -> Generator[None]:
        """Watch the run inside the block."""
        present = self._present.setdefault(run, Counter())
        present[name] += 1
        if present[name] == 1:
            self._ring(run)
        try:
            yield
        finally:
            present[name] -= 1
            if present[name] == 0:
                del present[name]
                self._ring(run)
            if not present:
                self._present.pop(run, None)
                self._news.pop(run, None)

    def names(self, run: RunId) -> tuple[str, ...]:
        return tuple(sorted(self._present.get(run, ()))[:WATCHERS])

    async def changed(self, run: RunId) -> None:
        """Wait until someone comes or goes. Only for one who has joined."""
        await self._news.setdefault(run, anyio.Event()).wait()

    def _ring(self, run: RunId) -> None:
        if news := self._news.pop(run, None):
            news.set()


class Wire:
    """One accepted WebSocket."""

    def __init__(self, socket: Socket, sockets: Sockets) -> None:
        self._socket = socket
        self._sockets = sockets
        extensions = cast("dict[str, dict[str, Any] | None]", socket.scope).get("extensions") or {}
        self._push: Callable[[bytes], bool] | None = extensions.get(PUSH)

    async def accept(self) -> None:
        offered = [str(name) for name in self._socket.scope["subprotocols"]]
        await self._socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in offered else None)

    async def send(self, message: bytes | str) -> None:
        """Raises `TooSlow` when the client did not take it in time, and `ClientGone`."""
        try:
            with anyio.fail_after(self._sockets.send_seconds):
                await self._hand_over(message)
        except TimeoutError:
            raise TooSlow from None
        except (WebSocketDisconnect, OSError):
            raise ClientGone from None

    def push(self, frame: bytes) -> bool:
        """Send a frame now, in one write; False if the client still has something to read first."""
        return self._push is not None and self._push(frame)

    async def send_patiently(self, message: bytes | str) -> None:
        """As `send` without a deadline: a client may pipe output into a pager and read it tomorrow.

        Only where another task receives from the client, and so notices when it leaves.
        """
        try:
            await self._hand_over(message)
        except (WebSocketDisconnect, OSError):
            raise ClientGone from None

    async def _hand_over(self, message: bytes | str) -> None:
        if isinstance(message, str):
            await self._socket.send_text(message)
        else:
            await self._socket.send_bytes(message)

    async def send_record(self, **members: object) -> None:
        """One JSON object as a text message."""
        await self.send(msgspec.json.encode(members).decode())

    async def receive(self) -> bytes | str:
        """The next message. Raises `ClientGone`."""
        try:
            event: dict[str, Any] = dict(await self._socket.receive())
        except WebSocketDisconnect:
            raise ClientGone from None
        if event["type"] == "websocket.disconnect":
            raise ClientGone
        text: str | None = event.get("text")
        return text if text is not None else event.get("bytes") or b""

    async def close(self, ending: Ending) -> None:
        """Never raises: a client that no longer listens is no error."""
        if ending.code is None:
            return
        reason = ending.reason.encode()[:_REASON_BYTES].decode(errors="ignore")
        with anyio.move_on_after(self._sockets.close_seconds):
            try:
                await self._socket.close(ending.code, reason)
            except (WebSocketDisconnect, OSError, RuntimeError):
                return


Part = Callable[[], Awaitable[Ending]]


async def converse(
    socket: Socket, sockets: Sockets, parts: Callable[[Wire], Awaitable[tuple[Part, ...]]]
) -> None:
    """Accept, let `parts` check the request, run what it returns, and close with the first ending."""
    wire = Wire(socket, sockets)
    await wire.accept()
    with sockets.held():
        try:
            ending = await first(sockets.leaving, await parts(wire))
        except Exception as error:  # every error ends the conversation
            ending = ending_of(error)
        await wire.close(ending)


async def first(leaving: anyio.Event, parts: tuple[Part, ...]) -> Ending:
    endings: list[Ending] = []
    async with anyio.create_task_group() as tasks:

        async def run(part: Part) -> None:
            endings.append(await part())
            tasks.cancel_scope.cancel()

        async def server_going() -> Ending:
            await leaving.wait()
            return Ending(GOING_AWAY, "The server is stopping: come back with after=SEQ.")

        for part in (*parts, server_going):
            tasks.start_soon(run, part)
    return endings[0]


def _first_error(error: BaseException) -> BaseException:
    """Several parts may fail because of the same lost client: the first error is enough."""
    if isinstance(error, BaseExceptionGroup):
        return _first_error(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error


def ending_of(error: BaseException) -> Ending:
    error = _first_error(error)
    match error:
        case ClientGone():
            return GONE
        case TooSlow():
            logger.info("Closing a WebSocket: its client reads too slowly.")
            return Ending(
                TRY_LATER, "You read too slowly: come back with after=SEQ of the last event you saw."
            )
        case CloisterError():
            status, body = problem(error)
            return Ending(UNEXPECTED if status == 500 else 4000 + status, body.message)
        case _:
            _, body = problem(error)
            return Ending(UNEXPECTED, body.message)
