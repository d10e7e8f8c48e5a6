"""The audit in SQLite: its tables, and what is written to them inside a transaction that the caller began."""

import logging
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from cloister.core.errors import CloisterError
from cloister.log.audit.chain import Head, LoggedEvent, RunChain, Signer, entered, noted, reread
from cloister.log.audit.details import Detail
from cloister.log.audit.entry import FIRST, AuditEntry, Checkpoint, microseconds, signed_bytes
from cloister.log.sqlite.changes import Noted, Signed, record

if TYPE_CHECKING:
    from cloister.log.audit.head import HeadFile

logger = logging.getLogger(__name__)

ENTRY_COLUMNS = ", ".join(AuditEntry.__struct_fields__)
CHECKPOINT_COLUMNS = ", ".join(Checkpoint.__struct_fields__)

TABLES = (
    # AUTOINCREMENT remembers the highest number ever given: a missing tail shows even without a signature.
    """CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        at_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        run TEXT,
        seq INTEGER,
        who TEXT NOT NULL,
        detail TEXT NOT NULL,
        log TEXT,
        previous TEXT NOT NULL,
        hash TEXT NOT NULL
    ) STRICT""",
    "CREATE UNIQUE INDEX audit_of_runs ON audit (run, seq) WHERE run IS NOT NULL",
    "CREATE INDEX audit_of_keys ON audit (number) WHERE kind = 'KeyMade'",
    """CREATE TRIGGER audit_never_changes BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    """CREATE TRIGGER audit_never_goes BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    """CREATE TRIGGER audit_is_a_chain BEFORE INSERT ON audit
        WHEN NEW.number <> 1 + COALESCE((SELECT MAX(number) FROM audit), 0)
            OR NEW.previous <> COALESCE((SELECT hash FROM audit ORDER BY number DESC LIMIT 1), NEW.previous)
        BEGIN SELECT RAISE(ABORT, 'the audit is one chain'); END""",
    """CREATE TABLE audit_checkpoints (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        number INTEGER NOT NULL,
        hash TEXT NOT NULL,
        at_us INTEGER NOT NULL,
        run TEXT,
        key TEXT NOT NULL,
        signature TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX audit_checkpoints_by_number ON audit_checkpoints (number)",
    """CREATE TRIGGER audit_checkpoints_never_change BEFORE UPDATE ON audit_checkpoints
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    """CREATE TRIGGER audit_checkpoints_never_go BEFORE DELETE ON audit_checkpoints
        BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END""",
    # Who asked for a run, and the hash over its log so far.
    "ALTER TABLE runs ADD COLUMN who TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN log TEXT NOT NULL DEFAULT ''",
)


def add_audit(db: sqlite3.Connection, at: float) -> None:
    """Add the audit's tables to a log of version 1, with entries for the events that it already holds.

    The last entry says so: the chain cannot know what was changed before this moment.
    """
    for statement in TABLES:
        db.execute(statement)
    if db.execute("SELECT 1 FROM events LIMIT 1").fetchone() is None:
        return
    runs = {num: RunChain(name, "", FIRST) for num, name in db.execute("SELECT num, id FROM runs")}
    newest = head(db)
    count = 0
    for num, seq, when, body in db.execute("SELECT run, seq, at, body FROM events ORDER BY id"):
        count += 1
        entries, runs[num] = entered(runs[num], newest, (reread(seq, when, body),))
        if entries:
            _insert(db, entries)
            newest = Head(entries[-1].number, entries[-1].hash)
    db.executemany(
        "UPDATE runs SET who = ?, log = ? WHERE num = ?",
        [(run.who, run.log, num) for num, run in runs.items()],
    )
    note(db, "Backfilled", "", {"entries": newest.number, "events": count}, at)


def enter(db: sqlite3.Connection, num: int, run: str, events: Iterable[LoggedEvent]) -> None:
    """Enter the actions and decisions among a run's new events, and extend the hash over its log."""
    who, log = db.execute("SELECT who, log FROM runs WHERE num = ?", (num,)).fetchone()
    entries, after = entered(RunChain(run, who, log or FIRST), head(db), events)
    _insert(db, entries)
    db.execute("UPDATE runs SET who = ?, log = ? WHERE num = ?", (after.who, after.log, num))


def note(db: sqlite3.Connection, kind: str, who: str, detail: Detail | str, at: float) -> None:
    """Enter something that belongs to no run's log."""
    entry = noted(head(db), kind, who, detail, at)
    _insert(db, (entry,))
    record(db, Noted(kind, who, entry.detail, at))


def note_signed(db: sqlite3.Connection, key: Signer, kind: str, who: str, detail: Detail, at: float) -> None:
    """As `note`, with a signature over the entry itself. Raises `HostError` if the key cannot be used."""
    public = _introduced(db, key, at)
    note(db, kind, who, detail, at)
    _sign(db, key, public, at, None)


def head(db: sqlite3.Connection) -> Head:
    found = db.execute("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    return Head(0, FIRST) if found is None else Head(*found)


def unsigned(db: sqlite3.Connection) -> int:
    """Return how many entries no checkpoint covers yet."""
    covered = db.execute("SELECT number FROM audit_checkpoints ORDER BY id DESC LIMIT 1").fetchone()
    return head(db).number - (covered[0] if covered else 0)


def checkpoint(db: sqlite3.Connection, key: Signer, at: float, run: str | None = None) -> None:
    """Sign the head. A run can end even if the key cannot be used: an entry then says that it is unsigned."""
    try:
        _sign(db, key, _introduced(db, key, at), at, run)
    except CloisterError as error:
        logger.warning("the audit could not be signed: %s", error.message)
        note(db, "Unsigned", "", {"run": run, "code": error.code}, at)


def rotate(db: sqlite3.Connection, old: Signer, new: str, at: float) -> None:
    """Introduce the public key `new`; the last signature of `old` is over the entry that names it."""
    public = _introduced(db, old, at)
    _introduce(db, new, public, at)
    _sign(db, old, public, at, None)


def begin_head(db: sqlite3.Connection, file: "HeadFile", at: float) -> bool:
    """Begin to keep a signed head outside the database. Returns False if the key or the file cannot be used.

    The chain says so in an entry, so that no second beginning follows when the file is deleted.
    """
    if db.execute("SELECT 1 FROM audit WHERE kind = 'HeadBegun' LIMIT 1").fetchone():
        return True
    try:
        # The file first, with the entries that are committed already: it is never ahead of the database.
        file.begin(head(db), at)
        public = _introduced(db, file.key, at)
        note(db, "HeadBegun", "", {"key": public}, at)
        _sign(db, file.key, public, at, None)
    except CloisterError as error:
        logger.warning("the audit has no signed head: %s", error.message)
        return False
    return True


def accept(db: sqlite3.Connection, file: "HeadFile", who: str, reason: str, at: float) -> Head:
    """Enter that a person accepts the chain as it is, although its head or key differs. Returns the new head.

    The entry names the head that is given up.
    """
    try:
        lost = file.read()
    except CloisterError:
        lost = None  # damaged
    kept = head(db).number
    public = _introduced(db, file.key, at)
    detail = {
        "kept": kept,
        "lost": lost and {"number": lost.number, "hash": lost.hash, "key": lost.key},
        "key": public,
        "reason": reason,
    }
    note(db, "AuditAccepted", who, detail, at)
    _sign(db, file.key, public, at, None)
    return head(db)


class StoredChain:
    """`log.audit.head.Chain` over what is committed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def newest(self) -> Head:
        return head(self._db)

    def hash_of(self, number: int) -> str | None:
        found = self._db.execute("SELECT hash FROM audit WHERE number = ?", (number,)).fetchone()
        return None if found is None else found[0]

    def replaced(self, old: str, new: str) -> bool:
        found = self._db.execute(
            "SELECT detail FROM audit WHERE kind = 'KeyMade' AND number IN "
            "(SELECT number FROM audit_checkpoints WHERE key = ?)",
            (old,),
        )
        return any(_key_made(detail) == {"key": new, "previous": old} for (detail,) in found)


def _insert(db: sqlite3.Connection, entries: Iterable[AuditEntry]) -> None:
    db.executemany(
        f"INSERT INTO audit ({ENTRY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        map(msgspec.structs.astuple, entries),
    )


def _sign(db: sqlite3.Connection, key: Signer, public: str, at: float, run: str | None) -> None:
    number, hashed = head(db)
    at_us = microseconds(at)
    signature = key.sign(signed_bytes(number, hashed, at_us, run, public))
    keep(db, Checkpoint(number, hashed, at_us, run, public, signature))


def keep(db: sqlite3.Connection, signed: Checkpoint) -> None:
    """Store a signature; verification checks it."""
    db.execute(
        f"INSERT INTO audit_checkpoints ({CHECKPOINT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
        msgspec.structs.astuple(signed),
    )
    record(db, Signed(signed))


def _key_made(detail: str) -> dict[str, str | None]:
    return msgspec.json.decode(detail, type=dict[str, str | None])


def keys(db: sqlite3.Connection) -> list[str | None]:
    """Return the keys that the chain names, the newest first."""
    found = db.execute("SELECT detail FROM audit WHERE kind = 'KeyMade' ORDER BY number DESC")
    return [_key_made(detail)["key"] for (detail,) in found]


def _introduced(db: sqlite3.Connection, key: Signer, at: float) -> str:
    """Return the public half of `key`; enters it first unless the chain names it already."""
    public = key.public()
    known = keys(db)
    if public not in known:
        _introduce(db, public, next(iter(known), None), at)
    return public


def _introduce(db: sqlite3.Connection, public: str, previous: str | None, at: float) -> None:
    """Enter a key before anything is signed with it, and the key that it follows."""
    note(db, "KeyMade", "", {"key": public, "previous": previous}, at)
