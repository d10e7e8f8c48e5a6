"""Writes to the shared log: tries requests on this machine's copy, appends their changes, and applies those of others."""

import logging
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import msgspec

from cloister.core.errors import Bug, CloisterError, HostError
from cloister.core.events import Event
from cloister.core.system import in_thread
from cloister.log.api import Latency
from cloister.log.hub import Hub
from cloister.log.jetstream.link import PATIENCE_SECONDS, away
from cloister.log.jetstream.shared_log import Behind, SharedLog
from cloister.log.sqlite.replica import Commit, Placed, Replica
from cloister.log.sqlite.writer import BATCH, Job, Work

_TURN_SECONDS = 0.002
"""How long a machine that has just appended leaves the end of the log to others, if there are any."""

_PARTS_SECONDS = 0.25
"""How long it waits for the rest of a transaction of another machine that is too large for one message."""

_OTHERS_SECONDS = 1.0
_REST_SECONDS = 1.0
"""How long it waits before it tries again to store what arrived."""

_FINAL = frozenset({"newer_data", "replica_differs", "bug"})
"""Errors after which this machine cannot follow the log any more."""

logger = logging.getLogger(__name__)

T = TypeVar("T")

_decode = msgspec.json.Decoder(Commit).decode
_encode = msgspec.json.Encoder().encode


class StreamWriter:
    """Writes for all callers of this process; what it appended or applied is announced to the hub."""

    def __init__(self, shared: SharedLog, replica: Replica, hub: Hub) -> None:
        self._shared = shared
        self._replica = replica
        self._hub = hub
        self._jobs: deque[Job[object]] = deque()
        self._arrived: deque[tuple[int, bytes | None]] = deque()
        self._position = replica.up_to
        """The last message that was read and applied."""
        self._ring = anyio.Event()
        self._moved = anyio.Event()
        """Replaced with each change of the position."""
        self._others_at = self._parts_at = float("-inf")
        """When another machine was last heard of, and when the last part of its transaction came."""
        self._failure: CloisterError | None = None
        self._closing = False
        self.latency = Latency()

    @property
    def failure(self) -> CloisterError | None:
        """Why this machine cannot follow the log any more."""
        return self._failure

    async def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction; durable on a majority of the cluster when this returns.

        Once handed over, it is completed even if the caller is cancelled. Raises what `work` raised, or `HostError`.
        """
        if self._closing:
            raise Bug("The log is closed.")
        begun = anyio.current_time()
        job: Job[T] = Job(work, anyio.Event())
        self._jobs.append(job)  # pyright: ignore[reportArgumentType] - the writer never reads the answer
        self._ring.set()
        if job.done is not None:
            with anyio.CancelScope(shield=True):  # every wait below has an end
                await job.done.wait()
        self.latency.add(anyio.current_time() - begun)
        return job.result()

    def watch(self, on: bool) -> None:
        """Writes of other machines are always announced."""

    async def reach(self, number: int) -> None:
        """Wait until the copy has everything up to `number`. Raises `HostError` (`cluster_away`)."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while self._position < number and self._failure is None:
                await self._moved.wait()
        if self._failure is not None:
            raise self._failure
        if self._position < number:
            raise away()

    async def catch_up(self) -> None:
        """Wait until the copy has every transaction that was answered before this call."""
        await self.reach(await self._shared.tip())

    def take(self, number: int, data: bytes | None) -> None:
        """A message of the shared log arrived."""
        self._arrived.append((number, data))
        self._ring.set()

    async def serve(self) -> None:
        """Apply what arrives and append what callers ask for, until `close`."""
        with anyio.CancelScope(shield=True):
            while not (self._closing and not self._jobs):
                await self._ring.wait()
                self._ring = anyio.Event()
                while self._jobs or (self._arrived and not self._closing):
                    await self._step()

    async def _step(self) -> None:
        batch = [self._jobs.popleft() for _ in range(min(BATCH, len(self._jobs)))]
        try:
            await self._apply()
            if batch:
                await self._settle(batch)
        except Exception as error:  # the writer survives any request
            await self._undo(batch, _as_ours(error))
        for job in batch:
            if job.done is not None:
                job.done.set()  # the writer continues first, then the followers
            self._hub.announce(job.events)

    async def _undo(self, batch: list[Job[object]], error: CloisterError) -> None:
        with suppress(sqlite3.Error):
            await in_thread(self._replica.give_up, batch)
        for job in batch:
            job.error = error
        if not batch and self._failure is None:
            logger.error("the cluster's log is not followed: %s", error.message)
            await anyio.sleep(_REST_SECONDS)

    async def _apply(self) -> None:
        """Apply what other machines appended; an append of this one comes back and is known already.

        Raises `HostError`, again each time if the copy cannot follow the log; what did not fit on the disk is tried again.
        """
        if self._failure is not None:
            self._arrived.clear()
            raise self._failure
        messages = [each for each in self._arrived if each[0] > self._position]
        self._arrived.clear()
        if not messages:
            return
        placed = [(number, data) for number, data in messages if data is not None]
        now = anyio.current_time()
        self._others_at = now
        self._parts_at = now if messages[-1][1] is None else float("-inf")
        try:
            if placed:
                self._hub.announce(await in_thread(self._write, placed))
        except Exception as error:
            if isinstance(error, CloisterError) and error.code not in _FINAL:
                self._arrived.extendleft(reversed(messages))
                raise
            self._failure = _as_ours(error)
            logger.error("this machine no longer follows the cluster's log: %s", self._failure.message)
            self._move(self._position)
            raise self._failure from error
        self._move(messages[-1][0])

    def _write(self, placed: list[tuple[int, bytes]]) -> tuple[Event, ...]:
        try:
            commits = [Placed(number, _decode(data)) for number, data in placed]
        except msgspec.MsgspecError as error:
            raise HostError(
                "newer_data", "The cluster's log has changes that this version cannot read: upgrade it."
            ) from error
        return self._replica.apply(commits)

    def _move(self, position: int) -> None:
        self._position = position
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    async def _settle(self, batch: list[Job[object]]) -> None:
        """Append the changes of a batch where the log ends. Raises `HostError`; the batch is then undone by the caller."""
        started = anyio.current_time()
        while True:
            if self._failure is not None:
                raise self._failure
            await self._leave_room()
            commit = await in_thread(self._replica.propose, batch)
            try:
                if await self._accepted(commit):
                    return
            except Behind:
                behind = self._position + 1
            else:
                behind = await self._shared.tip()
            await in_thread(self._replica.give_up, batch)
            if anyio.current_time() - started > 3 * PATIENCE_SECONDS:
                raise away()
            await self._arrival(behind)

    async def _accepted(self, commit: Commit | None) -> bool:
        """Make the proposal last. False if nothing changes and the copy is not up to date. Raises `Behind`."""
        if commit is None:
            if await self._shared.tip() > self._position:
                return False
            await in_thread(self._replica.keep_local)
            return True
        number = await self._shared.append(_encode(commit), self._position)
        await in_thread(self._replica.accept, number)
        self._move(number)
        return True

    async def _leave_room(self) -> None:
        now = anyio.current_time()
        if now - self._parts_at < _PARTS_SECONDS:
            with anyio.move_on_after(_PARTS_SECONDS):
                await self._arrival(self._position + 1)
        elif now - self._others_at < _OTHERS_SECONDS:
            await anyio.sleep(_TURN_SECONDS)
            await self._apply()

    async def _arrival(self, number: int) -> None:
        """Apply what arrives until the copy has `number`. Raises `HostError`."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while self._position < number:
                if self._arrived:
                    await self._apply()
                else:
                    await self._ring.wait()
                    self._ring = anyio.Event()
            return
        raise away()

    def close(self) -> None:
        self._closing = True
        self._ring.set()


def _as_ours(error: Exception) -> CloisterError:
    return error if isinstance(error, CloisterError) else Bug(f"The shared log failed: {error!r}.")


@asynccontextmanager
async def open_stream_writer(
    shared: SharedLog, replica: Replica, hub: Hub, beside: Callable[[], Coroutine[Any, Any, None]]
) -> AsyncGenerator[StreamWriter]:
    """Write and apply in the background until the block ends, and do what is `beside`; finishes pending requests."""
    writer = StreamWriter(shared, replica, hub)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shared.tail, replica.up_to, writer.take)
        served = anyio.Event()

        async def serve() -> None:
            await writer.serve()
            served.set()

        tasks.start_soon(serve)
        tasks.start_soon(beside)
        try:
            await writer.catch_up()
            yield writer
        except Exception as error:
            failure = error  # raised below as it is: a task group would wrap it
        finally:
            writer.close()
            with anyio.CancelScope(shield=True):
                await served.wait()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
