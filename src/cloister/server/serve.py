"""The server process: App, token, port, announcement and signals, from start to graceful shutdown."""

import errno
import os
import secrets
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import msgspec
import uvicorn
from litestar.types import ASGIApp

from cloister.app.settings import Settings
from cloister.app.wiring import open_app
from cloister.core.errors import CloisterError, HostError, UserError, sole
from cloister.server.app import asgi_app
from cloister.server.auth import load_token
from cloister.server.ws import MESSAGE_BYTES, Sockets
from cloister.system.locks import is_locked

# uvicorn inside our task group, on a loopback socket; shutdown closes WebSockets first.


HOST = "127.0.0.1"
CONNECTIONS = 512
GOODBYE_SECONDS = 2.0
REQUESTS_SECONDS = 3
"""How long running requests may delay the shutdown."""

_HOW = "`port` in the settings, or `cloister serve --port`"

_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]


class _Server(uvicorn.Server):
    """Sets `listens` when it listens, and leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextmanager
def bound(port: int) -> Generator[socket.socket]:
    """A socket bound to `port` of the loopback; 0 takes any. Raises `HostError` (`port_taken`)."""
    if not 0 <= port <= 65_535:
        raise UserError(
            "bad_port", f"{port} is no port: choose one from 1 to 65535, or 0 for any that is free."
        )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it, the second half of each answer waits 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise _bind_error(port, error) from None
        yield listener


def _bind_error(port: int, error: OSError) -> HostError:
    if error.errno == errno.EADDRINUSE:
        return HostError(
            "port_taken",
            f"Port {port} is taken: stop what listens there or choose another with {_HOW}.",
        )
    return HostError(
        "port_failed", f"Port {port} cannot be used ({error.strerror}): choose another with {_HOW}."
    )


@asynccontextmanager
async def listening(app: ASGIApp, listener: socket.socket, sockets: Sockets) -> AsyncGenerator[None]:
    """Serve `app` inside the block.

    Leaving it, also by cancellation, closes WebSockets with 1001, lets requests finish for a bounded
    time and cancels the rest.
    """
    server = _Server(
        uvicorn.Config(
            app,  # pyright: ignore[reportArgumentType] (two spellings of the same ASGI type)
            http="h11",
            ws="websockets-sansio",
            ws_max_size=MESSAGE_BYTES,
            # Slow readers are cut off by the deadline of each send; a full pipe must not look like a dead peer.
            ws_ping_timeout=None,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=_HEADERS,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=REQUESTS_SECONDS,
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


class Announcement(msgspec.Struct, frozen=True):
    """`server.json`: where the server of this data directory listens."""

    pid: int
    port: int
    url: str


async def serve(settings: Settings, *, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully; unfinished runs stay resumable.

    `ready` gets the URL once requests are answered. `port` None is the configured one, 0 any that is free.
    Raises `HostError` with code `port_taken`, `server_running`, `token_exposed`, and as `open_app`.
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
                await _serve(settings, settings.file.port if port is None else port, ready)
            except Exception as error:
                # Carried out of the task groups by hand: callers catch it without a group around it.
                alone = sole(error)
                if not isinstance(alone, CloisterError):
                    raise
                failures.append(alone)
            tasks.cancel_scope.cancel()
    for failure in failures:
        raise failure


async def _serve(settings: Settings, port: int, ready: Callable[[str], None]) -> None:
    """Open everything in order; cancellation closes it in reverse."""
    _refuse_second(settings.data_dir)
    with bound(port) as listener:
        token = load_token(settings.data_dir / "token")
        async with open_app(settings, role="server") as app:
            sockets = Sockets()
            async with listening(asgi_app(app, token, sockets), listener, sockets):
                real_port: int = listener.getsockname()[1]
                url = f"http://{HOST}:{real_port}"
                with announced(settings.data_dir, Announcement(os.getpid(), real_port, url)):
                    ready(url)
                    await anyio.sleep_forever()


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
