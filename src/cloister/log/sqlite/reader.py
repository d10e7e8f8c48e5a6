"""Reading the log and the audit with nothing but SQLite, for the backbone and for commands that must start fast."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.events import AnyBody, Event, decode_body
from cloister.core.ids import OwnerId, RunId, is_id
from cloister.core.requests import Outcome, State
from cloister.log.api import Changes, RunCount, RunFilter, RunRow, Seen, Totals
from cloister.log.audit.entry import AuditEntry, AuditFilter, Checkpoint
from cloister.log.sqlite.audit import CHECKPOINT_COLUMNS, ENTRY_COLUMNS
from cloister.log.sqlite.ledger import SqliteTotals
from cloister.log.sqlite.schema import (
    VERSION,
    check_ours,
    connect,
    is_new,
    mapped,
    open_to_write,
    structure,
    version_of,
)
from cloister.log.sqlite.told import Folds, Told

if TYPE_CHECKING:
    from cloister.log.audit.verify import Anchor, ListedRun, StoredEvent, Verdict

T = TypeVar("T")
PAGE = 256
"""Entries of the audit in a page."""

_NUM_MAX = 2**63 - 1

COLUMNS = "num, id, state, outcome, reason, prompt, repo, model, created_at, updated_at, last_seq, owner, epoch, who"

Record = tuple[
    int, str, State, Outcome | None, str | None, str, str, str | None, float, float, int, str | None, int, str
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


def sent(db: sqlite3.Connection, run: RunId, num: int, who: str, key: str) -> Event | None:
    """Return the event that a message with this id of its sender caused."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sent_messages'").fetchone() is None:
        return None
    found = db.execute(
        "SELECT e.seq, e.at, e.body FROM sent_messages s JOIN events e ON e.run = s.run AND e.seq = s.seq "
        "WHERE s.run = ? AND s.who = ? AND s.key = ?",
        (num, who, key),
    ).fetchone()
    return None if found is None else Event(run, found[0], found[1], decode_body(found[2]))


class _Also(msgspec.Struct, frozen=True):
    repo: str


class _Request(msgspec.Struct, frozen=True):
    also: tuple[_Also, ...] = ()


class _Admitted(msgspec.Struct, frozen=True):
    """Of the first event of a run, its other repositories."""

    request: _Request = _Request()


def _nobody(_: OwnerId) -> bool:
    return False


class _Reader:
    """A read-only connection, also while others write. A missing file is an empty log.

    Callers take turns; every method may raise `HostError` (`corrupt_data`, `newer_data`, `no_access`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._open() if path.exists() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def _open(self) -> sqlite3.Connection | None:
        with mapped(self._path):
            # Not opened read-only: SQLite must be able to recover what a killed writer left half-done.
            db = connect(self._path)
            try:
                db.execute("PRAGMA query_only = ON")
                if not is_new(db):
                    check_ours(db, self._path)
                    self._upgrade(version_of(db))
                    return db
            except BaseException:
                db.close()
                raise
            db.close()
            return None

    def _upgrade(self, version: int) -> None:
        """Called with the version of the file."""


def _mark(kind: str) -> bytes:
    """How the body of every event of a kind begins."""
    return f'{{"type":"{kind}"'.encode()


KNOWN_RUNS = 100_000
"""Runs whose other repositories are remembered."""
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


class LogReader(_Reader):
    """The log."""

    def __init__(self, path: Path, owner_lives: Callable[[OwnerId], bool] = _nobody) -> None:
        super().__init__(path)
        self._owner_lives = owner_lives
        self._folds = Folds()
        self._also: dict[int, tuple[str, ...]] = {}

    def _upgrade(self, version: int) -> None:
        if version < 2:  # its runs have no `who`
            open_to_write(self._path).close()

    def rows(
        self,
        limit: int = 100,
        before: RunId | None = None,
        only: RunFilter | None = None,
        *,
        told: bool = True,
        seen: Seen | None = None,
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
            most = limit if seen is None else -1
            with closing(self._db.execute(query, {**wanted, "num": num, "limit": most})) as found:
                records = islice(self._shown(self._db, found, seen), limit)
                return tuple(self._row(self._db, record, told=told) for record in records)

    def _shown(self, db: sqlite3.Connection, found: Iterable[object], seen: Seen | None) -> Iterator[Record]:
        for one in found:
            record = cast(Record, one)
            num, name, repo = record[0], record[1], record[6]
            if seen is None or seen(RunId(name), (repo, *self._repos(db, num))):
                yield record

    def _repos(self, db: sqlite3.Connection, num: int) -> tuple[str, ...]:
        """The other repositories of a run, which never change."""
        if num not in self._also:
            (body,) = db.execute("SELECT body FROM events WHERE run = ? AND seq = 1", (num,)).fetchone()
            try:
                admitted = msgspec.json.decode(body, type=_Admitted)
            except msgspec.MsgspecError:
                admitted = _Admitted()
            if len(self._also) >= KNOWN_RUNS:
                self._also.clear()
            self._also[num] = tuple(one.repo for one in admitted.request.also)
        return self._also[num]

    def counts(self, seen: Seen | None = None) -> tuple[RunCount, ...]:
        """Count all runs by state and outcome."""
        if self._db is None:
            return ()
        state = "CASE WHEN state = 'running' AND reason IS NOT NULL THEN 'paused' ELSE state END"
        if seen is not None:
            return self._counts_of(state, seen)
        query = f"SELECT {state}, outcome, COUNT(*) FROM runs GROUP BY 1, 2 ORDER BY 1, 2"  # noqa: S608
        with mapped(self._path):
            return tuple(RunCount(*row) for row in self._db.execute(query).fetchall())

    def _counts_of(self, state: str, seen: Seen) -> tuple[RunCount, ...]:
        if self._db is None:
            return ()
        query = f"SELECT {COLUMNS}, {state} FROM runs"  # noqa: S608
        with mapped(self._path), closing(self._db.execute(query)) as found:
            counts: Counter[tuple[State, Outcome | None]] = Counter(
                (cast(State, record[-1]), record[3]) for record in self._shown(self._db, found, seen)
            )
        pairs = sorted(counts.items(), key=lambda each: (each[0][0], each[0][1] or ""))
        return tuple(RunCount(one, outcome, runs) for (one, outcome), runs in pairs)

    def row(self, run: RunId, *, told: bool = True) -> RunRow:
        if self._db is None:
            raise no_such_run(run)
        with mapped(self._path):
            return self._row(self._db, find(self._db, run), told=told)

    def changes(self, after: int | None, most: int) -> Changes:
        """As `Backbone.changes`."""
        if self._db is None:
            return Changes((), 0)
        # Of each run only its last event is looked up, in the index of the events.
        changed = (
            "(SELECT id FROM events WHERE run = num AND seq = last_seq) > :after"
            if after is not None
            else ":most"
        )
        query = (
            f"SELECT * FROM (SELECT {COLUMNS} FROM runs WHERE state <> 'finished' UNION "  # noqa: S608
            f"SELECT * FROM (SELECT {COLUMNS} FROM runs WHERE {changed} ORDER BY num DESC LIMIT :most)) "
            "ORDER BY num DESC"
        )
        with mapped(self._path):
            # The cursor first: what is written meanwhile is read again next time.
            cursor: int = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM events").fetchone()[0]
            found = self._db.execute(query, {"after": after, "most": most}).fetchall()
            return Changes(tuple(self._row(self._db, cast(Record, record)) for record in found), cursor)

    def sent(self, run: RunId, who: str, key: str) -> Event | None:
        """As `Backbone.sent`."""
        if self._db is None:
            raise no_such_run(run)
        with mapped(self._path):
            return sent(self._db, run, find(self._db, run)[0], who, key)

    def keyed(self, key: str) -> RunId | None:
        """As `Backbone.keyed`."""
        if self._db is None:
            return None
        with mapped(self._path):
            found = self._db.execute("SELECT id FROM runs WHERE key = ?", (key,)).fetchone()
        return None if found is None else RunId(found[0])

    def driven(self, run: RunId) -> bool:
        """Return whether the process that claimed the run still lives. Raises `UserError` (`no_such_run`)."""
        if self._db is None:
            raise no_such_run(run)
        with mapped(self._path):
            record = find(self._db, run)
        return record[2] == "running" and record[11] is not None and self._owner_lives(OwnerId(record[11]))

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

    def since(self, cursor: int, kinds: Collection[str], limit: int) -> tuple[int, tuple[Event, ...]]:
        """Return events of all runs after `cursor`, of some kinds, and the cursor behind them.

        One that this version cannot read is left out.
        """
        if self._db is None:
            return cursor, ()
        events: list[Event] = []
        wanted = " OR ".join("substr(e.body, 1, ?) = ?" for _ in kinds)
        marks = [part for kind in kinds for text in (_mark(kind),) for part in (len(text), text)]
        query = (  # its parts are constants
            "SELECT e.id, r.id, e.seq, e.at, e.body FROM events e JOIN runs r ON r.num = e.run "  # noqa: S608
            f"WHERE e.id > ? AND e.id <= ? AND ({wanted}) ORDER BY e.id LIMIT ?"
        )
        with mapped(self._path):
            end = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM events").fetchone()[0]
            found = self._db.execute(query, (cursor, end, *marks, limit)).fetchall()
        for _, run, seq, at, body in found:
            with suppress(msgspec.MsgspecError):
                events.append(Event(RunId(run), seq, at, decode_body(body)))
        return (found[-1][0] if len(found) == limit else max(cursor, end)), tuple(events)

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

    def resolve(self, prefix: str, seen: Seen | None = None) -> RunId:
        """As `Backbone.resolve`."""
        if self._db is None or not prefix or not prefix.isascii():
            raise no_such_run(prefix)
        which = "WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, 3, length(?1)) = ?1 ORDER BY id <> ?1,"
        query = f"SELECT {COLUMNS} FROM runs {'ORDER BY' if prefix == 'last' else which} num DESC"  # noqa: S608
        most = 1 if prefix == "last" else 3
        with (
            mapped(self._path),
            closing(self._db.execute(query, () if prefix == "last" else (prefix,))) as found,
        ):
            ids = [RunId(record[1]) for record in islice(self._shown(self._db, found, seen), most)]
        if not ids:
            raise no_such_run(prefix)
        if len(ids) > 1 and ids[0] != prefix:
            raise UserError(
                "ambiguous_run",
                f"{prefix[:64]!r} is the start of several runs ({', '.join(ids)} …): type more of it.",
            )
        return ids[0]

    def _row(self, db: sqlite3.Connection, record: Record, *, told: bool = True) -> RunRow:
        num, name, state, outcome, reason, prompt, repo, model, created, updated, last, holder, epoch, who = (
            record
        )
        fold = self._folds.of(db, num, last) if told else Told()
        owner = None if holder is None else OwnerId(holder)
        lives = owner is not None and state == "running" and self._owner_lives(owner)
        if state == "running" and reason is not None:
            state = "paused"
        approvals = () if state in ("queued", "finished") else fold.approvals()
        questions = () if state in ("queued", "finished") else fold.questions()
        phase, since = (None, None) if state == "finished" else fold.phase()
        ahead = None
        if state == "queued":
            where = "state = 'queued' AND num < ?"
            ahead = db.execute(f"SELECT COUNT(*) FROM runs WHERE {where}", (num,)).fetchone()[0]  # noqa: S608
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
            who=who,
            asks=len(approvals) + len(questions),
            cost=fold.cost,
            approvals=approvals,
            questions=questions,
            phase=phase,
            phase_since=since,
            reds=tuple(fold.reds),
            ahead=ahead,
            also=self._repos(db, num),
            stuck=None if state == "finished" else fold.stuck,
            phase_usual=None if phase is None else self._folds.usual(db, repo, phase),
        )


class AuditReader(_Reader):
    """The audit. A file of an older version is upgraded first."""

    def _upgrade(self, version: int) -> None:
        if version < VERSION:
            open_to_write(self._path).close()

    def page(
        self, after: int = 0, limit: int = PAGE, run: RunId | None = None, only: AuditFilter | None = None
    ) -> tuple[AuditEntry, ...]:
        """Return entries with a greater number than `after`, in order; only those of `run` and `only` if given."""
        only = only or AuditFilter()
        asked = {"run = ?": run, "kind = ?": only.kind, "instr(who, ?) > 0": only.who}
        given = {test: value for test, value in asked.items() if value is not None}
        query = (
            f"SELECT {ENTRY_COLUMNS} FROM audit WHERE {' AND '.join(('number > ?', *given))} "  # noqa: S608
            f"ORDER BY number {'DESC' if only.newest else ''} LIMIT ?"
        )
        return tuple(AuditEntry(*row) for row in self._rows(query, after, *given.values(), limit))

    def checkpoints(self, after: int, until: int) -> tuple[Checkpoint, ...]:
        """Return the checkpoints over entries with `after < number <= until`, in order."""
        query = (
            f"SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints "  # noqa: S608
            "WHERE number > ? AND number <= ? ORDER BY number, id"
        )
        return tuple(Checkpoint(*row) for row in self._rows(query, after, until))

    def seal(self, run: RunId) -> Checkpoint | None:
        """Return the checkpoint that marks the newest end of `run`."""
        query = f"SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints WHERE run = ? ORDER BY id DESC LIMIT 1"  # noqa: S608
        return next((Checkpoint(*row) for row in self._rows(query, run)), None)

    def verify(self, pinned: str | None = None) -> "Verdict":
        """Check everything, as `log.audit.verify.verify`, in one moment of the file."""
        from cloister.log.audit.verify import verify  # noqa: PLC0415  (slow, and few commands need it)

        # Before the database, which only grows: it may be ahead of them, and never behind.
        anchor = _anchor(self._path)
        if self._db is None:
            return verify(None, anchor, pinned)
        with mapped(self._path):
            self._db.execute("BEGIN")
            try:
                return verify(_Records(self._db), anchor, pinned)
            finally:
                self._db.rollback()

    def _rows(self, query: str, *values: object) -> list[Any]:
        if self._db is None:
            return []
        with mapped(self._path), closing(self._db.execute(query, values)) as found:
            return found.fetchall()


def _anchor(path: Path) -> "Anchor":
    """Read the signed head and the key beside the database at `path`."""
    from cloister.log.audit.head import HeadFile  # noqa: PLC0415
    from cloister.log.audit.keys import KEY_FILE, HostKey  # noqa: PLC0415
    from cloister.log.audit.verify import Anchor  # noqa: PLC0415

    def tried(read: Callable[[], T | None]) -> tuple[T | None, str | None]:
        try:
            return read(), None
        except HostError as error:
            return None, error.message

    return Anchor(*tried(HeadFile(path).read), *tried(HostKey(path.with_name(KEY_FILE)).found))


class _Records:
    """`AuditRecords` in one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def entries(self) -> Iterator[AuditEntry]:
        for row in self._db.execute(f"SELECT {ENTRY_COLUMNS} FROM audit ORDER BY number"):  # noqa: S608
            yield AuditEntry(*row)

    def entries_of_runs(self) -> Iterator[AuditEntry]:
        query = f"SELECT {ENTRY_COLUMNS} FROM audit WHERE run IS NOT NULL ORDER BY run, seq"  # noqa: S608
        for row in self._db.execute(query):
            yield AuditEntry(*row)

    def highest_number(self) -> int:
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'audit'").fetchone()
        return 0 if found is None else found[0]

    def checkpoints(self) -> list[Checkpoint]:
        query = f"SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints ORDER BY id"  # noqa: S608
        return [Checkpoint(*row) for row in self._db.execute(query)]

    def events(self) -> "Iterator[StoredEvent]":
        from cloister.log.audit.verify import StoredEvent  # noqa: PLC0415

        query = (
            "SELECT r.id, e.seq, e.at, e.body FROM runs r JOIN events e ON e.run = r.num ORDER BY r.id, e.seq"
        )
        for row in self._db.execute(query):
            yield StoredEvent(*row)

    def listed(self) -> "list[ListedRun]":
        from cloister.log.audit.verify import ListedRun  # noqa: PLC0415

        query = f"SELECT {', '.join(ListedRun._fields)} FROM runs ORDER BY num"  # noqa: S608
        return [ListedRun(*row) for row in self._db.execute(query)]

    def damage(self) -> Iterator[str]:
        """The tables, indexes and triggers are those that were made; no trigger or view was added."""
        expected, found = structure(None), structure(self._db)
        for name, (kind, text) in found.items():
            if name not in expected and kind in ("trigger", "view"):
                yield f"The {kind} {name[:64]!r} was added to the database."
            elif name in expected and expected[name] != (kind, text):
                yield f"The {kind} {name!r} of the database was edited."
        for name in expected.keys() - found.keys():
            if not name.startswith(("ledger_", "sent_")):  # made when they are first used
                yield f"The {expected[name][0]} {name!r} of the database was removed."
        count, highest, made = self._db.execute(
            "SELECT COUNT(*), COALESCE(MAX(id), 0), "
            "COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'audit_checkpoints'), 0) "
            "FROM audit_checkpoints"
        ).fetchone()
        if not count == highest == made:
            yield "A signature of the audit was removed."
        (state,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            yield f"The database is damaged: {state[:200]}."
        if self._db.execute("PRAGMA foreign_key_check").fetchone() is not None:
            yield "The log has events of a run that was removed."
