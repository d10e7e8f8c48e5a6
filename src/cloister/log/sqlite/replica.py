"""A copy of a shared log in a SQLite file of this machine.

A transaction of this machine is tried on the copy and stays open until the shared log has accepted its changes;
transactions of other machines are applied in the order of the shared log. The copy holds nothing that the shared
log does not: it can be deleted, and is read again.
"""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cloister.core.errors import CloisterError, HostError
from cloister.core.events import Event
from cloister.core.system import in_thread
from cloister.log.audit.head import HeadFile, head_path
from cloister.log.audit.keys import KEY_FILE
from cloister.log.sqlite import audit, ledger, transactions
from cloister.log.sqlite.changes import (
    Buried,
    Change,
    Forgot,
    Held,
    Logged,
    Noted,
    Recorded,
    Released,
    Signed,
)
from cloister.log.sqlite.schema import mapped, open_to_write
from cloister.log.sqlite.writer import Connection, Job

VERSION = 1
"""Of the changes that this version writes and reads."""


class Commit(msgspec.Struct, frozen=True):
    """The changes of one transaction, as they are in the shared log."""

    version: int
    changes: tuple[Change, ...]
    head: str
    """The hash of the newest entry of the audit after it: every copy must come to the same."""


class Placed(NamedTuple):
    """A transaction and its place in the shared log."""

    number: int
    commit: Commit


class Replica(Connection):
    """The one connection that writes the copy. Its callers take turns, in any thread."""

    def __init__(self, path: Path, shared: str) -> None:
        with mapped(path):
            db = open_to_write(path, copy=True)
            super().__init__(db, path)
            db.execute("INSERT OR IGNORE INTO replica VALUES (1, ?, 0)", (shared,))
            known, self.up_to = db.execute("SELECT shared, up_to FROM replica").fetchone()
        if known != shared:
            db.close()
            raise HostError(
                "other_cluster",
                f"{path} is the copy of another cluster's log: move it away, or connect to that cluster.",
            )
        self._anchored = head_path(path).exists()

    @property
    def _changes(self) -> list[Change]:
        if not isinstance(self.db, Recorded):
            raise TypeError("A copy of a shared log is opened with `copy=True`.")
        return self.db.changes

    def propose(self, batch: Sequence[Job[object]]) -> Commit | None:
        """Try requests in a transaction that stays open; None if they change nothing in the shared log.

        The next call is `accept`, `keep_local` or `give_up`.
        """
        changes = self._changes
        with mapped(self._path):
            self.db.execute("BEGIN IMMEDIATE")
            changes.clear()
            for job in batch:
                before = len(changes)
                self.attempt(job)
                if job.error is not None:
                    del changes[before:]
        if not changes:
            return None
        return Commit(VERSION, tuple(changes), audit.head(self.db).hash)

    def accept(self, number: int) -> None:
        """The shared log has the proposed changes as this number."""
        with mapped(self._path):
            self.db.execute("UPDATE replica SET up_to = ?", (number,))
            self.db.execute("COMMIT")
        self.up_to = number
        self.advance()
        self.keep(self.head.sync)

    def keep_local(self) -> None:
        """Nothing was proposed: keep what only this copy has, as the sums of the budgets."""
        with mapped(self._path):
            self.db.execute("COMMIT")

    def give_up(self, batch: Sequence[Job[object]]) -> None:
        """Undo the open transaction and the answers in it."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self._changes.clear()
        for job in batch:
            job.answer, job.events, job.error = None, (), None

    def apply(self, placed: Iterable[Placed]) -> tuple[Event, ...]:
        """Write transactions of the shared log, in its order; returns their events. Raises `HostError`."""
        events: list[Event] = []
        last = self.up_to
        with mapped(self._path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                for last, commit in placed:
                    events += self._write(last, commit)
                self.db.execute("UPDATE replica SET up_to = ?", (last,))
                self.db.execute("COMMIT")
            finally:
                self._changes.clear()
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
        self.up_to = last
        self.advance()
        self.keep(self.head.sync)
        return tuple(events)

    def _write(self, number: int, commit: Commit) -> list[Event]:
        if commit.version > VERSION:
            raise HostError(
                "newer_data", "A newer Cloister writes to this cluster's log: upgrade this machine."
            )
        events: list[Event] = []
        try:
            for change in commit.changes:
                events += _apply(self.db, change)
        except (CloisterError, sqlite3.IntegrityError) as error:
            raise _differs(self._path, number) from error
        except msgspec.MsgspecError as error:
            raise HostError(
                "newer_data", "The cluster's log has an event that this version cannot read: upgrade it."
            ) from error
        if audit.head(self.db).hash != commit.head:
            raise _differs(self._path, number)
        return events

    def begin_head(self) -> None:
        """Begin the signed head of this copy, unless there is one, with what the copy holds by now."""
        self.keep(lambda: self.head.begin(audit.head(self.db), time.time()))
        self._anchored = True
        self.advance()

    def advance(self) -> None:
        """Advance the signed head, once there is one: the first of a machine is signed when its key was checked."""
        if self._anchored:
            super().advance()

    def close(self) -> None:
        self.keep(lambda: self.head.sync(now=True))
        self.db.close()


async def open_replica(path: Path, shared: str) -> Replica:
    """Open the copy at `path` of the shared log with the identity `shared`. Raises `HostError`."""
    return await in_thread(Replica, path, shared)


def begin_audit(db: sqlite3.Connection, file: HeadFile, at: float) -> tuple[None, tuple[Event, ...]]:
    """The request that begins the audit of a shared log, once; as a new log of one machine does.

    Raises `HostError` (`other_key`) on a machine with a key of its own.
    """
    known = audit.keys(db)
    if known and file.key.public() not in known:
        raise HostError(
            "other_key",
            f"The {KEY_FILE} of this machine is not the cluster's: replace it with that of another machine.",
        )
    audit.begin_head(db, file, at)
    return None, ()


def _apply(db: sqlite3.Connection, change: Change) -> tuple[Event, ...]:
    match change:
        case Logged():
            return transactions.replay(db, change)
        case Noted():
            audit.note(db, change.kind, change.who, change.detail, change.at)
        case Signed():
            audit.keep(db, change.checkpoint)
        case Held():
            ledger.hold_too(db, change)
        case Released():
            ledger.release(db, change.ticket)
        case Buried():
            ledger.bury(db, change.owner)
        case Forgot():
            transactions.drop(db, change.run)
    return ()


def _differs(path: Path, number: int) -> HostError:
    return HostError(
        "replica_differs",
        f"{path} does not follow the cluster's log at {number}: stop this machine, move the file away and start "
        "again; if it comes back, run `cloister audit verify` on every machine.",
    )
