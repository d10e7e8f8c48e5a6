"""What transactions change, as records: a store that is a copy of a shared log sends them to the other copies.

Only what was decided is in a record. Lists, hashes, totals and indexes follow from it, and every copy computes them.
"""

import sqlite3
from typing import Any

import msgspec

from cloister.core.ids import OwnerId, RunId
from cloister.log.audit.entry import Checkpoint


class Logged(msgspec.Struct, frozen=True, tag=True):
    """Events at the end of one run's log; a run begins with its `RunAdmitted`."""

    run: RunId
    seq: int
    """The number of the first."""
    at: float
    bodies: tuple[msgspec.Raw, ...]
    who: str = ""
    """The sender of a message with a `key`."""
    key: str = ""
    """What its sender calls the last event."""


class Noted(msgspec.Struct, frozen=True, tag=True):
    """An entry of the audit that belongs to no run."""

    kind: str
    who: str
    detail: str
    at: float


class Signed(msgspec.Struct, frozen=True, tag=True):
    """A signature over the head of the audit."""

    checkpoint: Checkpoint


class Held(msgspec.Struct, frozen=True, tag=True):
    """What a call under way may take."""

    ticket: str
    run: RunId
    owner: OwnerId
    steps: int
    tokens: int
    dollars: float


class Released(msgspec.Struct, frozen=True, tag=True):
    """A hold that is over."""

    ticket: str


class Buried(msgspec.Struct, frozen=True, tag=True):
    """The holds of a dead owner are over."""

    owner: OwnerId


class Forgot(msgspec.Struct, frozen=True, tag=True):
    """A finished run was removed with its events. The audit says so in an entry of its own."""

    run: RunId


Change = Logged | Noted | Signed | Held | Released | Buried | Forgot


class Recorded(sqlite3.Connection):
    """A connection that keeps the changes of the transaction under way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.changes: list[Change] = []


def record(db: sqlite3.Connection, change: Change) -> None:
    """Keep `change` if anything needs it."""
    if isinstance(db, Recorded):
        db.changes.append(change)
