"""One entry of the audit, and the hashes that link the chain. Pure.

docs/guide/audit.md specifies the hashed bytes, so that others can verify an exported chain without Cloister.
"""

import hashlib
from collections.abc import Mapping

import msgspec

FIRST = "0" * 64
"""The hash before the first entry of a chain, and before the first event of a run."""

_ENTRY = b"cloister audit entry 1\n"
_EVENT = b"cloister audit event 1\n"
_CHECKPOINT = b"cloister audit checkpoint 1\n"
_HEAD = b"cloister audit head 1\n"

encode = msgspec.json.Encoder().encode


class AuditEntry(msgspec.Struct, frozen=True):
    """One action or decision."""

    number: int
    """From 1, without gaps, one chain per data directory."""
    at_us: int
    """Microseconds since 1970."""
    kind: str
    """The name of the event's class, or of something outside any run."""
    run: str | None
    seq: int | None
    """The event's number in that run's log."""
    who: str
    """The person who did it, or who asked for the run."""
    detail: str
    """A JSON object, stored as the text that was hashed."""
    log: str | None
    """The hash over the run's whole log up to this event; None outside runs."""
    previous: str
    hash: str


class AuditFilter(msgspec.Struct, frozen=True):
    """Which entries, and from which end."""

    kind: str | None = None
    who: str | None = None
    """A part of the person's name."""
    newest: bool = False
    """The newest first."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A signature of the host's key over the head of the chain: in the database, or outside it as the signed head."""

    number: int
    hash: str
    at_us: int
    run: str | None
    """The run whose end it marks."""
    key: str
    """The public key."""
    signature: str
    """Ed25519, in hex."""


def entry_hash(entry: AuditEntry) -> str:
    """Compute the hash of `entry`."""
    fields = (
        entry.number,
        entry.at_us,
        entry.kind,
        entry.run,
        entry.seq,
        entry.who,
        entry.detail,
        entry.log,
        entry.previous,
    )
    return hashlib.sha256(_ENTRY + encode(fields)).hexdigest()


def extended(log: str, seq: int, at_us: int, body: bytes) -> str:
    """Extend the hash `log` over a run's log by one event; `body` are the stored bytes."""
    return hashlib.sha256(_EVENT + encode((log, seq, at_us)) + b"\n" + body).hexdigest()


def signed_bytes(number: int, head: str, at_us: int, run: str | None, key: str) -> bytes:
    """Return the bytes that a checkpoint signs."""
    return _CHECKPOINT + encode((number, head, at_us, run, key))


def head_bytes(number: int, head: str, at_us: int, key: str) -> bytes:
    """Return the bytes that the head outside the database signs. No checkpoint can take its place."""
    return _HEAD + encode((number, head, at_us, key))


def microseconds(at: float) -> int:
    """Convert Unix seconds to the integer that is hashed."""
    return round(at * 1_000_000)


def exact(at: float) -> float:
    """Return `at` in whole microseconds: the only float that verification accepts for the hashed integer."""
    return microseconds(at) / 1_000_000


def text_of(detail: Mapping[str, object]) -> str:
    """Encode a detail. Replaces text that UTF-8 cannot encode."""
    try:
        return encode(detail).decode()
    except UnicodeEncodeError:
        return encode({name: _utf8(value) for name, value in detail.items()}).decode()


def _utf8(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
