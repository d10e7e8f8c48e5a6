"""The embedded backbone: one SQLite file, one writer thread per process, an in-process hub."""

import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio import to_thread

from cloister.core.budget import Spend
from cloister.core.errors import Bug, CloisterError, UserError
from cloister.core.events import (
    AnyBody,
    ChangeDelivered,
    Delta,
    Event,
    FromOutside,
    RunAdmitted,
    RunFinished,
)
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun, check_new_run
from cloister.log.api import Changes, Fence, Hold, Latency, RunCount, RunFilter, RunRow, Seen, Totals
from cloister.log.audit.chain import UNCHECKED
from cloister.log.audit.entry import AuditEntry, AuditFilter, Checkpoint, exact
from cloister.log.audit.head import HeadFile
from cloister.log.audit.keys import KEY_FILE, HostKey
from cloister.log.hub import Direct, Hub, Subscription
from cloister.log.sqlite import audit, ledger, transactions
from cloister.log.sqlite.reader import PAGE, AuditReader, LogReader, Page
from cloister.log.sqlite.transactions import encoded, from_a_person
from cloister.log.sqlite.writer import Writes, open_writer

if TYPE_CHECKING:
    from cloister.log.audit.verify import Verdict


class Follower:
    """One reader's position in one run: first the log, then live, without gap or repetition."""

    def __init__(self, read: Callable[[int], Awaitable[Page]], live: Subscription, after: int) -> None:
        self._read = read
        """Reads the page after a sequence number."""
        self._live = live
        self._live.position = after
        self._ended = False

    async def items(self) -> AsyncGenerator[Event | Delta]:
        """Yield everything after the start, until the run is finished."""
        while not self._ended:
            item = await self._live.next()
            if isinstance(item, Event) and item.seq <= self._live.position:
                continue
            if item is None or (isinstance(item, Event) and item.seq > self._live.position + 1):
                # A hint to read the log, or a gap because another process wrote: the log has everything.
                async with aclosing(self._from_log()) as events:
                    async for event in events:
                        yield event
                continue
            if isinstance(item, Event):
                self._live.position, self._ended = item.seq, isinstance(item.body, RunFinished)
            yield item

    async def _from_log(self) -> AsyncGenerator[Event]:
        more = True
        while more and not self._ended:
            page = await self._read(self._live.position)
            for event in page.events:
                self._live.position = event.seq
                yield event
            if page.events:  # a `RunFinished` with more behind it is only the end of a round
                self._ended = not page.more and isinstance(page.events[-1].body, RunFinished)
            else:
                self._ended = page.finished and self._live.position >= page.last_seq
            more = page.more
        self._live.caught_up(self._live.position)


T = TypeVar("T")
logger = logging.getLogger(__name__)


class SqliteBackbone:
    """`Backbone` over one file that several processes may use at the same time."""

    def __init__(
        self,
        path: Path,
        writer: Writes,
        reader: LogReader,
        hub: Hub,
        owner_lives: Callable[[OwnerId], bool],
        now: Callable[[], float],
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._hub = hub
        self._key = HostKey(path.with_name(KEY_FILE))
        self._owner_lives = owner_lives
        self._now = lambda: exact(now())
        self._reading = anyio.CapacityLimiter(1)
        """One connection serves one reader at a time."""

    @property
    def latency(self) -> Latency:
        return self._writer.latency

    async def admit(self, new: NewRun, who: str) -> tuple[RunId, bool]:
        if problem := check_new_run(new):
            raise UserError("bad_run", problem)
        entry = from_a_person(RunAdmitted(new, who))
        return await self._writer.write(lambda db: transactions.admit(db, entry, self._now()))

    async def claim(self, owner: OwnerId, run: RunId | None = None) -> Fence | None:
        return await self._writer.write(
            lambda db: transactions.claim(db, owner, run, self._owner_lives, self._now())
        )

    async def append(
        self, fence: Fence, bodies: Sequence[AnyBody], last: int | None = None
    ) -> tuple[Event, ...]:
        entries = tuple(encoded(body) for body in bodies)
        events = await self._writer.write(
            lambda db: transactions.append(db, fence, entries, self._now(), self._key, last)
        )
        if events:
            self.latency.count(bodies)
        return events

    async def append_outside(self, run: RunId, body: FromOutside) -> Event:
        entry = from_a_person(body)
        if isinstance(body, ChangeDelivered):
            return await self._writer.write(
                lambda db: transactions.append_delivery(db, run, entry, self._now(), self._key)
            )
        return await self._writer.write(lambda db: transactions.append_outside(db, run, entry, self._now()))

    async def forget(self, run: RunId, who: str) -> bool:
        return await self._writer.write(lambda db: transactions.forget(db, run, who, self._now(), self._key))

    async def note(self, kind: str, who: str, detail: Mapping[str, object] | str) -> None:
        def work(db: sqlite3.Connection) -> None:
            audit.note(db, kind, who, detail, self._now())
            if audit.unsigned(db) >= UNCHECKED:
                audit.checkpoint(db, self._key, self._now())

        await self._transact(work)

    async def sign_audit(self) -> None:
        def work(db: sqlite3.Connection) -> None:
            if audit.unsigned(db):
                audit.checkpoint(db, self._key, self._now())

        try:
            with anyio.CancelScope(shield=True):  # a write has a deadline of its own
                await self._transact(work)
        except CloisterError as error:
            logger.warning("the audit was not signed at the end: %s", error.message)

    async def audit(
        self, after: int = 0, limit: int = PAGE, run: RunId | None = None, only: AuditFilter | None = None
    ) -> tuple[AuditEntry, ...]:
        return await self._audited(lambda reader: reader.page(after, limit, run, only))

    async def seal(self, run: RunId) -> Checkpoint | None:
        return await self._audited(lambda reader: reader.seal(run))

    async def rotate_audit_key(self) -> str:
        draft = await to_thread.run_sync(self._key.draft)
        try:
            with anyio.CancelScope(shield=True):  # a write has a deadline of its own
                # The entry first: a crash after it loses a key that signed nothing, and the old one stays in use.
                await self._transact(lambda db: audit.rotate(db, self._key, draft.public, self._now()))
                draft.take()
        finally:
            draft.drop()
        return draft.public

    async def accept_audit(self, who: str, reason: str) -> None:
        file = HeadFile(self._path)
        with anyio.CancelScope(shield=True):
            # The entry first: a crash after it leaves the old head, which verification reports again.
            head = await self._transact(lambda db: audit.accept(db, file, who, reason, self._now()))
            await to_thread.run_sync(file.replace, head)

    async def verify_audit(self, pinned: str | None = None) -> "Verdict":
        return await self._audited(lambda reader: reader.verify(pinned))

    async def _audited(self, read: Callable[[AuditReader], T]) -> T:
        """A connection per call: a verification takes long, and must not keep others from reading the log."""

        def work() -> T:
            with AuditReader(self._path) as reader:
                return read(reader)

        return await to_thread.run_sync(work)

    async def reserve(self, hold: Hold, decide: Callable[[Totals], tuple[T, Spend | None]]) -> T:
        return await self._transact(lambda db: ledger.reserve(db, hold, decide, self._owner_lives))

    async def release(self, ticket: str) -> None:
        await self._transact(lambda db: ledger.release(db, ticket))

    async def totals(self, read: Callable[[Totals], T]) -> T:
        found = await self._read(lambda: self._reader.totals(lambda totals: (read(totals),)))
        if found is None:
            raise Bug("The log has no file.")
        return found[0]

    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]:
        return await self._read(partial(self._reader.events, run, after, limit))

    async def since(
        self, cursor: int, kinds: Collection[str], limit: int = 1_000
    ) -> tuple[int, tuple[Event, ...]]:
        return await self._read(partial(self._reader.since, cursor, kinds, limit))

    @asynccontextmanager
    async def follow(
        self, run: RunId, after: int = 0, *, deltas: bool = True, direct: Direct | None = None
    ) -> AsyncGenerator[AsyncIterator[Event | Delta]]:
        await self.row(run, told=False)

        async def read(cursor: int) -> Page:
            return await self._read(partial(self._reader.page, run, cursor))

        try:
            # Subscribe before reading the log: an event appended meanwhile is in one of them, or in both.
            with self._hub.subscribe(run, deltas=deltas, direct=direct) as live:
                self._writer.watch(True)
                async with aclosing(Follower(read, live, max(after, 0)).items()) as items:
                    yield items
        finally:
            self._writer.watch(not self._hub.idle)

    def publish(self, run: RunId, delta: Delta) -> None:
        self._hub.publish(run, delta)

    async def runs(
        self,
        limit: int = 100,
        *,
        before: RunId | None = None,
        only: RunFilter | None = None,
        told: bool = True,
        seen: Seen | None = None,
    ) -> tuple[RunRow, ...]:
        return await self._read(partial(self._reader.rows, limit, before, only, told=told, seen=seen))

    async def counts(self, seen: Seen | None = None) -> tuple[RunCount, ...]:
        return await self._read(partial(self._reader.counts, seen))

    async def row(self, run: RunId, *, told: bool = True) -> RunRow:
        return await self._read(partial(self._reader.row, run, told=told))

    async def sent(self, run: RunId, who: str, key: str) -> Event | None:
        return await self._read(partial(self._reader.sent, run, who, key))

    async def keyed(self, key: str) -> RunId | None:
        return await self._read(partial(self._reader.keyed, key))

    async def changes(self, after: int | None, most: int) -> Changes:
        return await self._read(partial(self._reader.changes, after, most))

    @asynccontextmanager
    async def news(self) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        try:
            with self._hub.news() as wait:
                self._writer.watch(True)
                yield wait
        finally:
            self._writer.watch(not self._hub.idle)

    async def resolve(self, prefix: str, seen: Seen | None = None) -> RunId:
        return await self._read(partial(self._reader.resolve, prefix, seen))

    async def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work`, which adds no events, in a transaction of the writer."""
        return await self._writer.write(lambda db: (work(db), ()))

    async def _read(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._reading)


@asynccontextmanager
async def open_backbone(
    path: Path,
    *,
    owner_lives: Callable[[OwnerId], bool],
    now: Callable[[], float] = time.time,
) -> AsyncGenerator[SqliteBackbone]:
    """Open the backbone over the file at `path`, created if missing. Leaving the block finishes pending writes.

    `owner_lives` is called in threads. Raises `HostError` with code `newer_data`, `corrupt_data`,
    `no_disk`, `no_access`, `no_wal`, `log_busy` or `disk_failed`; so may every method.
    """
    hub = Hub()
    async with open_writer(path, hub) as writer:
        with await to_thread.run_sync(LogReader, path, owner_lives) as reader:
            yield SqliteBackbone(path, writer, reader, hub, owner_lives, now)
