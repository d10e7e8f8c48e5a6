"""Live fan-out inside this process: who follows a run sees its events and fragments as they come."""

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from cloister.core.events import Delta, Event
from cloister.core.ids import RunId

DELTAS_WAITING = 256
"""A reader that is this far behind misses fragments …"""

ITEMS_WAITING = 512
"""… and one this far behind goes back to the log for its events."""

Item = Event | Delta | None
"""None: read the log, it may hold events that do not come by here."""


class Subscription:
    """What one reader has not taken yet. The first thing it takes is None: the past is in the log."""

    def __init__(self, *, deltas: bool) -> None:
        self._deltas = deltas
        self._items: deque[Item] = deque([None])
        self._news = anyio.Event()

    def put_event(self, event: Event) -> None:
        self._put(event)

    def put_delta(self, delta: Delta) -> None:
        if self._deltas and len(self._items) < DELTAS_WAITING:
            self._put(delta)

    def look(self) -> None:
        """Tell the reader, once it has taken what waits, to read the log."""
        if not self._items or self._items[-1] is not None:
            self._put(None)

    def _put(self, item: Item) -> None:
        if len(self._items) >= ITEMS_WAITING:
            # Too slow: everything that waits is in the log, or was only a fragment.
            self._items.clear()
            item = None
        self._items.append(item)
        self._news.set()

    def caught_up(self, seq: int) -> None:
        """The reader has shown the log up to `seq`: drop what came before that, fragments included."""
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
            await self._news.wait()
        return self._items.popleft()


class Hub:
    """Subscriptions by run. A run that nobody follows costs nothing."""

    def __init__(self) -> None:
        self._readers: dict[RunId, set[Subscription]] = {}

    @property
    def idle(self) -> bool:
        return not self._readers

    @contextmanager
    def subscribe(self, run: RunId, *, deltas: bool = True) -> Generator[Subscription]:
        subscription = Subscription(deltas=deltas)
        self._readers.setdefault(run, set()).add(subscription)
        try:
            yield subscription
        finally:
            readers = self._readers[run]
            readers.discard(subscription)
            if not readers:
                del self._readers[run]

    def announce(self, events: tuple[Event, ...]) -> None:
        """Show events that are durable. Never waits."""
        for event in events:
            for reader in self._readers.get(event.run, ()):
                reader.put_event(event)

    def publish(self, run: RunId, delta: Delta) -> None:
        """Show a fragment. Never waits."""
        for reader in self._readers.get(run, ()):
            reader.put_delta(delta)

    def look(self) -> None:
        """Another process has written: everyone looks into the log."""
        for readers in self._readers.values():
            for reader in readers:
                reader.look()
