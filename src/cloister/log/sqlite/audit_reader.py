"""Reading and verifying the audit with nothing but SQLite, also while others write; and replacing its key."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cloister.core.ids import RunId
from cloister.log.audit.entry import AuditEntry, Checkpoint
from cloister.log.audit.keys import KEY_FILE, HostKey
from cloister.log.audit.verify import RunEnd, StoredEvent, Verdict, verify
from cloister.log.sqlite import audit
from cloister.log.sqlite.audit import CHECKPOINT_COLUMNS, ENTRY_COLUMNS
from cloister.log.sqlite.schema import VERSION, check_ours, connect, is_new, mapped, open_to_write, version_of

PAGE = 256


class AuditReader:
    """A read-only view of the audit. A file of an older version is upgraded first; no file is an empty audit.

    Raises `HostError` as opening the log does; so may every method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def page(self, after: int = 0, limit: int = PAGE, run: RunId | None = None) -> tuple[AuditEntry, ...]:
        """Return entries with a greater number than `after`, in order; only those of `run` if given."""
        which, of_run = ("", ()) if run is None else ("AND run = ?", (run,))
        query = f"SELECT {ENTRY_COLUMNS} FROM audit WHERE number > ? {which} ORDER BY number LIMIT ?"  # noqa: S608
        return tuple(AuditEntry(*row) for row in self._rows(query, after, *of_run, limit))

    def entries(self, after: int = 0, run: RunId | None = None, since_us: int = 0) -> Iterator[AuditEntry]:
        """Iterate over all entries, page by page."""
        while page := self.page(after, run=run):
            yield from (entry for entry in page if entry.at_us >= since_us)
            after = page[-1].number

    def newest(self) -> int:
        """Return the number of the newest entry; 0 for none."""
        return next((row[0] for row in self._rows("SELECT COALESCE(MAX(number), 0) FROM audit")), 0)

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

    def verify(self, pinned: str | None = None) -> Verdict:
        """Check everything, as `log.audit.verify.verify`, in one moment of the file."""
        if self._db is None:
            return verify(None, pinned)
        with mapped(self._path):
            self._db.execute("BEGIN")
            try:
                return verify(_Records(self._db), pinned)
            finally:
                self._db.rollback()

    def _rows(self, query: str, *values: object) -> list[Any]:
        if self._db is None:
            return []
        with mapped(self._path), closing(self._db.execute(query, values)) as found:
            return found.fetchall()


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

    def highest_number(self) -> int | None:
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'audit'").fetchone()
        return None if found is None else found[0]

    def checkpoints(self) -> list[Checkpoint]:
        query = f"SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints ORDER BY id"  # noqa: S608
        return [Checkpoint(*row) for row in self._db.execute(query)]

    def events(self) -> Iterator[StoredEvent]:
        query = (
            "SELECT r.id, e.seq, e.at, e.body FROM runs r JOIN events e ON e.run = r.num ORDER BY r.id, e.seq"
        )
        for row in self._db.execute(query):
            yield StoredEvent(*row)

    def run_ends(self) -> dict[str, RunEnd]:
        found = self._db.execute("SELECT id, last_seq, log FROM runs")
        return {name: RunEnd(last_seq, log) for name, last_seq, log in found}


def _open(path: Path) -> sqlite3.Connection | None:
    with mapped(path):
        db = connect(path)
        try:
            if is_new(db):
                db.close()
                return None
            check_ours(db, path)
            if version_of(db) < VERSION:
                open_to_write(path).close()
            db.execute("PRAGMA query_only = ON")
        except BaseException:
            db.close()
            raise
        return db


def rotate_key(path: Path) -> str:
    """Make a new key for the audit in the log at `path` and return the public one. Raises `HostError`.

    The old private key is deleted; its signatures stay valid, and its public half stays with them.
    """
    key = HostKey(path.with_name(KEY_FILE))
    db = open_to_write(path)
    draft = key.draft()
    try:
        with mapped(path):
            db.execute("BEGIN IMMEDIATE")
            audit.rotate(db, key, draft.public, time.time())
            # The entry first: a crash after it loses a key that signed nothing, and the old one stays in use.
            db.execute("COMMIT")
        draft.take()
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.close()
        draft.drop()
    return draft.public
