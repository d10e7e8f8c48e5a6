"""The SQLite file: tables, opening, upgrades, and the meaning of its errors."""

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from cloister.core.errors import Bug, CloisterError, HostError
from cloister.log.sqlite.audit import TABLES as AUDIT_TABLES
from cloister.log.sqlite.audit import add_audit, begin_head
from cloister.log.sqlite.changes import Recorded
from cloister.log.sqlite.ledger import TABLES as LEDGER_TABLES

VERSION = 3
APPLICATION_ID = 0x636C6F69
"""Distinguishes the log from any other SQLite database."""

BUSY_SECONDS = 10.0
"""How long a transaction waits for that of another process."""

EVENTS_NEVER_GO = """CREATE TRIGGER events_never_go BEFORE DELETE ON events
        BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END"""

_LOG = (
    """CREATE TABLE runs (
        num INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        key TEXT UNIQUE,
        state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'finished')),
        outcome TEXT,
        reason TEXT,
        prompt TEXT NOT NULL,
        repo TEXT NOT NULL,
        model TEXT,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        last_seq INTEGER NOT NULL,
        owner TEXT,
        epoch INTEGER NOT NULL
    ) STRICT""",
    "CREATE INDEX runs_to_claim ON runs (num) WHERE state <> 'finished'",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES runs (num),
        seq INTEGER NOT NULL,
        at REAL NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (run, seq)
    ) STRICT""",
    """CREATE TRIGGER events_never_change BEFORE UPDATE ON events
        BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
    EVENTS_NEVER_GO,
    # Also stops INSERT OR REPLACE, which deletes without firing the trigger above.
    """CREATE TRIGGER events_have_no_gap BEFORE INSERT ON events
        WHEN NEW.seq <> 1 + COALESCE((SELECT MAX(seq) FROM events WHERE run = NEW.run), 0)
        BEGIN SELECT RAISE(ABORT, 'the log has no gap'); END""",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
"""As of version 1."""

SENT_TABLES = (
    """CREATE TABLE IF NOT EXISTS sent_messages (run INTEGER NOT NULL, who TEXT NOT NULL, key TEXT NOT NULL,
    seq INTEGER NOT NULL, PRIMARY KEY (run, who, key)) STRICT, WITHOUT ROWID""",
)
"""The senders' ids of messages, and the events that they caused; made when the first one comes."""

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_NO_ACCESS = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}
)


def corrupt(path: Path) -> HostError:
    return HostError(
        "corrupt_data",
        f"{path} is damaged or is not a log of Cloister: move it and its -wal and -shm files away, or "
        "restore a copy; nothing was deleted.",
    )


def meaning(error: sqlite3.Error, path: Path) -> CloisterError:
    """Translate a failure of SQLite."""
    full: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = full & 0xFF
    if code == sqlite3.SQLITE_FULL or full == sqlite3.SQLITE_IOERR_SHMSIZE:
        return HostError("no_disk", f"There is no space left for {path}: free some and try again.")
    if code in _CORRUPT:
        return corrupt(path)
    if code in _BUSY:
        return HostError("log_busy", f"Another process keeps {path} busy: try again in a moment.")
    if code in _NO_ACCESS:
        return HostError(
            "no_access", f"{path} cannot be opened or written: check its permissions and directory."
        )
    if code == sqlite3.SQLITE_IOERR:
        return HostError("disk_failed", f"Reading or writing {path} failed ({error}): check the disk.")
    return Bug(f"The log refused a statement: {error}.")


@contextmanager
def mapped(path: Path) -> Generator[None]:
    """Translate failures of SQLite inside the block."""
    try:
        yield
    except sqlite3.Error as error:
        raise meaning(error, path) from error


def connect(path: Path, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """Open a connection without implicit transactions; its users take turns, in any thread."""
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=kind,
    )
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def is_new(db: sqlite3.Connection) -> bool:
    """Return whether the file has no tables yet: just created, or its creator was stopped."""
    return db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0


def has_audit(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'audit'").fetchone() is not None


COPY_TABLE = """CREATE TABLE replica (
    one INTEGER PRIMARY KEY CHECK (one = 1), shared TEXT NOT NULL, up_to INTEGER NOT NULL) STRICT"""
"""Only in a copy of a shared log (`log/sqlite/replica.py`)."""


def check_kind(db: sqlite3.Connection, path: Path, copy: bool) -> None:
    """Raises `HostError` (`cluster_copy`, `own_log`) for a copy that is opened as a log, and the reverse."""
    is_copy = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'replica'").fetchone() is not None
    if is_copy and not copy:
        raise HostError(
            "cluster_copy",
            f"{path} is a copy of a cluster's log: only a machine of the cluster writes to it.",
        )
    if copy and not is_copy:
        raise HostError(
            "own_log",
            f"{path} is the log of this machine alone: join a cluster with an empty data directory.",
        )


def check_ours(db: sqlite3.Connection, path: Path) -> None:
    """Raises `HostError` (`newer_data`, `corrupt_data`) for a file that this version cannot read."""
    version = version_of(db)
    ours: int = db.execute("PRAGMA application_id").fetchone()[0]
    if ours != APPLICATION_ID or version < 1:
        raise corrupt(path)
    if version > VERSION:
        raise HostError(
            "newer_data",
            f"{path} was written by a newer Cloister (data version {version}, this one reads {VERSION}): "
            "upgrade Cloister.",
        )


def open_to_write(path: Path, *, copy: bool = False) -> sqlite3.Connection:
    """Open the log, created if missing. Raises `HostError`; never deletes or repairs anything.

    A `copy` of a shared log records its changes, and its audit begins with what the shared log says.
    """
    _make_private(path)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return _open_once(path, copy)
        except sqlite3.OperationalError as error:
            # Two processes create the file at once: switching to WAL fails instead of waiting.
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise meaning(error, path) from error
            time.sleep(0.01)
        except sqlite3.Error as error:
            raise meaning(error, path) from error


def _make_private(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # O_EXCL: opened here only if no connection can have it open. Closing a second descriptor of the file
        # would drop the locks that SQLite holds on it in this process.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        code = "no_disk" if error.errno == 28 else "no_access"
        raise HostError(code, f"{path} cannot be made: {error.strerror}.") from error


def _open_once(path: Path, copy: bool) -> sqlite3.Connection:
    db = connect(path, Recorded if copy else sqlite3.Connection)
    try:
        # Checked before the first write: a foreign database stays untouched.
        new = is_new(db)
        if not new:
            check_ours(db, path)
            check_kind(db, path, copy)
        if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise HostError(
                "no_wal",
                f"{path} is on a file system that cannot share memory: choose a local data directory.",
            )
        # After a power failure a copy reads again what it lost.
        db.execute(f"PRAGMA synchronous = {'NORMAL' if copy else 'FULL'}")
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.execute("PRAGMA foreign_keys = ON")
        if new or version_of(db) < VERSION:
            _bring_up(db, path, copy)
    except BaseException:
        db.close()
        raise
    return db


def version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def _bring_up(db: sqlite3.Connection, path: Path, copy: bool) -> None:
    """Create or upgrade the tables, in one transaction. Without a usable key the log stays at version 2."""
    from cloister.log.audit.head import HeadFile  # noqa: PLC0415  (slow, and readers do without it)

    db.execute("BEGIN IMMEDIATE")
    try:
        if is_new(db):
            for statement in (*_LOG, *((COPY_TABLE,) if copy else ())):
                db.execute(statement)
            db.execute("PRAGMA user_version = 1")
        check_ours(db, path)
        check_kind(db, path, copy)
        if version_of(db) < 2:
            if has_audit(db):
                raise corrupt(path)  # the version was edited
            add_audit(db, time.time())
            db.execute("PRAGMA user_version = 2")
        if version_of(db) < 3 and (copy or begin_head(db, HeadFile(path), time.time())):
            db.execute("PRAGMA user_version = 3")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def structure(db: sqlite3.Connection | None) -> dict[str, tuple[str, str]]:
    """Return name → kind and definition of all tables, indexes, triggers and views; as they should be for None."""
    if db is None:
        with closing(sqlite3.connect(":memory:")) as made:
            for statement in (*_LOG, *AUDIT_TABLES, *LEDGER_TABLES, *SENT_TABLES):
                made.execute(statement)
            return structure(made)
    found = db.execute(
        "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    )
    return {name: (kind, " ".join(text.split())) for name, kind, text in found}
