"""uvicorn inside our task group, on a loopback socket, with a shutdown that says goodbye."""

import errno
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import uvicorn
from litestar.types import ASGIApp

from cloister.core.errors import HostError, UserError
from cloister.server.wire import MESSAGE_BYTES, Sockets

HOST = "127.0.0.1"
CONNECTIONS = 512
GOODBYE_SECONDS = 2.0
REQUESTS_SECONDS = 3
"""How long requests that are being answered may hold up the end."""

_HOW = "`port` in the settings, or `cloister serve --port`"

_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]


class _Server(uvicorn.Server):
    """Tells when it listens, and leaves signals to us."""

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
        # Its connections inherit it. Without, the second half of each answer waits 40 ms for a word from the client.
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
    time and ends the rest.
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
