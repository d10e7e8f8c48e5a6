"""The audit of a log that was begun before there was one: made from its events, and said to be."""

import sqlite3

import msgspec

from cloister.core.events import decode_body
from cloister.runs.audit.chain import Run, Stored, entered, head, insert, note, stored
from cloister.runs.audit.details import AUDITED_KINDS, Fact
from cloister.runs.audit.entry import FIRST
from cloister.runs.audit.tables import RUN_COLUMNS, TABLES


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
