"""The writer thread of a process: requests that wait together are committed together."""

import logging
import queue
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import anyio

from cloister.core.errors import Bug, CloisterError, HostError
from cloister.core.events import Event
from cloister.core.system import in_thread
from cloister.log.api import Latency
from cloister.log.audit.head import HeadFile
from cloister.log.hub import Hub
from cloister.log.sqlite.audit import StoredChain
from cloister.log.sqlite.schema import meaning, open_to_write

BATCH = 256
"""Requests per transaction, and requests that may wait."""

POLL_SECONDS = 0.075
"""How often the writer checks for writes of other processes, while a run has followers."""

STUCK_SECONDS = 60.0
"""A write that takes longer fails: the disk does not respond."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], tuple[T, tuple[Event, ...]]]
"""The work of a request inside the transaction: its answer, and the events to announce once they are durable."""


class Job(Generic[T]):
    """One request to the thread."""

    __slots__ = ("answer", "done", "error", "events", "work")

    def __init__(self, work: Work[T], done: anyio.Event | None = None) -> None:
        self.work = work
        self.done = done
        self.answer: tuple[T] | None = None
        self.events: tuple[Event, ...] = ()
        self.error: Exception | None = None

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise Bug("A write ended without an answer.")
        return self.answer[0]


def write_now(path: Path, work: Work[T]) -> T:
    """Do `work` in a transaction of this thread, in a process that writes once; durable when this returns.

    Raises what `work` raised, or `HostError`.
    """
    job: Job[T] = Job(work)
    with closing(open_to_write(path)) as db:
        log = Connection(db, path)
        log.settle([job])  # pyright: ignore[reportArgumentType] — as in `Writer.write`
        log.keep(lambda: log.head.sync(now=True))
    return job.result()


class Writes(Protocol):
    """Where a backbone hands its writes over."""

    @property
    def latency(self) -> Latency:
        """How long writes took."""
        ...

    async def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction; durable when this returns. Raises what `work` raised, or `HostError`."""
        ...

    def watch(self, on: bool) -> None:
        """Turn the check for writes of other processes on or off."""
        ...


class Writer:
    """Writes for all callers in this process, and announces durable events to the hub."""

    def __init__(self, db: sqlite3.Connection, path: Path, hub: Hub) -> None:
        self._path = path
        self._hub = hub
        # fast_acquire: with a free slot the write starts without a turn of the event loop.
        self._slots = anyio.Semaphore(BATCH, fast_acquire=True)
        self._bell, ring = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = _Thread(db, path, ring)
        self.latency = Latency()
        # Callers wait shielded, so the task that answers them must survive a cancellation too.
        self._serving = anyio.CancelScope(shield=True)

    async def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction; durable when this returns. Raises what `work` raised, or `HostError`.

        Once handed over, it is completed even if the caller is cancelled.
        """
        begun, done = time.monotonic(), anyio.Event()
        job: Job[T] = Job(work, done)
        async with self._slots:
            self._thread.put(job)  # pyright: ignore[reportArgumentType] — the thread never reads the answer
            try:
                with anyio.fail_after(STUCK_SECONDS, shield=True):
                    await done.wait()
            except TimeoutError as error:
                raise HostError(
                    "disk_failed", f"Writing {self._path} takes too long: check the disk."
                ) from error
        self.latency.add(time.monotonic() - begun)
        return job.result()

    def watch(self, on: bool) -> None:
        """Turn the check for writes of other processes on or off."""
        self._thread.watch(on)

    async def serve(self) -> None:
        """Answer callers and announce durable events, until `close`."""
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
            if job.done is not None:
                job.done.set()  # the writer continues first, then the followers
            self._hub.announce(job.events)

    async def close(self) -> None:
        self._thread.take_no_more()
        with anyio.CancelScope(shield=True):  # bounded by the join inside
            await in_thread(self._thread.close)
        self._hand_back()
        self._serving.cancel()

    def release(self) -> None:
        self._bell.close()


class _Thread:
    """The thread beside the event loop. The event loop calls the public methods."""

    def __init__(self, db: sqlite3.Connection, path: Path, ring: socket.socket) -> None:
        self._log = Connection(db, path)
        self._ring = ring
        self._ring.setblocking(False)
        self._waiting: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        """None only wakes the thread, to check its flags."""
        self._watching = False
        self._closing = False
        self.settled: deque[Job[object]] = deque()
        self.changed_outside = False
        self._thread = threading.Thread(target=self._run, name="cloister-log", daemon=True)
        self._thread.start()

    def put(self, job: Job[object]) -> None:
        if self._closing:
            raise Bug("The log is closed.")
        self._waiting.put(job)

    def watch(self, on: bool) -> None:
        self._watching = on
        self._waiting.put(None)

    def take_no_more(self) -> None:
        """Called in the thread of `put`, so that nothing is queued after the last check of the queue."""
        self._closing = True
        self._waiting.put(None)

    def close(self) -> None:
        """Finish pending requests, end the thread, close the connection. Blocks."""
        self._thread.join(STUCK_SECONDS)
        if not self._thread.is_alive():
            self._ring.close()
            self._log.db.close()

    def _run(self) -> None:
        version = self._log.version()
        looked = 0.0
        self._log.advance()  # a process that was killed may have left the head behind
        while True:
            batch = self._take()
            if batch:
                self._log.settle(batch)
                self.settled.extend(batch)
                self._wake_loop()
                self._log.keep(self._log.head.sync)
            # The wake-up to end may have been taken from the queue with the last requests.
            if self._closing and self._waiting.empty():
                self._log.keep(lambda: self._log.head.sync(now=True))
                return
            if self._watching and time.monotonic() - looked >= POLL_SECONDS:
                seen, version = version, self._log.version()
                looked = time.monotonic()
                if seen != version:
                    self.changed_outside = True
                    self._wake_loop()

    def _take(self) -> list[Job[object]]:
        """Take pending requests, at most `BATCH`; none when it is time to poll or to end."""
        batch: list[Job[object]] = []
        with suppress(queue.Empty):
            job = self._waiting.get(timeout=POLL_SECONDS if self._watching else None)
            while True:
                if job is not None:
                    batch.append(job)
                if len(batch) == BATCH:
                    break
                job = self._waiting.get_nowait()
        return batch

    def _wake_loop(self) -> None:
        with suppress(OSError):  # full: a wake-up is pending already
            self._ring.send(b"\0")


class Connection:
    """The one connection of a process that writes. Only one thread calls it."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self._path = path
        self.head = HeadFile(path)
        self._head_problem = ""

    def settle(self, batch: list[Job[object]]) -> None:
        try:
            self._commit(batch)
            self.advance()
        except sqlite3.Error as error:
            failure = meaning(error, self._path)
            failure.__cause__ = error
            for job in batch:
                job.answer, job.events = None, ()
                job.error = job.error or failure

    def _commit(self, batch: list[Job[object]]) -> None:
        db = self.db
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in batch:
                self.attempt(job)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def advance(self) -> None:
        self.keep(lambda: self.head.advance(StoredChain(self.db)))

    def keep(self, work: Callable[[], None]) -> None:
        """Do `work` on the signed head. A failure is logged: `audit verify` reports it, and no run waits for it."""
        try:
            work()
        except (CloisterError, OSError, sqlite3.Error) as error:
            if str(error) != self._head_problem:
                self._head_problem = str(error)
                logger.warning("the signed head of the audit stays behind: %s", error)

    def attempt(self, job: Job[object]) -> None:
        """Run one request in its own savepoint: an error undoes this request only."""
        db = self.db
        db.execute("SAVEPOINT request")
        try:
            answer, job.events = job.work(db)
            job.answer = (answer,)
        except CloisterError as error:
            job.error = error
        except sqlite3.Error as error:
            if isinstance(meaning(error, self._path), HostError) or not db.in_transaction:
                raise  # the disk or the file failed, for all requests
            job.error = meaning(error, self._path)
            job.error.__cause__ = error
        except Exception as error:  # the thread survives any request
            job.error = Bug(f"A write to the log failed: {error!r}.")
            job.error.__cause__ = error
        if job.error is not None:
            db.execute("ROLLBACK TO request")
        db.execute("RELEASE request")

    def version(self) -> int:
        """Return a number that changes when another connection commits."""
        try:
            return self.db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return -1  # the next reader reports the problem


@asynccontextmanager
async def open_writer(path: Path, hub: Hub) -> AsyncGenerator[Writer]:
    """Open the writer of this process for the log at `path`. Leaving finishes pending requests. Raises `HostError`."""
    db = await in_thread(open_to_write, path)
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
