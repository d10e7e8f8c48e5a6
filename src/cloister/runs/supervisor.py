"""Claims runs from the queue and drives them, a bounded number at a time, each in its own task.

A full disk pauses runs: their drivers end as after a crash, and the runs are claimed again when there is room.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from cloister.core.errors import CloisterError, Fenced, HostError, lack_of, sole
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    BaseFixed,
    BaselineTaken,
    ChangeDelivered,
    ChangeMade,
    ChecksRan,
    Event,
    Progress,
    ProofTaken,
    RunFinished,
    RunPaused,
    ToolReturned,
    TurnEnded,
)
from cloister.core.ids import OwnerId, RunId
from cloister.core.log import Journal, attachments_of
from cloister.core.requests import State
from cloister.log.api import Backbone, Fence
from cloister.log.journal import open_journal
from cloister.sandbox.store.api import Shortage

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How often to look at the queue unprompted, for runs whose owner died elsewhere, and at the disk."""

_DRAIN_SECONDS = 120.0
"""How long a drained machine waits for the next save point of a run."""

_REST_SECONDS = 60.0
"""Longest wait before a run that pauses again and again in the same turn is driven again."""

_RESULTS = (BaselineTaken, ToolReturned, ChecksRan, ProofTaken, TurnEnded, AttemptEnded)
"""Events that say what happened in a sandbox."""

_SAVED = (BaseFixed, TurnEnded, AttemptEnded, ChangeMade, ChangeDelivered, RunFinished)
"""Events that name commits of the run's repository, or end a round that made some."""

Conduct = Callable[[Journal, RunId], Awaitable[None]]
Look = Callable[[], Awaitable[Shortage | None]]
"""Why no sandbox can be opened for lack of disk."""


class Travels(Protocol):
    """Brings the files of runs to the other machines of a cluster, and from them."""

    async def share(self, run: RunId, epoch: int) -> None:
        """Make the run's files visible to other machines. Raises `Fenced`."""
        ...

    async def fetch(self, run: RunId, digests: Iterable[str]) -> None:
        """Have the attachments with these digests with the run."""
        ...


@dataclass(slots=True)
class _Pause:
    """A run that waits. Its reason is stored as soon as the log can be written."""

    fence: Fence
    event: RunPaused
    not_before: float
    """By `anyio.current_time()`."""
    stored: bool = False
    storing: bool = False


class Supervisor:
    """Drives the runs of one owner. With `claims_all` (a server) every queued run, else only those given to `drive`.

    None are `concurrent` where other machines drive them.
    """

    def __init__(  # noqa: PLR0913  (the parts of a process that drives)
        self,
        backbone: Backbone,
        owner: Callable[[], OwnerId],
        conduct: Conduct,
        *,
        concurrent: int,
        claims_all: bool,
        look: Look,
        files: Travels | None = None,
    ) -> None:
        self._backbone = backbone
        self._owner = owner
        self._conduct = conduct
        self._concurrent = concurrent
        self._slots = anyio.Semaphore(concurrent)
        self._claims_all = claims_all
        self._look = look
        self._files = files
        self._woken = anyio.Event()
        self._named: list[RunId] = []
        self._driven: dict[RunId, anyio.CancelScope] = {}
        self._saved: set[RunId] = set()
        """Those that had a save point while the machine was drained."""
        self._paused: dict[RunId, _Pause] = {}
        self.shortage: Shortage | None = None
        """The lack that runs wait for."""
        self.draining = False
        self._drained_at = 0.0

    @property
    def elsewhere(self) -> bool:
        """Whether only other machines drive runs."""
        return self._concurrent == 0

    @property
    def running(self) -> int:
        """How many runs are driven now."""
        return len(self._driven)

    def drive(self, run: RunId) -> None:
        """Claim this run soon, unless other machines do that."""
        if self._concurrent:
            self._named.append(run)
            self._woken.set()

    def waits_for(self, run: RunId) -> str | None:
        """Why a run is paused, also while the log cannot store it; None if it is not."""
        pause = self._paused.get(run)
        return pause and pause.event.reason

    def drain(self, on: bool) -> None:
        """Claim no more runs, and stop those that are driven at their next save point, or go on as usual."""
        if on and not self.draining:
            self._drained_at = anyio.current_time()
        self.draining = on

    def why_waiting(self, run: RunId, state: State) -> str | None:
        """Why an unfinished run waits for disk: the log does not say it of a queued run, nor while its disk is full."""
        short = self.shortage
        return self.waits_for(run) or (short.why if short and state == "queued" else None)

    async def supervise(self) -> None:
        """Never returns; cancelling it leaves every run resumable."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_disk, tasks)
            while True:
                await self._slots.acquire()
                fence = await self._next()
                tasks.start_soon(self._run, fence)

    async def _watch_disk(self, tasks: TaskGroup) -> None:
        while True:
            try:
                self.shortage = await self._look()
            except (CloisterError, OSError):
                logger.exception("the disk cannot be looked at")
            if self.shortage is not None and self.shortage.full:
                for scope in self._driven.values():
                    scope.cancel()
            for run in self._moving():
                self._driven[run].cancel()
            for pause in tuple(self._paused.values()):
                tasks.start_soon(self._store, pause)  # a log that does not answer must not keep runs going
            if self.shortage is None and self._paused:
                self._woken.set()
            await anyio.sleep(_LOOK_SECONDS)

    def _moving(self) -> tuple[RunId, ...]:
        """The runs that end here now so that other machines go on with them."""
        if not self.draining:
            return ()
        late = anyio.current_time() - self._drained_at > _DRAIN_SECONDS
        return tuple(run for run in self._driven if late or run in self._saved)

    async def _next(self) -> Fence:
        while True:
            self._woken = anyio.Event()
            try:
                if fence := await self._claim():
                    return fence
            except CloisterError as error:
                logger.warning("no run can be claimed now: %s", error.message)
            with anyio.move_on_after(_LOOK_SECONDS if self._claims_all or self._named else None):
                await self._woken.wait()

    async def _claim(self) -> Fence | None:
        """The next run to drive: one that was paused, one given to `drive`, any other."""
        if self.shortage is not None or self.draining:
            return None
        for run, pause in tuple(self._paused.items()):
            if pause.stored and pause.not_before <= anyio.current_time():
                fence = await self._backbone.claim(self._owner(), run)
                self._paused.pop(run, None)
                if fence:
                    return fence
        while self._named:
            fence = await self._backbone.claim(self._owner(), self._named[0])
            self._named.pop(0)
            if fence:
                return fence
        return await self._backbone.claim(self._owner()) if self._claims_all else None

    async def _run(self, fence: Fence) -> None:
        events: Sequence[Event] = ()
        why: str | None = None
        try:
            with anyio.CancelScope() as scope:
                self._driven[fence.run] = scope
                check, arriving = partial(self._before, fence), partial(self._arriving, fence.run)
                async with open_journal(self._backbone, fence, check, arriving) as journal:
                    events = journal.events
                    await self._conduct(journal, fence.run)
            if scope.cancelled_caught and self.shortage is not None:
                why = self.shortage.why
        except Fenced:
            logger.warning("run %s has another owner now", fence.run)
        except Exception as error:
            cause = sole(error)
            why = lack_of(error) or (cause.message if isinstance(cause, HostError) else None)
            if why is None:
                logger.exception("run %s could not be driven", fence.run)
        finally:
            del self._driven[fence.run]
            self._saved.discard(fence.run)
            self._slots.release()
        if why is not None:
            await self._pause(fence, why, _pauses(events))

    async def _before(self, fence: Fence, bodies: Sequence[AnyBody]) -> None:
        """A full disk spoils what commands do. Raises `HostError` (`no_disk`), so that the turn is repeated later.

        What the events name is with the other machines before the events are.
        """
        if any(isinstance(body, _RESULTS) for body in bodies):
            short = await self._look()
            if short is not None and short.full:
                raise HostError("no_disk", short.why)
        if self.draining and any(isinstance(body, TurnEnded) for body in bodies):
            self._saved.add(fence.run)
        if self._files is not None and any(isinstance(body, _SAVED) for body in bodies):
            await self._files.share(fence.run, fence.epoch)

    async def _arriving(self, run: RunId, events: Sequence[Event]) -> None:
        if self._files is not None and (given := attachments_of(events)):
            await self._files.fetch(run, [one.sha256 for one in given])

    async def _pause(self, fence: Fence, why: str, before: int) -> None:
        """Wait longer after each pause in the same turn: the run itself may be what fills the disk."""
        rest = min(_REST_SECONDS, 2.0**before) if before else 0.0
        pause = _Pause(fence, RunPaused(why, time.time()), anyio.current_time() + rest)
        self._paused[fence.run] = pause
        logger.warning("run %s is paused: %s", fence.run, why)
        await self._store(pause)

    async def _store(self, pause: _Pause) -> None:
        if pause.stored or pause.storing:
            return
        pause.storing = True
        run, reason = pause.fence.run, pause.event.reason
        try:
            await self._backbone.append(pause.fence, (pause.event,))
            pause.stored = True
        except CloisterError as error:
            if isinstance(error, HostError):  # followers see the reason until it is stored
                self._backbone.publish(run, Progress("work", None, f"paused: {reason}"))
            else:
                logger.warning("run %s is not paused but given up here: %s", run, error.message)
                self._paused.pop(run, None)
        finally:
            pause.storing = False


def _pauses(events: Sequence[Event]) -> int:
    """How often the run was paused since its last turn ended."""
    count = 0
    for event in reversed(events):
        if isinstance(event.body, TurnEnded):
            break
        count += isinstance(event.body, RunPaused)
    return count


@asynccontextmanager
async def open_supervisor(supervisor: Supervisor) -> AsyncGenerator[None]:
    """Supervise in the background until the block ends."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.supervise)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
