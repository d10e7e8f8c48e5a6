"""The log of one run for its owner, and as one attempt sees it: read, append, wait. One in memory for what is no run."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio

from cloister.core.errors import Bug, CloisterError, UserError
from cloister.core.events import AnyBody, Delta, Event, RunFinished
from cloister.core.ids import RunId
from cloister.core.log import Index, Journal, Sight
from cloister.log.api import Backbone, Fence

Check = Callable[[Sequence[AnyBody]], Awaitable[None]]
"""Called before events are appended; it raises if they must not be."""

Arriving = Callable[[Sequence[Event]], Awaitable[None]]
"""Called with events that others may have appended, before the journal has them."""


async def _as_they_are(events: Sequence[Event]) -> None:
    """Events need nothing else."""


class RunJournal:
    """`Journal` over a backbone. `events` only grows, without gaps."""

    def __init__(
        self,
        backbone: Backbone,
        fence: Fence,
        check: Check | None = None,
        arriving: Arriving = _as_they_are,
    ) -> None:
        self._backbone = backbone
        self._fence = fence
        self._check = check
        self._arriving = arriving
        self._events: list[Event] = []
        self._index = Index()
        self._news = anyio.Event()
        self._failure: CloisterError | None = None

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    @property
    def index(self) -> Index:
        return self._index

    async def append(self, *bodies: AnyBody) -> None:
        if self._check is not None:
            await self._check(bodies)
        added = await self._backbone.append(self._fence, bodies)
        if added and added[0].seq > len(self._events) + 1:
            # An event from outside came in between and has not arrived here yet. The appended events are
            # durable, so the list is brought up to date even if the caller is cancelled meanwhile.
            with anyio.CancelScope(shield=True):
                await self.catch_up()
        self._take(added)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        if self._check is not None:
            await self._check(bodies)
        added = await self._backbone.append(self._fence, bodies, last=last)
        self._take(added)
        if not added:
            await self.catch_up()
        return bool(added)

    def show(self, delta: Delta) -> None:
        self._backbone.publish(self._fence.run, delta)

    async def changed(self, after: int) -> None:
        while len(self._events) <= after:
            if self._failure is not None:
                raise self._failure
            if self._events and isinstance(self._events[-1].body, RunFinished):
                raise UserError(
                    "run_finished", f"Run {self._fence.run} is finished: nothing more will happen."
                )
            await self._news.wait()

    async def catch_up(self) -> None:
        """Read the events of the log beyond `events`."""
        while page := await self._backbone.read(self._fence.run, after=len(self._events)):
            await self._arriving(page)
            self._take(page)

    async def keep_current(self) -> None:
        """Add events from outside as they come, until the run is finished."""
        try:
            known = len(self._events)
            async with self._backbone.follow(self._fence.run, known, deltas=False) as items:
                async for item in items:
                    if isinstance(item, Event):
                        await self._arriving((item,))
                        self._take((item,))
        except CloisterError as error:
            self._failure = error
            self._tell()

    def _take(self, events: Sequence[Event]) -> None:
        """Events arrive twice, from an append and by following; keep each once, in order."""
        fresh = [event for event in events if event.seq > len(self._events)]
        if fresh:
            self._events.extend(fresh)
            self._index.feed(fresh)
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


@asynccontextmanager
async def open_journal(
    backbone: Backbone, fence: Fence, check: Check | None = None, arriving: Arriving = _as_they_are
) -> AsyncGenerator[RunJournal]:
    """Open the journal of the run that `fence` holds, loaded and kept current inside the block."""
    journal = RunJournal(backbone, fence, check, arriving)
    await journal.catch_up()
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.keep_current)
        try:
            yield journal
        except Exception as error:
            failure = error  # raised below as it is: a task group would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class AttemptJournal:
    """`Journal` of one attempt over the run's: inherited events are its own. Events keep their numbers."""

    def __init__(self, journal: Journal, attempt: int) -> None:
        self._journal = journal
        self._sight = Sight(journal.events, attempt)
        self._seen: list[Event] = []
        self._index = Index()

    @property
    def events(self) -> Sequence[Event]:
        known = self._journal.events
        if fresh := [self._sight.of(known[at]) for at in range(len(self._seen), len(known))]:
            self._seen.extend(fresh)
            self._index.feed(fresh)
        return self._seen

    @property
    def index(self) -> Index:
        _ = self.events  # feeds it
        return self._index

    async def append(self, *bodies: AnyBody) -> None:
        await self._journal.append(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        return await self._journal.append_at(last, *bodies)

    def show(self, delta: Delta) -> None:
        self._journal.show(delta)

    async def changed(self, after: int) -> None:
        await self._journal.changed(after)


class MemoryJournal:
    """A `Journal` of something that is no run: its events live in memory, and `enter` receives each."""

    def __init__(self, run: RunId, enter: Callable[[AnyBody], Awaitable[None]]) -> None:
        self._run = run
        self._enter = enter
        self._events: list[Event] = []
        self._index = Index()

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    @property
    def index(self) -> Index:
        return self._index

    async def append(self, *bodies: AnyBody) -> None:
        for body in bodies:
            await self._enter(body)
            self._events.append(Event(self._run, len(self._events) + 1, time.time(), body))
            self._index.feed(self._events[-1:])

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        del last, bodies
        raise Bug("It has one owner, who uses `append`.")

    def show(self, delta: Delta) -> None:
        del delta

    async def changed(self, after: int) -> None:
        del after
        await anyio.sleep_forever()
