"""The server process: App, token, port, announcement and signals, from start to graceful shutdown."""

import errno
import http
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import h11
import msgspec
import uvicorn
from litestar.datastructures import MutableScopeHeaders
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.frames import Frame
from websockets.http11 import Request

from cloister.app.settings import Settings
from cloister.app.wiring import open_app
from cloister.core.errors import CloisterError, HostError, UserError, sole
from cloister.core.system.locks import is_locked
from cloister.server.app import asgi_app
from cloister.server.auth import load_token
from cloister.server.errors import Problem
from cloister.server.public import Place, names, place_of, renew, tls_context
from cloister.server.ws import MESSAGE_BYTES, PUSH, Sockets

# uvicorn inside our task group; shutdown closes WebSockets first.


HOST = "127.0.0.1"
GOODBYE_SECONDS = 2.0
REQUESTS_SECONDS = 3
"""How long running requests may delay the shutdown."""

_HOW = "`port` in the settings, or `cloister serve --port`"

_HEADERS = [("x-content-type-options", "nosniff")]
_UNCACHED = ("cache-control", "no-store")


class Deadlines(msgspec.Struct, frozen=True):
    """How long the server waits for a client, in seconds."""

    head: float = 10.0
    """For a complete request head, from the start of the connection or the end of the answer before."""
    body: float = 60.0
    """For the next bytes of a body."""
    farewell: float = 30.0
    """For a client to read what was sent before the connection was closed."""


HALF_OPEN = 256
"""Connections without a request. One more closes the oldest of them."""

_SLICE_BYTES = 4_096
"""Bytes of WebSocket frames handled at once: other connections are served in between."""
_FRAGMENTS = 16_384
"""Most fragments of one message."""

_TOO_LARGE_ERRORS = (HeaderLineTooLong, RequestLineTooLong, TooManyHeaders)
_SLOW = Problem("slow_request", "The request took too long to arrive: send it at once.")
_TOO_LARGE = Problem("too_large", "The request head is too large: send fewer and shorter headers.")
_BAD_REQUEST = Problem("bad_request", "The request is not valid HTTP/1.1.")
_BAD_UPGRADE = Problem("bad_request", "The request does not open a WebSocket: send GET over HTTP/1.1.")


def _answer(status: int, body: Problem) -> bytes:
    """A whole answer after which the connection is closed."""
    data = msgspec.json.encode(body)
    lines = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in (*_HEADERS, _UNCACHED)),
        "content-type: application/json",
        f"content-length: {len(data)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii") + data


class _Http(H11Protocol):
    """An HTTP connection that answers errors in JSON and waits for its client only up to a deadline."""

    def __init__(self, deadlines: Deadlines, **more: Any) -> None:
        super().__init__(**more)
        self._deadlines = deadlines
        self._since = self.loop.time()
        """Since when it waits for a request, or for more of it, or for the end of the connection."""
        self._begun = False

    @property
    def half_open(self) -> bool:
        """Whether no request is being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        waiting = [each for each in self.connections if isinstance(each, _Http) and each.half_open]
        if len(waiting) > HALF_OPEN:
            min(waiting, key=lambda each: each._since).transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.half_open:
            self._begun = True
        else:
            self._since = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._since, self._begun = self.loop.time(), False
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        if event.http_version == b"1.1" and event.method == b"GET":
            super().handle_websocket_upgrade(event)
        else:
            self._end(_answer(400, _BAD_UPGRADE))

    def send_400_response(self, msg: str) -> None:
        large = getattr(sys.exception(), "error_status_hint", 400) == 431
        self._end(_answer(431, _TOO_LARGE) if large else _answer(400, _BAD_REQUEST))

    def _end(self, answer: bytes) -> None:
        if self.half_open:  # else it would be in the middle of another answer
            self.transport.write(answer)
        self._since = self.loop.time()
        self.transport.close()

    def sweep(self) -> None:
        """Close the connection if its client took too long."""
        passed = self.loop.time() - self._since
        if self.transport.is_closing():
            if passed > self._deadlines.farewell:
                self.transport.abort()
        elif self.half_open:
            if passed > self._deadlines.head:
                self._end(_answer(408, _SLOW) if self._begun else b"")
        elif self.cycle.more_body and not self.flow.read_paused and passed > self._deadlines.body:
            self.transport.abort()


class _Socket(WebSocketsSansIOProtocol):
    """A WebSocket that answers every handshake, and handles a flood of frames in slices."""

    def __init__(self, deadlines: Deadlines, **more: Any) -> None:
        super().__init__(**more)
        self._deadlines = deadlines
        self._closing_since: float | None = None
        self._backlog = bytearray()
        self._at_work = False

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            super().data_received(data)
            if not self.handshake_initiated:  # its parser took nothing of it
                self._refuse(431 if isinstance(self.conn.handshake_exc, _TOO_LARGE_ERRORS) else 400)
            return
        self._backlog += data
        self._work()
        if self._backlog:
            self.transport.pause_reading()

    def _work(self) -> None:
        """Handle one slice now, and the rest after other connections had their turn."""
        if self._at_work or self.read_paused or self.disconnected:
            return
        part = bytes(self._backlog[:_SLICE_BYTES])
        del self._backlog[:_SLICE_BYTES]
        super().data_received(part)
        if self._backlog and not self.transport.is_closing():
            self._at_work = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._at_work = False
        self._work()
        if self._backlog or self.read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        self._go_on()
        return message

    def handle_connect(self, event: Request) -> None:
        if (status := self.conn.accept(event).status_code) == 101:
            super().handle_connect(event)  # its task begins later
            cast("dict[str, dict[str, object]]", self.scope)["extensions"][PUSH] = self.push
        else:
            self.handshake_initiated = True
            self._refuse(status)

    def push(self, frame: bytes) -> bool:
        """Write a whole frame now. False, and nothing written, unless the connection is open and its client keeps up."""
        if self.disconnected or self.close_sent or not (self.handshake_complete and self.writable.is_set()):
            return False
        if self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

    def _refuse(self, status: int) -> None:
        self.handshake_complete = self.close_sent = True
        self.transport.write(_answer(status, _TOO_LARGE if status == 431 else _BAD_UPGRADE))
        self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < _FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self.conn.fail(1008, "A message has too many fragments.")
            self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.writable.set()  # the close frame follows what a slow client has not read yet
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def sweep(self) -> None:
        """Cut off a client that does not read up to the end."""
        if not self.transport.is_closing():
            return
        now = self.loop.time()
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since > self._deadlines.farewell:
            self.transport.abort()


class _Server(uvicorn.Server):
    """Sets `listens` when it listens, and leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % 5 == 0:
            for connection in tuple(self.server_state.connections):
                cast("_Http | _Socket", connection).sweep()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextmanager
def bound(port: int, host: str = HOST) -> Generator[socket.socket]:
    """A socket bound to `port`; 0 takes any. Raises `HostError` (`port_taken`, `port_failed`)."""
    if not 0 <= port <= 65_535:
        raise UserError(
            "bad_port", f"{port} is no port: choose one from 1 to 65535, or 0 for any that is free."
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    with listener:
        if host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it, the second half of each answer waits 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise _bind_error(host, port, error) from None
        yield listener


def _bind_error(host: str, port: int, error: OSError) -> HostError:
    if error.errno == errno.EADDRNOTAVAIL:
        return HostError(
            "no_address",
            f"This machine has no address {host}: `ip address` lists those that --listen can take.",
        )
    if error.errno == errno.EADDRINUSE:
        return HostError(
            "port_taken",
            f"Port {port} is taken: stop what listens there or choose another with {_HOW}.",
        )
    return HostError(
        "port_failed", f"Port {port} cannot be used ({error.strerror}): choose another with {_HOW}."
    )


def _uncached(app: ASGIApp) -> ASGIApp:
    """`app`, whose answers are not kept by caches unless they say so themselves."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def passing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                if _UNCACHED[0] not in headers:
                    headers.add(*_UNCACHED)
            await send(message)

        await app(scope, receive, passing)

    return answer


@asynccontextmanager
async def listening(
    app: ASGIApp,
    listener: socket.socket,
    sockets: Sockets,
    deadlines: Deadlines | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[None]:
    """Serve `app` inside the block.

    Leaving it, also by cancellation, closes WebSockets with 1001, lets requests finish for a bounded
    time and cancels the rest.
    """
    server = _Server(
        uvicorn.Config(
            _uncached(app),  # pyright: ignore[reportArgumentType] (two spellings of the same ASGI type)
            http=cast(Any, partial(_Http, deadlines or Deadlines())),
            ws=cast(Any, partial(_Socket, deadlines or Deadlines())),
            # A message that is a little too large is still read, and answered.
            ws_max_size=MESSAGE_BYTES + 65_536,
            # Slow readers are cut off by the deadline of each send; a full pipe must not look like a dead peer.
            ws_ping_timeout=None,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=_HEADERS,
            timeout_graceful_shutdown=REQUESTS_SECONDS,
            ssl_context_factory=None if tls is None else lambda _config, _usual: tls,
        )
    )

    async def run() -> None:
        # uvicorn ends by its own flag: cancelling it would skip its shutdown.
        with anyio.CancelScope(shield=True):
            await server.serve([listener])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            with anyio.fail_after(10):
                await server.listens.wait()
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await sockets.leave(GOODBYE_SECONDS)
            server.should_exit = True


class Announcement(msgspec.Struct, frozen=True, omit_defaults=True):
    """`server.json`: where the server of this data directory listens for commands of this machine."""

    pid: int
    port: int
    url: str
    public: str | None = None
    """Where it listens for others, if that is another address, or with TLS."""
    cluster: bool = False
    """Whether it works with other machines."""


async def serve(settings: Settings, *, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully; unfinished runs stay resumable.

    `ready` gets the URL once requests are answered. `port` None is the configured one, 0 any that is free.
    Raises `HostError` with code `port_taken`, `server_running`, `token_exposed`, `unsafe_listen`, `bad_certificate`,
    and as `open_app`.
    """
    failures: list[CloisterError] = []
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
                    return

            tasks.start_soon(end_on_signal)
            try:
                await _serve(settings, place_of(settings, port), ready)
            except Exception as error:
                # Carried out of the task groups by hand: callers catch it without a group around it.
                alone = sole(error)
                if not isinstance(alone, CloisterError):
                    raise
                failures.append(alone)
            tasks.cancel_scope.cancel()
    for failure in failures:
        raise failure


async def _serve(settings: Settings, place: Place, ready: Callable[[str], None]) -> None:
    """Open everything in order; cancellation closes it in reverse.

    Commands of this machine always find plain loopback: where `place` is something else, on a port of its own.
    """
    _refuse_second(settings.data_dir)
    tls = tls_context(place)
    async with AsyncExitStack() as stack:
        public = stack.enter_context(bound(place.port, place.host))
        local = public if place.plain_loopback else stack.enter_context(bound(0))
        token = load_token(settings.data_dir / "token")
        app = await stack.enter_async_context(open_app(settings, role="server"))
        sockets = Sockets()
        public_port: int = public.getsockname()[1]
        web = asgi_app(app, token, sockets, names(place, public_port, settings.file.hosts))
        await stack.enter_async_context(listening(web, local, sockets))
        if local is not public:
            await stack.enter_async_context(listening(web, public, sockets, tls=tls))
        if tls is not None:
            await stack.enter_async_context(_renewed(tls, place))
        port: int = local.getsockname()[1]
        host = local.getsockname()[0]
        shared = settings.file.cluster is not None
        told = Announcement(os.getpid(), port, f"http://{host}:{port}", cluster=shared)
        if local is not public:
            told = msgspec.structs.replace(told, public=place.url(public_port))
        with announced(settings.data_dir, told):
            ready(told.public or told.url)
            await anyio.sleep_forever()


@asynccontextmanager
async def _renewed(tls: ssl.SSLContext, place: Place) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(renew, tls, place)
        yield
        tasks.cancel_scope.cancel()


@contextmanager
def announced(data_dir: Path, announcement: Announcement) -> Generator[None]:
    """`server.json` while the block lasts; a reader sees all of it or none."""
    path = data_dir / "server.json"
    draft = data_dir / f"server.json.{secrets.token_hex(4)}"
    draft.write_bytes(msgspec.json.encode(announcement) + b"\n")
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _refuse_second(data_dir: Path) -> None:
    """Raises `HostError` (`server_running`) when this data directory has a server.

    Checked before the port is bound: with the default port the error would be `port_taken`.
    """
    try:
        locked = is_locked(data_dir / "server.lock")
    except OSError:
        return  # `open_app` reports the problem
    if locked:
        raise HostError(
            "server_running",
            f"A server already runs on {data_dir}: use it, or stop it with `cloister serve --stop`.",
        )
