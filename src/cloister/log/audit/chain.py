"""Writing the audit. Each function runs inside a transaction that someone else began, the event's own."""

import logging
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from cloister.core.errors import CloisterError
from cloister.core.events import AnyBody, RunAdmitted, decode_body
from cloister.log.audit.details import AUDITED_KINDS, Detail, Fact, fact
from cloister.log.audit.entry import (
    FIRST,
    AuditEntry,
    entry_hash,
    extended,
    microseconds,
    signed_bytes,
    text_of,
)

logger = logging.getLogger(__name__)

_INSERT = (
    "INSERT INTO audit (number, at_us, kind, run, seq, who, detail, log, previous, hash) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
UNCHECKED = 256
"""Entries outside runs after which the head is signed without waiting for a run to end."""


class Signer(Protocol):
    """The host's key. Both raise `HostError` where it cannot be used."""

    def public(self) -> str: ...

    def sign(self, data: bytes) -> str: ...


class Stored(NamedTuple):
    """An event as it is in the log, and what is entered for it."""

    seq: int
    at: float
    data: bytes
    fact: Fact | None
    asks: str | None = None
    """Who asked for the run, where this event is the request."""


class Run(NamedTuple):
    """Where the audit of one run stands."""

    id: str
    who: str
    """Who asked for it."""
    log: str
    """The hash over its log."""


def stored(seq: int, at: float, body: AnyBody, data: bytes) -> Stored:
    return Stored(seq, at, data, fact(body), body.who if isinstance(body, RunAdmitted) else None)


def record(db: sqlite3.Connection, num: int, run: str, events: Iterable[Stored]) -> None:
    """Enter what of a run's new events is an action or a decision, and extend the hash over its log."""
    who, log = db.execute("SELECT who, log FROM runs WHERE num = ?", (num,)).fetchone()
    entries, after = entered(Run(run, who, log or FIRST), head(db), events)
    insert(db, entries)
    db.execute("UPDATE runs SET who = ?, log = ? WHERE num = ?", (after.who, after.log, num))


def entered(run: Run, newest: tuple[int, str], events: Iterable[Stored]) -> tuple[list[AuditEntry], Run]:
    """The entries for `events`, which follow `newest`, and where the run stands after them. Pure."""
    entries: list[AuditEntry] = []
    number, previous = newest
    _, who, log = run
    for event in events:
        at_us = microseconds(event.at)
        log = extended(log, event.seq, at_us, event.data)
        who = who if event.asks is None else event.asks
        stated = event.fact
        if stated is None:
            continue
        number += 1
        actor = who if stated.who is None else stated.who
        entry = _linked(
            AuditEntry(number, at_us, stated.kind, run.id, event.seq, actor, stated.detail, log, previous, "")
        )
        entries.append(entry)
        previous = entry.hash
    return entries, Run(run.id, who, log)


def insert(db: sqlite3.Connection, entries: Iterable[AuditEntry]) -> None:
    db.executemany(_INSERT, map(msgspec.structs.astuple, entries))


def note(db: sqlite3.Connection, kind: str, who: str, detail: Detail | str, at: float) -> AuditEntry:
    """Enter something that belongs to no run's log; a detail that is text is JSON already."""
    text = detail if isinstance(detail, str) else text_of(detail)
    number, previous = head(db)
    entry = _linked(AuditEntry(number + 1, microseconds(at), kind, None, None, who, text, None, previous, ""))
    insert(db, (entry,))
    return entry


def head(db: sqlite3.Connection) -> tuple[int, str]:
    """Number and hash of the newest entry."""
    found = db.execute("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    return (0, FIRST) if found is None else (found[0], found[1])


def unsigned(db: sqlite3.Connection) -> int:
    """How many entries no checkpoint covers yet."""
    covered = db.execute("SELECT number FROM audit_checkpoints ORDER BY id DESC LIMIT 1").fetchone()
    return head(db)[0] - (covered[0] if covered else 0)


def checkpoint(db: sqlite3.Connection, key: Signer, at: float, run: str | None = None) -> None:
    """Sign the head. A key that cannot be used keeps nobody from ending a run: then that is an entry."""
    try:
        public = key.public()
        if not _introduced(db, public):
            introduce(db, public, at)
        number, hashed = head(db)
        at_us = microseconds(at)
        signature = key.sign(signed_bytes(number, hashed, at_us, run, public))
    except CloisterError as error:
        logger.warning("the audit could not be signed: %s", error.message)
        note(db, "Unsigned", "", {"run": run, "code": error.code}, at)
        return
    _keep(db, number, hashed, at_us, run, public, signature)


def introduce(db: sqlite3.Connection, public: str, at: float) -> None:
    """Enter a key before anything is signed with it, and which one it follows."""
    found = db.execute(
        "SELECT detail FROM audit WHERE kind = 'KeyMade' ORDER BY number DESC LIMIT 1"
    ).fetchone()
    previous = msgspec.json.decode(found[0], type=dict[str, str | None])["key"] if found else None
    note(db, "KeyMade", "", {"key": public, "previous": previous}, at)


def rotate(db: sqlite3.Connection, old: Signer, new: str, at: float) -> None:
    """The old key's last signature is over the entry that names the new one."""
    if not _introduced(db, old.public()):
        introduce(db, old.public(), at)
    introduce(db, new, at)
    number, hashed = head(db)
    at_us = microseconds(at)
    signature = old.sign(signed_bytes(number, hashed, at_us, None, old.public()))
    _keep(db, number, hashed, at_us, None, old.public(), signature)


def _introduced(db: sqlite3.Connection, public: str) -> bool:
    found = db.execute("SELECT detail FROM audit WHERE kind = 'KeyMade'")
    return any(
        public == msgspec.json.decode(detail, type=dict[str, str | None])["key"] for (detail,) in found
    )


def _keep(  # noqa: PLR0913  one parameter per column
    db: sqlite3.Connection, number: int, hashed: str, at_us: int, run: str | None, key: str, signature: str
) -> None:
    db.execute(
        "INSERT INTO audit_checkpoints (number, hash, at_us, run, key, signature) VALUES (?, ?, ?, ?, ?, ?)",
        (number, hashed, at_us, run, key, signature),
    )


def _linked(entry: AuditEntry) -> AuditEntry:
    return msgspec.structs.replace(entry, hash=entry_hash(entry))


# The tables of the audit. Like the log they take new rows and nothing else.


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
)

RUN_COLUMNS = (
    "ALTER TABLE runs ADD COLUMN who TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN log TEXT NOT NULL DEFAULT ''",
)
"""Who asked for a run, and the hash over its log so far."""


# The audit of a log that was begun before there was one: made from its events, and said to be.


class Tag(msgspec.Struct, frozen=True):
    """The one thing that every event says of itself, whatever version wrote it."""

    type: str


decode_tag = msgspec.json.Decoder(Tag).decode


def add_audit(db: sqlite3.Connection, at: float) -> None:
    """The tables of the audit in a log of version 1. What is in the log gets its entries now.

    Its last entry says so: what was changed before this moment, the chain cannot know.
    """
    for statement in (*TABLES, *RUN_COLUMNS):
        db.execute(statement)
    if db.execute("SELECT 1 FROM events LIMIT 1").fetchone() is None:
        return
    runs: dict[int, Run] = {num: Run(name, "", FIRST) for num, name in db.execute("SELECT num, id FROM runs")}
    newest = head(db)
    count = 0
    for num, seq, when, body in db.execute("SELECT run, seq, at, body FROM events ORDER BY id"):
        count += 1
        entries, runs[num] = entered(runs[num], newest, (_stored(seq, when, body),))
        if entries:
            insert(db, entries)
            newest = entries[-1].number, entries[-1].hash
    db.executemany(
        "UPDATE runs SET who = ?, log = ? WHERE num = ?",
        [(run.who, run.log, num) for num, run in runs.items()],
    )
    note(db, "Backfilled", "", {"entries": newest[0], "events": count}, at)


def _stored(seq: int, at: float, body: bytes) -> Stored:
    try:
        return stored(seq, at, decode_body(body), body)
    except msgspec.DecodeError:
        return Stored(seq, at, body, _unreadable(body))


def _unreadable(body: bytes) -> Fact | None:
    try:
        kind = decode_tag(body).type
    except msgspec.DecodeError:
        return None
    return Fact(kind, None, '{"unreadable":true}') if kind in AUDITED_KINDS else None
