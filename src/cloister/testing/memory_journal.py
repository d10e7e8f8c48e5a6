"""A `Journal` in memory, for driving the loop without a database."""

import time
from collections.abc import Sequence

import anyio

from cloister.core.events import AnyBody, Delta, Event
from cloister.core.ids import RunId

_RUN = RunId("r-memory")


class MemoryJournal:
    """Keeps events and deltas; nothing is durable."""

    def __init__(self, *bodies: AnyBody) -> None:
        self._events: list[Event] = []
        self._news = anyio.Event()
        self.deltas: list[Delta] = []
        self.add(*bodies)

    @property
    def events(self) -> Sequence[Event]:
        return self._events

    @property
    def bodies(self) -> list[AnyBody]:
        return [event.body for event in self._events]

    def add(self, *bodies: AnyBody) -> None:
        """What `append` does, for callers that cannot wait."""
        for body in bodies:
            self._events.append(Event(_RUN, len(self._events) + 1, time.time(), body))
        self._news.set()
        self._news = anyio.Event()

    async def append(self, *bodies: AnyBody) -> None:
        self.add(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        if len(self._events) != last:
            return False
        self.add(*bodies)
        return True

    def show(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def changed(self, after: int) -> None:
        while len(self._events) <= after:
            await self._news.wait()
