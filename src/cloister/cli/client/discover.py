"""Find the server of a data directory, and start and stop one in the background."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from cloister.core.errors import CloisterError, HostError
from cloister.core.system.locks import is_locked

if TYPE_CHECKING:
    from cloister.app.settings import Settings


class LocalServer(NamedTuple):
    """A server that listens on this machine."""

    pid: int
    port: int
    url: str
    since: float
    """Unix seconds."""
    token_path: Path
    public: str | None = None
    """Where it listens for others, if that is another address."""
    cluster: bool = False
    """Whether the log here is a copy that it keeps up to date."""

    def token(self) -> str:
        try:
            return self.token_path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise HostError(
                "no_access", f"{self.token_path} is not readable: use the account that started the server."
            ) from None


def lock_held(data_dir: Path) -> bool:
    """True if a process is the server of this data directory, whether or not it listens already."""
    try:
        return is_locked(data_dir / "server.lock")
    except OSError:
        raise HostError("no_access", f"{data_dir} is not readable: check its permissions.") from None


def _holder(data_dir: Path) -> int | None:
    """The process that holds the lock, by its own account. The announcement of a dead server names another."""
    try:
        return int((data_dir / "server.lock").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def living(data_dir: Path) -> LocalServer | None:
    """The server of this data directory, if it listens."""
    if not lock_held(data_dir):
        return None
    path = data_dir / "server.json"
    try:
        text, since = path.read_text(encoding="utf-8"), path.stat().st_mtime
        found = cast(object, json.loads(text))
    except (FileNotFoundError, ValueError):
        return None
    except OSError:
        raise HostError("no_access", f"{path} is not readable: check its permissions.") from None
    match found:
        case {"pid": int(pid), "port": int(port), "url": str(url)} if pid == _holder(data_dir):
            more = cast("dict[str, object]", found)
            public = more.get("public")
            told = public if isinstance(public, str) else None
            return LocalServer(pid, port, url, since, data_dir / "token", told, more.get("cluster") is True)
        case _:
            return None


START_SECONDS = 60.0
STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LOG_LINES = 5


def ensure(settings: "Settings", port: int | None = None) -> tuple[LocalServer, bool]:
    """The server of this data directory, started if there is none; the flag says whether it was.

    Raises `HostError` with the last log lines of a server that failed to start.
    """
    if found := living(settings.data_dir):
        return found, False
    _make(settings.data_dir)
    started = not lock_held(settings.data_dir)
    log = settings.data_dir / "server.log"
    offset = log.stat().st_size if log.exists() else 0
    ended: Callable[[], bool] | None = None
    if started:
        from cloister.cli._spawn import start_server

        config = settings.config_path if settings.config_path.exists() else None
        ended = start_server(settings.data_dir, _place(settings, port), config)
    print("Starting a server in the background …", file=sys.stderr)
    return _until_ready(settings.data_dir, ended, offset), started


def _place(settings: "Settings", port: int | None) -> list[str]:
    """The options of the same place to listen on."""
    file, near = settings.file, settings.config_path.parent.absolute()
    given = {
        "--port": None if port is None else str(port),
        "--listen": file.listen,
        "--tls-cert": file.tls_cert and str(near / file.tls_cert),
        "--tls-key": file.tls_key and str(near / file.tls_key),
    }
    if file.cluster is not None:
        given |= {
            "--cluster": ",".join(file.cluster.servers),
            "--name": file.cluster.machine or None,
            "--role": file.cluster.role,
        }
    return [word for name, value in given.items() if value is not None for word in (name, value)]


def _until_ready(data_dir: Path, ended: Callable[[], bool] | None, offset: int) -> LocalServer:
    import anyio  # most commands need no event loop

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = living(data_dir)
        if found is not None and anyio.run(_healthy, found):
            return found
        if ended is not None and ended() and not lock_held(data_dir):
            raise HostError("server_failed", f"The server did not start: {_last_words(data_dir, offset)}")
        time.sleep(_LOOK_SECONDS)
    raise HostError(
        "server_slow",
        f"The server is not ready after {START_SECONDS:.0f} s; its log is {data_dir / 'server.log'}.",
    )


async def _healthy(found: LocalServer) -> bool:
    from cloister.cli.client.http import Server, Transport

    try:
        await Transport.to(Server(found.url, found.token())).ask("GET", "/v1/health", seconds=5)
    except CloisterError:
        return False
    return True


def stop(data_dir: Path) -> LocalServer | None:
    """Stop the server and wait until it has ended; None if none was running. Raises `HostError`."""
    found = living(data_dir)
    if found is None:
        if lock_held(data_dir):
            raise HostError("server_busy", "A server is starting or stopping: try again in a moment.")
        return None
    try:
        os.kill(found.pid, signal.SIGTERM)
    except PermissionError:
        raise HostError(
            "no_access", f"Process {found.pid} belongs to another account: stop it from there."
        ) from None
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + STOP_SECONDS
    while lock_held(data_dir):
        if time.monotonic() > deadline:
            raise HostError(
                "server_stays", f"Process {found.pid} did not end in {STOP_SECONDS:.0f} s: see its log."
            )
        time.sleep(_LOOK_SECONDS)
    return found


def _make(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(data_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise HostError(
            "no_data_dir",
            f"The data directory {data_dir} cannot be used ({error.strerror}): choose another with --data-dir.",
        ) from None


def _last_words(data_dir: Path, offset: int) -> str:
    """The last log lines of the server since it was started."""
    path = data_dir / "server.log"
    try:
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read(65_536).decode("utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line.removeprefix("cloister: ") for line in text.splitlines() if line.strip()]
    return " ".join(lines[-_LOG_LINES:]) or f"it printed nothing; its log is {path}."
