"""Following one run: the log first, then live, without gap or repetition."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from cloister.core.events import Delta, Event, RunFinished
from cloister.runs.hub import Subscription
from cloister.runs.reader import Page


class Follower:
    """One reader's place in one run."""

    def __init__(self, read: Callable[[int], Awaitable[Page]], live: Subscription, after: int) -> None:
        self._read = read
        """The page after a sequence number."""
        self._live = live
        self._cursor = after
        self._ended = False

    async def items(self) -> AsyncGenerator[Event | Delta]:
        """Everything after the start, until the run is finished."""
        while not self._ended:
            item = await self._live.next()
            if isinstance(item, Event) and item.seq <= self._cursor:
                continue
            if item is None or (isinstance(item, Event) and item.seq > self._cursor + 1):
                # Told to look, or another process wrote in between: the log has it all.
                async with aclosing(self._from_log()) as events:
                    async for event in events:
                        yield event
                continue
            if isinstance(item, Event):
                self._pass(item)
            yield item

    async def _from_log(self) -> AsyncGenerator[Event]:
        more = True
        while more and not self._ended:
            page = await self._read(self._cursor)
            for event in page.events:
                self._pass(event)
                yield event
            self._ended = self._ended or (page.finished and self._cursor >= page.last_seq)
            more = page.more
        self._live.caught_up(self._cursor)

    def _pass(self, event: Event) -> None:
        self._cursor = event.seq
        self._ended = isinstance(event.body, RunFinished)
