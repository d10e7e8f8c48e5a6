"""Reading the log with nothing but SQLite, for the backbone and for commands that must start fast."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.events import AnyBody, Event, decode_body
from cloister.core.ids import OwnerId, RunId, is_id
from cloister.core.requests import Outcome, State
from cloister.log.api import RunFilter, RunRow, Totals
from cloister.log.sqlite.ledger import SqliteTotals
from cloister.log.sqlite.schema import check_ours, connect, is_new, mapped

T = TypeVar("T")
_NUM_MAX = 2**63 - 1

COLUMNS = (
    "num, id, state, outcome, reason, prompt, repo, model, created_at, updated_at, last_seq, owner, epoch"
)

Record = tuple[
    int, str, State, Outcome | None, str | None, str, str, str | None, float, float, int, str | None, int
]
"""One row of `runs`, in the order of `COLUMNS`."""


def no_such_run(name: str) -> UserError:
    return UserError("no_such_run", f"There is no run {name[:64]!r}: `cloister ps` lists them.")


def find(db: sqlite3.Connection, run: RunId) -> Record:
    """Return the stored row of `run`. Raises `UserError` (`no_such_run`)."""
    if not is_id(run):
        raise no_such_run(run)
    found = db.execute(f"SELECT {COLUMNS} FROM runs WHERE id = ?", (run,)).fetchone()  # noqa: S608
    if found is None:
        raise no_such_run(run)
    return cast(Record, found)


def _nobody(_: OwnerId) -> bool:
    return False


def _open(path: Path) -> sqlite3.Connection | None:
    with mapped(path):
        # Not opened read-only: SQLite must be able to recover what a killed writer left half-done.
        db = connect(path)
        try:
            db.execute("PRAGMA query_only = ON")
            if not is_new(db):
                check_ours(db, path)
                return db
        except BaseException:
            db.close()
            raise
        db.close()
        return None


PAGE_EVENTS = 256
PAGE_BYTES = 8_388_608
"""A page ends after the event that reaches either limit."""


class Page(msgspec.Struct, frozen=True):
    """Some events, and the state of the log when they were read."""

    events: tuple[Event, ...]
    more: bool
    """Whether the page was full: more events may follow."""
    last_seq: int
    finished: bool
    """Whether the run is finished: nothing follows `last_seq`."""


class LogReader:
    """A read-only view of the log, also while others write. A missing file is an empty log.

    Callers take turns; every method may raise `HostError` (`corrupt_data`, `newer_data`, `no_access`).
    """

    def __init__(self, path: Path, owner_lives: Callable[[OwnerId], bool] = _nobody) -> None:
        self._path = path
        self._owner_lives = owner_lives
        self._db = _open(path) if path.exists() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def rows(
        self, limit: int = 100, before: RunId | None = None, only: RunFilter | None = None
    ) -> tuple[RunRow, ...]:
        """Return runs, newest first; after the run `before` in that order. Raises `UserError` (`no_such_run`)."""
        if self._db is None:
            return ()
        wanted = {name: value for name, value in msgspec.structs.asdict(only or RunFilter()).items() if value}
        where = "".join(f" AND {name} = :{name}" for name in wanted)  # the names are those of the struct
        if (state := wanted.get("state")) in ("running", "paused"):
            where += f" AND reason IS {'' if state == 'running' else 'NOT '}NULL"
            wanted["state"] = "running"
        query = f"SELECT {COLUMNS} FROM runs WHERE num < :num{where} ORDER BY num DESC LIMIT :limit"  # noqa: S608
        with mapped(self._path):
            num = _NUM_MAX if before is None else find(self._db, before)[0]
            found = self._db.execute(query, {**wanted, "num": num, "limit": limit}).fetchall()
        return tuple(self._row(cast(Record, record)) for record in found)

    def row(self, run: RunId) -> RunRow:
        if self._db is None:
            raise no_such_run(run)
        with mapped(self._path):
            return self._row(find(self._db, run))

    def events(self, run: RunId, after: int = 0, limit: int = 1_000_000) -> tuple[Event, ...]:
        """Return events with `seq > after`, in order. Raises `UserError` (`no_such_run`)."""
        return self._page(run, after, limit, None).events

    def page(self, run: RunId, after: int) -> Page:
        """Return the next page of events after `after`. Raises `UserError` (`no_such_run`)."""
        return self._page(run, after, PAGE_EVENTS, PAGE_BYTES)

    def _page(self, run: RunId, after: int, limit: int, limit_bytes: int | None) -> Page:
        if self._db is None:
            raise no_such_run(run)
        events: list[Event] = []
        size = 0
        with mapped(self._path):
            # The row first: the events that it counts are in the log already, so the page is never short of them.
            record = find(self._db, run)
            found = self._db.execute(
                "SELECT seq, at, body FROM events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?",
                (record[0], after, limit),
            )
            with closing(found):  # an open cursor would block checkpoints of the WAL
                for seq, at, body in found:
                    events.append(Event(run, seq, at, self._decode(body)))
                    size += len(body)
                    if limit_bytes is not None and size >= limit_bytes:
                        break
        full = len(events) == limit or (limit_bytes is not None and size >= limit_bytes)
        return Page(tuple(events), full, record[10], record[2] == "finished")

    def _decode(self, body: bytes) -> AnyBody:
        try:
            return decode_body(body)
        except msgspec.DecodeError as error:
            # One unreadable event does not make the file corrupt: the other runs are fine.
            raise HostError(
                "unreadable_event", f"An event of this run in {self._path} cannot be read by this version."
            ) from error

    def totals(self, read: Callable[[Totals], T]) -> T | None:
        """Call `read` with what all runs have spent, in one moment of the file; None when there is no log yet."""
        if self._db is None:
            return None
        with mapped(self._path):
            self._db.execute("BEGIN")
            try:
                return read(SqliteTotals(self._db))
            finally:
                self._db.execute("ROLLBACK")

    def resolve(self, prefix: str) -> RunId:
        """As `Backbone.resolve`."""
        if self._db is None or not prefix or not prefix.isascii():
            raise no_such_run(prefix)
        with mapped(self._path):
            if prefix == "last":
                found = self._db.execute("SELECT id FROM runs ORDER BY num DESC LIMIT 1").fetchall()
            else:
                found = self._db.execute(
                    "SELECT id FROM runs WHERE substr(id, 1, length(?1)) = ?1 "
                    "OR substr(id, 3, length(?1)) = ?1 ORDER BY id <> ?1, num DESC LIMIT 3",
                    (prefix,),
                ).fetchall()
        ids = [RunId(name) for (name,) in found]
        if not ids:
            raise no_such_run(prefix)
        if len(ids) > 1 and ids[0] != prefix:
            raise UserError(
                "ambiguous_run",
                f"{prefix[:64]!r} is the start of several runs ({', '.join(ids)} …): type more of it.",
            )
        return ids[0]

    def _row(self, record: Record) -> RunRow:
        _, name, state, outcome, reason, prompt, repo, model, created, updated, last, holder, epoch = record
        owner = None if holder is None else OwnerId(holder)
        lives = owner is not None and state == "running" and self._owner_lives(owner)
        if state == "running" and reason is not None:
            state = "paused"
        return RunRow(
            id=RunId(name),
            state=state,
            outcome=outcome,
            reason=reason,
            prompt=prompt,
            repo=repo,
            model=model,
            created_at=created,
            updated_at=updated,
            last_seq=last,
            owner=owner,
            epoch=epoch,
            owner_lives=lives,
        )
