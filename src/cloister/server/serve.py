"""The server as a whole: App, token, port, announcement and signals, from start to a graceful end."""

import fcntl
import os
import secrets
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec

from cloister.app import open_app
from cloister.core.errors import CloisterError, HostError, sole
from cloister.server.asgi import asgi_app
from cloister.server.listen import HOST, bound, listening
from cloister.server.token import load_token
from cloister.server.wire import Sockets
from cloister.settings import Settings


class Announcement(msgspec.Struct, frozen=True):
    """`server.json`: where the server of this data directory listens."""

    pid: int
    port: int
    url: str


async def serve(settings: Settings, *, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then end gracefully; unfinished runs are left resumable.

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
                # Carried out of the task groups by hand, so that callers catch it as what it is.
                alone = sole(error)
                if not isinstance(alone, CloisterError):
                    raise
                failures.append(alone)
            tasks.cancel_scope.cancel()
    for failure in failures:
        raise failure


async def _serve(settings: Settings, port: int, ready: Callable[[str], None]) -> None:
    """Everything opened in order; ends by cancellation, which closes it in reverse."""
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
    """`server.json` while the block lasts; whoever reads it sees all of it or none."""
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

    Asked before the port is taken: with the usual port, the other server would be blamed as a stranger.
    """
    try:
        descriptor = os.open(data_dir / "server.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # `open_app` says what is wrong, if anything is
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HostError(
            "server_running",
            f"A server already runs on {data_dir}: use it, or stop it with `cloister serve --stop`.",
        ) from None
    finally:
        os.close(descriptor)
