"""Locks between processes: `flock` on a file or directory. The kernel releases a lock when its holder dies.

Every call opens the file itself: `flock` conflicts between open file descriptions, so a lock that this
process holds also excludes a second one in the same process.
"""

import fcntl
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

_POLL_SECONDS = 0.01


def take(path: Path, *, shared: bool = False, wait: bool = False, create: bool = False) -> int:
    """Lock `path` and return the descriptor that holds the lock; closing the descriptor releases it.

    Exclusive unless `shared`. Raises `BlockingIOError` when another holder is in the way, unless `wait` is set:
    then it blocks the thread. Raises `FileNotFoundError` for a missing file, unless `create` is set.
    """
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def lock(path: Path, *, shared: bool = False, wait: bool = False, create: bool = False) -> Generator[int]:
    """Hold the lock of `take` for the length of the block."""
    descriptor = take(path, shared=shared, wait=wait, create=create)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether any process, this one included, holds `path` exclusively. A missing file is not locked.

    Takes a shared lock for a moment, so that two callers do not mistake each other for the holder.
    """
    try:
        os.close(take(path, shared=True))
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@asynccontextmanager
async def lock_within(
    path: Path,
    seconds: float,
    *,
    shared: bool = False,
    poll_seconds: float = _POLL_SECONDS,
    waiting: Callable[[], None] | None = None,
) -> AsyncGenerator[None]:
    """Hold a lock on `path`, which is created if missing, for the length of the block; exclusive unless `shared`.

    Waits without a thread, so that the wait can be cancelled; calls `waiting` after each failed try.
    Raises `TimeoutError` when the lock is not free after `seconds`.
    """
    import anyio  # noqa: PLC0415  (the command line calls `is_locked` only, and starts without it)

    deadline = time.monotonic() + seconds
    while True:
        try:
            descriptor = take(path, shared=shared, create=True)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is locked by another process") from None
        if waiting is not None:
            waiting()
        await anyio.sleep(poll_seconds)
    try:
        yield
    finally:
        os.close(descriptor)
