"""Live fan-out inside this process: followers of a run get its events and fragments."""

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio

from cloister.core.events import Delta, Event, RunFinished
from cloister.core.ids import RunId

DELTAS_WAITING = 256
"""A reader with this many items waiting misses fragments …"""

ITEMS_WAITING = 512
"""… and one with this many reads its events from the log instead."""

Item = Event | Delta | None
"""None: read the log; it may hold events of another process."""

Direct = Callable[[Event], bool]
"""Takes an event at once, without a turn of its reader's task, or returns False. It must not wait or raise."""


class Subscription:
    """The waiting items of one reader. The first item is None: the past is in the log."""

    def __init__(self, *, deltas: bool, direct: Direct | None = None) -> None:
        self._deltas = deltas
        self._direct = direct
        self._waiting = False
        """Whether the reader has handled all that it got."""
        self.position = 0
        """The last event that the reader has."""
        self._items: deque[Item] = deque([None])
        self._news = anyio.Event()

    def put_event(self, event: Event) -> None:
        if self._takes(event):
            self.position = event.seq
        else:
            self._put(event)

    def _takes(self, event: Event) -> bool:
        """True if the reader waits for exactly this event and has taken it. The last one of a run goes the long way."""
        if self._direct is None or not self._waiting or self._items or event.seq != self.position + 1:
            return False
        return not isinstance(event.body, RunFinished) and self._direct(event)

    def put_delta(self, delta: Delta) -> None:
        if self._deltas and len(self._items) < DELTAS_WAITING:
            self._put(delta)

    def look(self) -> None:
        """Make the reader read the log after the waiting items."""
        if not self._items or self._items[-1] is not None:
            self._put(None)

    def _put(self, item: Item) -> None:
        if len(self._items) >= ITEMS_WAITING:
            # Too slow: the waiting events are in the log, and fragments may be lost.
            self._items.clear()
            item = None
        self._items.append(item)
        self._news.set()

    def caught_up(self, seq: int) -> None:
        """The reader has read the log up to `seq`: drop the items before it, fragments included."""
        stale = 0
        for index, item in enumerate(self._items, start=1):
            if isinstance(item, Event) and item.seq <= seq:
                stale = index
        dropped = [self._items.popleft() for _ in range(stale)]
        if None in dropped:
            self._items.appendleft(None)

    async def next(self) -> Item:
        while not self._items:
            self._news = anyio.Event()
            self._waiting = True
            try:
                await self._news.wait()
            finally:
                self._waiting = False
        return self._items.popleft()


class Hub:
    """Subscriptions by run. A run without followers costs nothing."""

    def __init__(self) -> None:
        self._readers: dict[RunId, set[Subscription]] = {}
        self._bells: set[anyio.Event] = set()

    @property
    def idle(self) -> bool:
        return not self._readers and not self._bells

    @contextmanager
    def news(self) -> Generator[Callable[[], Awaitable[None]]]:
        """What waits until any run has changed since it was last called."""
        bell = anyio.Event()
        self._bells.add(bell)

        async def wait() -> None:
            nonlocal bell
            await bell.wait()
            self._bells.discard(bell)
            bell = anyio.Event()
            self._bells.add(bell)

        try:
            yield wait
        finally:
            self._bells.discard(bell)

    def _ring(self) -> None:
        for bell in self._bells:
            bell.set()

    @contextmanager
    def subscribe(
        self, run: RunId, *, deltas: bool = True, direct: Direct | None = None
    ) -> Generator[Subscription]:
        subscription = Subscription(deltas=deltas, direct=direct)
        self._readers.setdefault(run, set()).add(subscription)
        try:
            yield subscription
        finally:
            readers = self._readers[run]
            readers.discard(subscription)
            if not readers:
                del self._readers[run]

    def announce(self, events: tuple[Event, ...]) -> None:
        """Pass durable events on. Never waits."""
        if events:
            self._ring()
        for event in events:
            for reader in self._readers.get(event.run, ()):
                reader.put_event(event)

    def publish(self, run: RunId, delta: Delta) -> None:
        """Pass a fragment on. Never waits."""
        for reader in self._readers.get(run, ()):
            reader.put_delta(delta)

    def look(self) -> None:
        """Another process has written: all readers read the log."""
        self._ring()
        for readers in self._readers.values():
            for reader in readers:
                reader.look()
