"""One entry of the audit, and the hashes that hold the chain together. Pure.

What is hashed is spelled out in docs/audit.md, so that others can check an exported chain without us.
"""

import hashlib
from collections.abc import Mapping

import msgspec

FIRST = "0" * 64
"""What stands before the first entry of a chain, and before the first event of a run."""

_ENTRY = b"cloister audit entry 1\n"
_EVENT = b"cloister audit event 1\n"
_CHECKPOINT = b"cloister audit checkpoint 1\n"

encode = msgspec.json.Encoder().encode


class AuditEntry(msgspec.Struct, frozen=True):
    """One thing that was done or decided."""

    number: int
    """From 1, without gaps, one chain per data directory."""
    at_us: int
    """Microseconds since 1970."""
    kind: str
    """The name of the event's class, or of what happened outside any run."""
    run: str | None
    seq: int | None
    """The event's number in that run's log."""
    who: str
    """The person who did it, or for whom the run does it."""
    detail: str
    """A JSON object, kept as the text that was hashed."""
    log: str | None
    """The hash over the run's whole log up to this event; None outside runs."""
    previous: str
    hash: str


class Checkpoint(msgspec.Struct, frozen=True):
    """The head of the chain at one moment, signed with the host's key."""

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
    """The hash that `entry` must have."""
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
    """The hash over a run's log that had `log` and now has one event more; `body` is what is stored."""
    return hashlib.sha256(_EVENT + encode((log, seq, at_us)) + b"\n" + body).hexdigest()


def signed_bytes(number: int, head: str, at_us: int, run: str | None, key: str) -> bytes:
    """What a checkpoint's signature is over."""
    return _CHECKPOINT + encode((number, head, at_us, run, key))


def microseconds(at: float) -> int:
    """Unix seconds as the whole number that is hashed: the same in every language."""
    return round(at * 1_000_000)


def text_of(detail: Mapping[str, object]) -> str:
    """A detail as it is stored. Text that no UTF-8 can say becomes replacement signs."""
    try:
        return encode(detail).decode()
    except UnicodeEncodeError:
        return encode({name: _utf8(value) for name, value in detail.items()}).decode()


def _utf8(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
