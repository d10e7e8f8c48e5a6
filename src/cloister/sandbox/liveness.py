"""Which of the processes that hold sandboxes and runs still live. The kernel answers: a lock dies with its holder.

Each owner keeps an exclusive `flock` on a file that carries its id. Nothing here knows what is owned.
"""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cloister.core.errors import HostError
from cloister.core.ids import OwnerId, is_id

_PATIENCE_SECONDS = 5.0


class Owners:
    """The lock files in one directory, shared by every process on this data directory."""

    def __init__(self, directory: Path, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._directory = directory
        self._patience_seconds = patience_seconds

    @contextmanager
    def hold(self, owner: OwnerId) -> Generator[None]:
        """Be `owner` until the block ends or this process dies. Raises `HostError` (`owner_taken`)."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(owner)
        descriptor = _lock(path, self._patience_seconds)
        try:
            yield
        finally:
            # Unlinked while still locked: nobody can see the name unlocked and think of a crash.
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def lives(self, owner: OwnerId) -> bool:
        """Whether some process, perhaps this one, holds `owner` now."""
        try:
            # An own open file description: flock conflicts between descriptions, not between processes.
            descriptor = os.open(self._path(owner), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who ask at the same time do not take each other for the owner.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def remove_dead(self) -> tuple[OwnerId, ...]:
        """Remove the files of owners that no longer live; returns those owners."""
        dead: list[OwnerId] = []
        if not self._directory.is_dir():
            return ()
        for path in sorted(self._directory.iterdir()):
            owner = OwnerId(path.name)
            if is_id(owner) and not self.lives(owner) and _unlink_unheld(path):
                dead.append(owner)
        return tuple(dead)

    def _path(self, owner: OwnerId) -> Path:
        if not is_id(owner):
            raise ValueError(f"not an owner id: {owner!r}")
        return self._directory / owner


def _unlink_unheld(path: Path) -> bool:
    """Remove `path` unless somebody holds it. Only who has its file locked may remove the name."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino != os.fstat(descriptor).st_ino:
            return False
        path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True


def _lock(path: Path, seconds: float) -> int:
    """An exclusively locked descriptor of the file that has the name `path`."""
    deadline = time.monotonic() + seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            # Someone asks whether we live, or removed the file in between; both last microseconds.
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise HostError("owner_taken", f"Another process already goes by {path.name}: stop it first.")
        time.sleep(0.001)
