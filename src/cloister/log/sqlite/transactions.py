"""The writes of the log. Each function runs inside a transaction that the caller began.

Each returns its answer and the events that it added; the writer announces them once they are durable.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import msgspec

from cloister.core import limits, text
from cloister.core.errors import Bug, Fenced, UserError
from cloister.core.events import (
    AnyBody,
    AttemptStarted,
    Event,
    PauseRequested,
    PromptReceived,
    ResumeRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunPaused,
    decode_body,
    encode_body,
)
from cloister.core.events.run import pause_reason
from cloister.core.ids import OwnerId, RunId, new_run_id
from cloister.core.requests import NewRun
from cloister.log.api import Fence
from cloister.log.audit.chain import Signer, logged
from cloister.log.sqlite import audit, ledger
from cloister.log.sqlite.changes import Forgot, Logged, record
from cloister.log.sqlite.reader import COLUMNS, Record, find, sent
from cloister.log.sqlite.schema import EVENTS_NEVER_GO, SENT_TABLES
from cloister.log.sqlite.told import of_kind

_DRIVEN = ("RunClaimed", "RunPaused", "RunContinued")
"""The last of them says whether the owner of a run paused it."""
_HELD = ("PauseRequested", "ResumeRequested", "RunContinued")
"""The last of them says whether a person paused a run."""


class EncodedBody(NamedTuple):
    """A body and its encoding, made and measured outside the transaction."""

    body: AnyBody
    data: bytes


class RunState(NamedTuple):
    """The state of one run."""

    num: int
    run: RunId
    state: str
    last_seq: int
    owner: str | None
    epoch: int


class Sender(NamedTuple):
    """Who sent the last of some events, and what they call it; without a key it has no name."""

    who: str
    key: str


NO_SENDER = Sender("", "")


def encoded(body: AnyBody) -> EncodedBody:
    """Raises `Bug` for an event that is too large: the texts of an event are bounded before it is built."""
    try:
        data = encode_body(body)
    except (UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise Bug(f"A {type(body).__name__} event cannot be encoded: {error}.") from error
    if len(data) > limits.EVENT_BYTES:
        raise Bug(
            f"A {type(body).__name__} event of {len(data):,} bytes is over the limit of {limits.EVENT_BYTES:,}."
        )
    return EncodedBody(body, data)


def from_a_person(body: AnyBody) -> EncodedBody:
    """As `encoded`, for a body whose text and size a person chose. Raises `UserError`."""
    try:
        size = len(body.text.encode()) if isinstance(body, PromptReceived) else 0
        limit = limits.PROMPT_BYTES if size > limits.PROMPT_BYTES else limits.EVENT_BYTES
        size = max(size, len(encode_body(body)))
    except UnicodeEncodeError:
        raise UserError("bad_text", "The text is not valid Unicode: send UTF-8.") from None
    if size > limit:
        raise UserError(
            "too_large",
            f"That is {size:,} bytes and the limit is {limit:,}: put long text into a file of the repository.",
        )
    return encoded(body)


def admit(
    db: sqlite3.Connection, entry: EncodedBody, at: float
) -> tuple[tuple[RunId, bool], tuple[Event, ...]]:
    """Insert a new run with its first event, or return the run that already has this key."""
    body = entry.body
    if not isinstance(body, RunAdmitted):
        raise Bug("A run starts with its admission.")
    new: NewRun = body.request
    if new.key is not None:
        known = db.execute(
            "SELECT r.id, e.body FROM runs r JOIN events e ON e.run = r.num AND e.seq = 1 WHERE r.key = ?",
            (new.key,),
        ).fetchone()
        if known is not None:
            first = decode_body(known[1])
            if not isinstance(first, RunAdmitted) or first.request != new:
                raise UserError(
                    "key_taken",
                    f"The key of this request is that of another one, run {known[0]}: use a new key.",
                )
            return (RunId(known[0]), False), ()
    run = new_run_id()
    return (run, True), _begin(db, run, entry, at)


def claim(
    db: sqlite3.Connection,
    owner: OwnerId,
    wanted: RunId | None,
    owner_lives: Callable[[OwnerId], bool],
    at: float,
) -> tuple[Fence | None, tuple[Event, ...]]:
    """Claim the oldest unfinished run without a living owner, or `wanted` if it has none or `owner` paused it."""
    candidates: Iterable[RunState]
    if wanted is not None:
        candidates = (_stored(find(db, wanted)),)
    else:
        found = db.execute(f"SELECT {COLUMNS} FROM runs WHERE state <> 'finished' ORDER BY num")  # noqa: S608
        candidates = [_stored(cast(Record, record)) for record in found]
    living: dict[str, bool] = {}
    for stored in candidates:
        if stored.state == "finished":
            continue
        holder = stored.owner
        if holder is not None and holder not in living:
            living[holder] = owner_lives(OwnerId(holder))
        resumes = (
            wanted is not None and holder == owner and isinstance(_last(db, stored.num, _DRIVEN), RunPaused)
        )
        if holder is None or resumes or not living[holder]:
            epoch = stored.epoch + 1
            events = _write(db, stored, (encoded(RunClaimed(owner, epoch)),), at)
            return Fence(stored.run, owner, epoch), events
    return None, ()


def append(
    db: sqlite3.Connection,
    fence: Fence,
    entries: tuple[EncodedBody, ...],
    at: float,
    key: Signer,
    last: int | None = None,
) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """Append the owner's events, all or none; none if the log no longer ends with `last`.

    Signs the end of a run with `key`.
    """
    stored = _stored(find(db, fence.run))
    if (stored.owner, stored.epoch) != (fence.owner, fence.epoch):
        raise Fenced(f"Run {fence.run} was claimed by another owner: this one may no longer add to its log.")
    if last is not None and stored.last_seq != last:
        return (), ()
    events = _append_live(db, stored, entries, at)
    if events and isinstance(events[-1].body, RunFinished):
        audit.checkpoint(db, key, at, fence.run)
    return events, events


def append_outside(
    db: sqlite3.Connection, run: RunId, entry: EncodedBody, at: float
) -> tuple[Event, tuple[Event, ...]]:
    """Append what a person says, whatever owner the run has. A message to a finished run queues it for another round."""
    stored, body = _stored(find(db, run)), entry.body
    who, key = getattr(body, "who", ""), getattr(body, "key", "")
    if key and (done := sent(db, run, stored.num, who, key)) is not None:
        if done.body != body:
            raise UserError("key_taken", "This id was used for another message to this run: use a new one.")
        return done, ()
    entries: tuple[EncodedBody, ...] = (entry,)
    if stored.state == "finished" and isinstance(body, PromptReceived):
        stored = stored._replace(state="queued", owner=None)
        entries = (encoded(RunContinued(body.who, body.origin)), entry)
    events = _append_live(db, stored, entries, at, Sender(who, key))
    return events[-1], events


def append_delivery(
    db: sqlite3.Connection, run: RunId, entry: EncodedBody, at: float, key: Signer
) -> tuple[Event, tuple[Event, ...]]:
    """Append a person's delivery to a finished run, and its end again: the log of a finished run ends with its end, signed."""
    stored = _stored(find(db, run))
    ended = _last(db, stored.num, ("RunFinished",))
    if stored.state != "finished" or not isinstance(ended, RunFinished):
        raise UserError("run_not_finished", f"Run {run} is not finished: it delivers its change itself.")
    events = _write(db, stored, (entry, encoded(msgspec.structs.replace(ended, again=True))), at)
    audit.checkpoint(db, key, at, run)
    return events[0], events


def forget(
    db: sqlite3.Connection, run: RunId, who: str, at: float, key: Signer
) -> tuple[bool, tuple[Event, ...]]:
    """Remove a finished run with its events; the signed audit says so and keeps what it said before.

    Returns False for the newest run and for the one with the newest event: later numbers are counted from them.
    """
    stored = _stored(find(db, run))
    if stored.state != "finished":
        raise UserError("run_not_finished", f"Run {run} has not ended: its log stays.")
    newest = db.execute(
        "SELECT MAX(num) FROM runs UNION SELECT run FROM events WHERE id = (SELECT MAX(id) FROM events)"
    )
    if (stored.num,) in newest.fetchall():
        return False, ()
    (log,) = db.execute("SELECT log FROM runs WHERE num = ?", (stored.num,)).fetchone()
    detail = {"run": run, "events": stored.last_seq, "log": log}
    audit.note_signed(db, key, "RunForgotten", who, detail, at)
    drop(db, run)
    record(db, Forgot(run))
    return True, ()


def drop(db: sqlite3.Connection, run: RunId) -> None:
    """Delete a run and its events, and overwrite them in the file. What it spent stays counted."""
    ledger.bring_up(db)
    num = find(db, run)[0]
    db.execute("PRAGMA secure_delete = ON")
    for statement in SENT_TABLES:
        db.execute(statement)
    db.execute("DROP TRIGGER events_never_go")
    for where in ("sent_messages WHERE run", "events WHERE run", "runs WHERE num"):
        db.execute(f"DELETE FROM {where} = ?", (num,))  # noqa: S608  (constants)
    db.execute(EVENTS_NEVER_GO)
    db.execute("PRAGMA secure_delete = OFF")


def replay(db: sqlite3.Connection, change: Logged) -> tuple[Event, ...]:
    """Write events that another copy of the log decided on. Raises `Bug` if they do not follow."""
    entries = tuple(EncodedBody(decode_body(bytes(data)), bytes(data)) for data in change.bodies)
    if entries and isinstance(entries[0].body, RunAdmitted):
        return _begin(db, change.run, entries[0], change.at)
    stored = _stored(find(db, change.run))
    if stored.last_seq + 1 != change.seq:
        raise Bug(f"Event {change.seq} of run {change.run} does not follow event {stored.last_seq}.")
    return _write(db, stored, entries, change.at, Sender(change.who, change.key))


def _begin(db: sqlite3.Connection, run: RunId, entry: EncodedBody, at: float) -> tuple[Event, ...]:
    if not isinstance(entry.body, RunAdmitted):
        raise Bug("A run starts with its admission.")
    new: NewRun = entry.body.request
    prompt = text.bounded(new.prompt, limits.PROMPT_CHARS_LISTED)
    num = db.execute(
        "INSERT INTO runs (id, key, state, prompt, repo, model, created_at, updated_at, last_seq, epoch) "
        "VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, 0, 0)",
        (run, new.key, prompt, new.repo, new.model, at, at),
    ).lastrowid
    if num is None:
        raise Bug("A new run got no number.")
    return _write(db, RunState(num, run, "queued", 0, None, 0), (entry,), at)


def _stored(record: Record) -> RunState:
    return RunState(record[0], RunId(record[1]), record[2], record[10], record[11], record[12])


def _append_live(
    db: sqlite3.Connection,
    stored: RunState,
    entries: tuple[EncodedBody, ...],
    at: float,
    sender: Sender = NO_SENDER,
) -> tuple[Event, ...]:
    ends = [isinstance(entry.body, RunFinished) for entry in entries]
    if stored.state == "finished" or any(ends[:-1]):
        raise UserError("run_finished", f"Run {stored.run} is finished: its log takes nothing more.")
    if any(isinstance(entry.body, RunAdmitted | RunClaimed) for entry in entries):
        raise Bug("Only admitting and claiming a run write those events.")
    return _write(db, stored, entries, at, sender)


def _write(
    db: sqlite3.Connection,
    stored: RunState,
    entries: tuple[EncodedBody, ...],
    at: float,
    sender: Sender = NO_SENDER,
) -> tuple[Event, ...]:
    if not entries:
        return ()
    events = tuple(
        Event(stored.run, stored.last_seq + offset, at, entry.body)
        for offset, entry in enumerate(entries, start=1)
    )
    db.executemany(
        "INSERT INTO events (run, seq, at, body) VALUES (?, ?, ?, ?)",
        [(stored.num, event.seq, at, entry.data) for event, entry in zip(events, entries, strict=True)],
    )
    db.execute("UPDATE runs SET last_seq = ?, updated_at = ? WHERE num = ?", (events[-1].seq, at, stored.num))
    audited = (
        logged(event.seq, at, entry.body, entry.data) for event, entry in zip(events, entries, strict=True)
    )
    audit.enter(db, stored.num, stored.run, audited)
    for event in events:
        _reflect(db, stored.num, event.body)
    if sender.key:
        for statement in SENT_TABLES:
            db.execute(statement)
        db.execute("INSERT INTO sent_messages VALUES (?, ?, ?, ?)", (stored.num, *sender, events[-1].seq))
    bodies = tuple(msgspec.Raw(entry.data) for entry in entries)
    record(db, Logged(stored.run, events[0].seq, at, bodies, *sender))
    return events


def _reflect(db: sqlite3.Connection, num: int, body: AnyBody) -> None:
    """Update the run's row in the transaction of the event that changes it."""
    match body:
        case RunFinished():
            db.execute(
                "UPDATE runs SET state = 'finished', outcome = ?, reason = ? WHERE num = ?",
                (body.outcome, body.reason, num),
            )
        case RunClaimed():
            db.execute(
                "UPDATE runs SET state = 'running', owner = ?, epoch = ?, reason = ? WHERE num = ?",
                (body.owner, body.epoch, _why_waiting(db, num), num),
            )
        case RunContinued():
            # Without an owner, so that the driver of the last round cannot append any more.
            db.execute(
                "UPDATE runs SET state = 'queued', outcome = NULL, reason = NULL, owner = NULL WHERE num = ?",
                (num,),
            )
        case RunPaused() | PauseRequested() | ResumeRequested():
            db.execute("UPDATE runs SET reason = ? WHERE num = ?", (_why_waiting(db, num), num))
        case AttemptStarted():
            db.execute(
                "UPDATE runs SET model = COALESCE(model, ?) WHERE num = ?", (body.model or body.harness, num)
            )
        case _:
            pass


def _why_waiting(db: sqlite3.Connection, num: int) -> str | None:
    """Why an unfinished run waits: a lack of disk and a person's pause come and go independently."""
    paused = _last(db, num, _DRIVEN)
    if isinstance(paused, RunPaused):
        return paused.reason
    held = _last(db, num, _HELD)
    return pause_reason(held.who) if isinstance(held, PauseRequested) else None


def _last(db: sqlite3.Connection, num: int, kinds: tuple[str, ...]) -> AnyBody | None:
    found = db.execute(
        f"SELECT body FROM events WHERE run = ? AND ({of_kind(kinds)}) ORDER BY seq DESC LIMIT 1",  # noqa: S608
        (num,),
    ).fetchone()
    return None if found is None else decode_body(found[0])
