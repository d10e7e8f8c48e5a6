"""The hash chain of the audit: which entries a run's new events add, and how they are linked. Pure.

A backbone stores the entries in the transaction that stores the events.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from cloister.core.events import AnyBody, RunAdmitted, decode_body
from cloister.log.audit.details import AUDITED_KINDS, Detail, Fact, fact
from cloister.log.audit.entry import AuditEntry, entry_hash, extended, microseconds, text_of

UNCHECKED = 256
"""Entries outside runs after which the head is signed without waiting for a run to end."""


class Signer(Protocol):
    """The host's key. Both methods raise `HostError` when the key cannot be used."""

    def public(self) -> str: ...

    def sign(self, data: bytes) -> str: ...


class Head(NamedTuple):
    """The newest entry."""

    number: int
    hash: str


class LoggedEvent(NamedTuple):
    """An event as stored in the log, and the audit's statement about it."""

    seq: int
    at: float
    data: bytes
    fact: Fact | None
    requester: str | None = None
    """Who asked for the run, if this event is the request."""


class RunChain(NamedTuple):
    """The audit's state for one run."""

    id: str
    who: str
    """Who asked for the run."""
    log: str
    """The hash over the run's log."""


def logged(seq: int, at: float, body: AnyBody, data: bytes) -> LoggedEvent:
    return LoggedEvent(seq, at, data, fact(body), body.who if isinstance(body, RunAdmitted) else None)


def entered(run: RunChain, head: Head, events: Iterable[LoggedEvent]) -> tuple[list[AuditEntry], RunChain]:
    """Return the entries that `events` add after `head`, and the run's state after them."""
    entries: list[AuditEntry] = []
    number, previous = head
    _, who, log = run
    for event in events:
        at_us = microseconds(event.at)
        log = extended(log, event.seq, at_us, event.data)
        who = who if event.requester is None else event.requester
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
    return entries, RunChain(run.id, who, log)


def noted(head: Head, kind: str, who: str, detail: Detail | str, at: float) -> AuditEntry:
    """Return the entry after `head` for something outside any run. A `detail` that is text is JSON already."""
    text = detail if isinstance(detail, str) else text_of(detail)
    return _linked(
        AuditEntry(head.number + 1, microseconds(at), kind, None, None, who, text, None, head.hash, "")
    )


def _linked(entry: AuditEntry) -> AuditEntry:
    return msgspec.structs.replace(entry, hash=entry_hash(entry))


class _Tag(msgspec.Struct, frozen=True):
    """The one field that every event has, whatever version wrote it."""

    type: str


_decode_tag = msgspec.json.Decoder(_Tag).decode


def kind_of(data: bytes) -> str:
    """Return the kind of a stored event. Raises `msgspec.DecodeError`."""
    return _decode_tag(data).type


def reread(seq: int, at: float, data: bytes) -> LoggedEvent:
    """As `logged`, for an event from disk that this version may be unable to decode."""
    try:
        return logged(seq, at, decode_body(data), data)
    except msgspec.DecodeError:
        pass
    try:
        kind = kind_of(data)
    except msgspec.DecodeError:
        kind = ""
    unreadable = Fact(kind, None, '{"unreadable":true}') if kind in AUDITED_KINDS else None
    return LoggedEvent(seq, at, data, unreadable)
