"""The one thread of a process that writes to the log: what waits together is made durable together."""

import queue
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import anyio
from anyio import to_thread

from cloister.core.errors import Bug, CloisterError, HostError
from cloister.core.events import Event
from cloister.log.hub import Hub
from cloister.log.sqlite.schema import meaning, open_to_write

BATCH = 256
"""Requests per transaction, and requests that may wait."""

POLL_SECONDS = 0.075
"""How often the writer looks whether another process wrote, while someone follows a run."""

STUCK_SECONDS = 60.0
"""After this a write is given up as one whose disk does not answer."""

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], tuple[T, tuple[Event, ...]]]
"""What a request does inside the transaction: its answer, and the events to show once they are durable."""


class _Job(Generic[T]):
    """One request on its way to the thread and back."""

    __slots__ = ("answer", "done", "error", "events", "work")

    def __init__(self, work: Work[T]) -> None:
        self.work = work
        self.done = anyio.Event()
        self.answer: tuple[T] | None = None
        self.events: tuple[Event, ...] = ()
        self.error: Exception | None = None


class Writer:
    """Writes for everyone in this process, and tells the hub what is durable."""

    def __init__(self, db: sqlite3.Connection, path: Path, hub: Hub) -> None:
        self._path = path
        self._hub = hub
        # Where there is room, a write is on its way at once: a turn of the event loop would be time lost.
        self._slots = anyio.Semaphore(BATCH, fast_acquire=True)
        self._bell, ring = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = _Thread(db, path, ring)
        # Whoever waits for a write is shielded, so what answers them must outlive a cancellation too.
        self._serving = anyio.CancelScope(shield=True)

    async def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction; durable when this returns. Raises what `work` raised, or `HostError`.

        Once handed over it is seen through even if the caller is cancelled: nobody is left in doubt.
        """
        job: _Job[T] = _Job(work)
        async with self._slots:
            self._thread.put(job)  # pyright: ignore[reportArgumentType] — it gives the answer back unseen
            try:
                with anyio.fail_after(STUCK_SECONDS, shield=True):
                    await job.done.wait()
            except TimeoutError as error:
                raise HostError(
                    "disk_failed", f"Writing {self._path} takes too long: check the disk."
                ) from error
        if job.error is not None:
            raise job.error
        if job.answer is None:
            raise Bug("A write ended without an answer.")
        return job.answer[0]

    def watch(self, on: bool) -> None:
        """Whether writes of other processes are to be noticed."""
        self._thread.watch(on)

    async def serve(self) -> None:
        """Show what is durable and let callers go on, until `close`."""
        with self._serving:
            while True:
                await anyio.wait_readable(self._bell)
                with suppress(BlockingIOError):
                    self._bell.recv(4_096)
                self._hand_back()
                if self._thread.changed_outside:
                    self._thread.changed_outside = False
                    self._hub.look()

    def _hand_back(self) -> None:
        settled = self._thread.settled
        while settled:
            job = settled.popleft()
            job.done.set()  # who wrote goes on first, then who watches
            self._hub.announce(job.events)

    async def close(self) -> None:
        self._thread.take_no_more()
        with anyio.CancelScope(shield=True):  # bounded by the join inside
            await to_thread.run_sync(self._thread.close)
        self._hand_back()
        self._serving.cancel()

    def release(self) -> None:
        self._bell.close()


class _Thread:
    """The half that runs beside the event loop: the methods without an underscore are called from outside."""

    def __init__(self, db: sqlite3.Connection, path: Path, ring: socket.socket) -> None:
        self._db = db
        self._path = path
        self._ring = ring
        self._ring.setblocking(False)
        self._waiting: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        """None only wakes the thread, to look at its flags."""
        self._watching = False
        self._closing = False
        self.settled: deque[_Job[object]] = deque()
        self.changed_outside = False
        self._thread = threading.Thread(target=self._run, name="cloister-log", daemon=True)
        self._thread.start()

    def put(self, job: _Job[object]) -> None:
        if self._closing:
            raise Bug("The log is closed.")
        self._waiting.put(job)

    def watch(self, on: bool) -> None:
        self._watching = on
        self._waiting.put(None)

    def take_no_more(self) -> None:
        """Called where `put` is, so that nothing comes after the last look at what waits."""
        self._closing = True
        self._waiting.put(None)

    def close(self) -> None:
        """Finish what waits, end the thread, close the connection. Blocks."""
        self._thread.join(STUCK_SECONDS)
        if not self._thread.is_alive():
            self._ring.close()
            self._db.close()

    def _run(self) -> None:
        version = self._version()
        looked = 0.0
        while True:
            batch = self._take()
            if batch:
                self._settle(batch)
            # Whatever woke it up to end may have been taken along with the last writes.
            if self._closing and self._waiting.empty():
                return
            if self._watching and time.monotonic() - looked >= POLL_SECONDS:
                seen, version = version, self._version()
                looked = time.monotonic()
                if seen != version:
                    self.changed_outside = True
                    self._wake_loop()

    def _take(self) -> list[_Job[object]]:
        """What waits, at most `BATCH`; nothing when it is time to look outside or to end."""
        batch: list[_Job[object]] = []
        with suppress(queue.Empty):
            job = self._waiting.get(timeout=POLL_SECONDS if self._watching else None)
            while True:
                if job is not None:
                    batch.append(job)
                if len(batch) == BATCH:
                    break
                job = self._waiting.get_nowait()
        return batch

    def _settle(self, batch: list[_Job[object]]) -> None:
        try:
            self._commit(batch)
        except sqlite3.Error as error:
            failure = meaning(error, self._path)
            failure.__cause__ = error
            for job in batch:
                job.answer, job.events = None, ()
                job.error = job.error or failure
        self.settled.extend(batch)
        self._wake_loop()

    def _commit(self, batch: list[_Job[object]]) -> None:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in batch:
                self._attempt(job)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _attempt(self, job: _Job[object]) -> None:
        """One request in its own savepoint: what it raises undoes it and nothing else."""
        db = self._db
        db.execute("SAVEPOINT request")
        try:
            answer, job.events = job.work(db)
            job.answer = (answer,)
        except CloisterError as error:
            job.error = error
        except sqlite3.Error as error:
            if isinstance(meaning(error, self._path), HostError) or not db.in_transaction:
                raise  # the disk or the file is the problem, and everyone's
            job.error = meaning(error, self._path)
            job.error.__cause__ = error
        except Exception as error:  # the thread outlives any request
            job.error = Bug(f"A write to the log failed: {error!r}.")
            job.error.__cause__ = error
        if job.error is not None:
            db.execute("ROLLBACK TO request")
        db.execute("RELEASE request")

    def _version(self) -> int:
        """Changes when another connection has committed."""
        try:
            return self._db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return -1  # whoever reads next finds out what is wrong, and says it

    def _wake_loop(self) -> None:
        with suppress(OSError):  # full: the loop has been told often enough
            self._ring.send(b"\0")


@asynccontextmanager
async def open_writer(path: Path, hub: Hub) -> AsyncGenerator[Writer]:
    """The writer of this process for the log at `path`. Leaving finishes what waits. Raises `HostError`."""
    db = await to_thread.run_sync(open_to_write, path)
    writer = Writer(db, path, hub)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.serve)
            try:
                yield writer
            except Exception as error:
                failure = error  # raised below as it is: a task group would wrap it
            finally:
                await writer.close()
    finally:
        writer.release()
    if failure is not None:
        raise failure
