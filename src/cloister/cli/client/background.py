"""A server in the background of a data directory: find it, start it, wait for it, stop it."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.cli.client.discover import Place, living, lock_held
from cloister.cli.client.http import Client
from cloister.core.errors import HostError

if TYPE_CHECKING:
    from cloister.app.settings import Settings

START_SECONDS = 60.0
STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LOG_LINES = 5


def ensure(settings: "Settings", port: int | None = None, *, quiet: bool = False) -> tuple[Place, bool]:
    """The server of this data directory, started now if there is none; the flag says so.

    Raises `HostError` with the last words of a server that did not come up.
    """
    if place := living(settings.data_dir):
        return place, False
    _make(settings.data_dir)
    started = not lock_held(settings.data_dir)
    log = settings.data_dir / "server.log"
    offset = log.stat().st_size if log.exists() else 0
    ended: Callable[[], bool] | None = None
    if started:
        from cloister.cli._spawn import start_server

        config = settings.config_path if settings.config_path.exists() else None
        ended = start_server(settings.data_dir, port, config)
    if not quiet:
        print("Starting a server in the background …", file=sys.stderr)
    return _until_ready(settings.data_dir, ended, offset), started


def _until_ready(data_dir: Path, ended: Callable[[], bool] | None, offset: int) -> Place:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        place = living(data_dir)
        if place is not None and Client(place).healthy():
            return place
        if ended is not None and ended() and not lock_held(data_dir):
            raise HostError("server_failed", f"The server did not start: {_last_words(data_dir, offset)}")
        time.sleep(_LOOK_SECONDS)
    raise HostError(
        "server_slow",
        f"The server is not ready after {START_SECONDS:.0f} s; its log is {data_dir / 'server.log'}.",
    )


def stop(data_dir: Path) -> Place | None:
    """End the server and wait until it is gone; None when there was none. Raises `HostError`."""
    place = living(data_dir)
    if place is None:
        if lock_held(data_dir):
            raise HostError("server_busy", "A server is starting or ending just now: try again in a moment.")
        return None
    try:
        os.kill(place.pid, signal.SIGTERM)
    except PermissionError:
        raise HostError(
            "no_access", f"Process {place.pid} belongs to another account: stop it from there."
        ) from None
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + STOP_SECONDS
    while lock_held(data_dir):
        if time.monotonic() > deadline:
            raise HostError(
                "server_stays", f"Process {place.pid} did not end in {STOP_SECONDS:.0f} s: see its log."
            )
        time.sleep(_LOOK_SECONDS)
    return place


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
    """What the server said since we started it."""
    path = data_dir / "server.log"
    try:
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read(65_536).decode("utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line.removeprefix("cloister: ") for line in text.splitlines() if line.strip()]
    return " ".join(lines[-_LOG_LINES:]) or f"it said nothing; its log is {path}."
