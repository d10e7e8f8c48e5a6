"""The log as one attempt sees it: what it inherited from the attempt it was forked from is its own."""

from collections.abc import Sequence

from cloister.core.events import AnyBody, Delta, Event
from cloister.core.journal import Journal
from cloister.core.lineage import Sight


class AttemptJournal:
    """`Journal` over the run's. Events keep their numbers, so that waiting and reading agree."""

    def __init__(self, journal: Journal, attempt: int) -> None:
        self._journal = journal
        self._sight = Sight(journal.events, attempt)
        self._seen: list[Event] = []

    @property
    def events(self) -> Sequence[Event]:
        known = self._journal.events
        for position in range(len(self._seen), len(known)):
            self._seen.append(self._sight.of(known[position]))
        return self._seen

    async def append(self, *bodies: AnyBody) -> None:
        await self._journal.append(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        return await self._journal.append_at(last, *bodies)

    def show(self, delta: Delta) -> None:
        self._journal.show(delta)

    async def changed(self, after: int) -> None:
        await self._journal.changed(after)
