"""Reading the audit with nothing but SQLite, also while others write."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from cloister.core.ids import RunId
from cloister.log.audit.entry import AuditEntry, Checkpoint
from cloister.log.sqlite.schema import VERSION, check_ours, connect, is_new, mapped, open_to_write, version_of

ENTRY_COLUMNS = "number, at_us, kind, run, seq, who, detail, log, previous, hash"
CHECKPOINT_COLUMNS = "number, hash, at_us, run, key, signature"
PAGE = 256


class AuditReader:
    """A read-only view of the audit. One that was never begun is empty; a log of an older version is brought up first.

    Raises `HostError` as opening the log does; so may every method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.db = _open(path) if path.exists() else None
        """For `verify`, which reads the log beside it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.db is not None:
            self.db.close()

    def page(self, after: int = 0, limit: int = PAGE, run: RunId | None = None) -> tuple[AuditEntry, ...]:
        """Entries with a greater number, in order; of `run` alone where it is given."""
        if self.db is None:
            return ()
        which = "number > ?" if run is None else "number > ? AND run = ?"
        values: tuple[object, ...] = (after, limit) if run is None else (after, run, limit)
        query = f"SELECT {ENTRY_COLUMNS} FROM audit WHERE {which} ORDER BY number LIMIT ?"  # noqa: S608
        with mapped(self._path), closing(self.db.execute(query, values)) as found:
            return tuple(AuditEntry(*row) for row in found)

    def entries(self, after: int = 0, run: RunId | None = None, since_us: int = 0) -> Iterator[AuditEntry]:
        """All of them, page by page."""
        while page := self.page(after, run=run):
            yield from (entry for entry in page if entry.at_us >= since_us)
            after = page[-1].number

    def newest(self) -> int:
        """The number of the newest entry; 0 for none."""
        if self.db is None:
            return 0
        with mapped(self._path):
            return self.db.execute("SELECT COALESCE(MAX(number), 0) FROM audit").fetchone()[0]

    def checkpoints(self, after: int, until: int) -> tuple[Checkpoint, ...]:
        """Those over entries with a greater number than `after` and none beyond `until`, in order."""
        if self.db is None:
            return ()
        query = (
            f"SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints "  # noqa: S608
            "WHERE number > ? AND number <= ? ORDER BY number, id"
        )
        with mapped(self._path), closing(self.db.execute(query, (after, until))) as found:
            return tuple(Checkpoint(*row) for row in found)

    def seal(self, run: RunId) -> Checkpoint | None:
        """The checkpoint that marks the newest end of `run`."""
        if self.db is None:
            return None
        query = f"SELECT {CHECKPOINT_COLUMNS} FROM audit_checkpoints WHERE run = ? ORDER BY id DESC LIMIT 1"  # noqa: S608
        with mapped(self._path):
            found = self.db.execute(query, (run,)).fetchone()
        return None if found is None else Checkpoint(*found)


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
