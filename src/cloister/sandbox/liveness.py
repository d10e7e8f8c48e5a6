"""Which owners of sandboxes and runs are alive: each holds a lock on a file with its id, until its process dies."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloister.core.errors import HostError
from cloister.core.ids import OwnerId, is_id
from cloister.core.system import locks

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
            # Unlinked while locked: an unlocked file would look like a crash.
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def lives(self, owner: OwnerId) -> bool:
        """Return whether a process, perhaps this one, holds `owner` now."""
        return locks.is_locked(self._path(owner))

    def remove_dead(self) -> tuple[OwnerId, ...]:
        """Remove the files of dead owners; return those owners."""
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
    """Remove `path` unless a process holds it. Only the holder of the lock may remove the name."""
    try:
        with locks.lock(path) as descriptor:
            if path.stat().st_ino != os.fstat(descriptor).st_ino:
                return False
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def _lock(path: Path, seconds: float) -> int:
    """Lock the file that has the name `path`; return its descriptor. Raises `HostError` (`owner_taken`)."""
    deadline = time.monotonic() + seconds
    while True:
        # Another process may test whether we live, or remove the file in between; both take microseconds.
        with suppress(BlockingIOError):
            descriptor = locks.take(path, create=True)
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise HostError("owner_taken", f"Another process already holds {path.name}: stop it first.")
        time.sleep(0.001)
