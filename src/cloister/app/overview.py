"""The overview: the rows of all runs and the sandboxes made by hand, as they change. All followers share one look."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import anyio
import msgspec

from cloister.core.ids import RunId
from cloister.log.api import Backbone, RunRow
from cloister.sandbox.api import SandboxInfo

LOOK_SECONDS = 1.0
"""How often to look unprompted: at sandboxes, deadlines, and processes that died."""
PAUSE_SECONDS = 0.1
"""Changes within this time are one."""
KEPT = 10_000
"""Rows that are remembered, those that changed last."""


class RunChanged(msgspec.Struct, frozen=True, tag_field="type", tag="run"):
    """A run as it stands now."""

    run: RunRow


class SandboxesChanged(msgspec.Struct, frozen=True, tag_field="type", tag="sandboxes"):
    """All sandboxes made by hand; one that is missing has ended."""

    sandboxes: tuple[SandboxInfo, ...]


class Synced(msgspec.Struct, frozen=True, tag_field="type", tag="synced"):
    """Everything up to here was sent. `cursor` resumes the stream."""

    cursor: int


OverviewItem = RunChanged | SandboxesChanged | Synced


class Overview:
    """What changed, by a version that counts up. A follower that finds nothing new looks for all others."""

    def __init__(
        self,
        backbone: Backbone,
        sandboxes: Callable[[], tuple[SandboxInfo, ...]],
        complete: Callable[[RunRow], RunRow],
    ) -> None:
        """`complete` adds to a row what the log does not know."""
        self._backbone = backbone
        self._list = sandboxes
        self._complete = complete
        self._looking = anyio.Lock()
        self._version = 0
        self._cursor: int | None = None
        self._rows: OrderedDict[RunId, tuple[int, RunRow]] = OrderedDict()
        self._sandboxes: tuple[int, tuple[SandboxInfo, ...]] = (0, ())

    @asynccontextmanager
    async def follow(self, after: int | None, last: int) -> AsyncGenerator[AsyncIterator[OverviewItem]]:
        """As `RunVerbs.overview`."""
        async with aclosing(self._items(after, last)) as items:
            yield items

    async def _items(self, after: int | None, last: int) -> AsyncGenerator[OverviewItem]:
        if self._cursor is None:
            await self._refresh()
        seen = self._version
        begun = await self._backbone.changes(after, last)
        for row in reversed(begun.rows):
            yield RunChanged(self._complete(row))
        yield SandboxesChanged(self._list())
        yield Synced(begun.cursor)
        while True:
            await self._past(seen)
            version, cursor = self._version, self._cursor or 0
            for changed, row in tuple(self._rows.values()):
                if changed > seen:
                    yield RunChanged(row)
            if self._sandboxes[0] > seen:
                yield SandboxesChanged(self._sandboxes[1])
            yield Synced(cursor)
            seen = version

    async def _past(self, seen: int) -> None:
        """Wait until there is a version after `seen`."""
        while self._version <= seen:
            async with self._looking:
                if self._version > seen:
                    return
                async with self._backbone.news() as wait:
                    # Listen first, so that no event falls between the look and the wait.
                    if await self._refresh():
                        return
                    with anyio.move_on_after(LOOK_SECONDS):
                        await wait()
                await anyio.sleep(PAUSE_SECONDS)
                await self._refresh()

    async def _refresh(self) -> bool:
        """Look for changes; True if there is a new version."""
        changes = await self._backbone.changes(self._cursor, 0 if self._cursor is None else KEPT)
        version, changed = self._version + 1, False
        for row in reversed(changes.rows):
            complete = self._complete(row)
            known = self._rows.get(row.id)
            if known is None or known[1] != complete:
                self._rows[row.id] = (version, complete)
                self._rows.move_to_end(row.id)
                changed = True
        while len(self._rows) > KEPT:
            self._rows.popitem(last=False)
        if (sandboxes := self._list()) != self._sandboxes[1]:
            self._sandboxes, changed = (version, sandboxes), True
        self._cursor = changes.cursor
        self._version += changed
        return changed
