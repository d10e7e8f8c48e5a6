"""Notices that wait to be sent, and where to, in a file of their own; durable when a call returns."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from cloister.core.errors import UserError
from cloister.core.system import in_thread
from cloister.log.sqlite.schema import connect, mapped

T = TypeVar("T")
NoticeKind = Literal["ended", "asks", "stuck", "test"]
Format = Literal["json", "slack", "mail"]

OUTBOX_FILE = "notices.db"
"""In the data directory."""
TARGETS = 100
DEAD = 10_000
"""Dead deliveries that are kept, the newest."""

_TABLES = (
    """CREATE TABLE IF NOT EXISTS target (name TEXT PRIMARY KEY, address TEXT NOT NULL, format TEXT NOT NULL,
    kinds TEXT NOT NULL, secret TEXT NOT NULL, made_at REAL NOT NULL, who TEXT NOT NULL) STRICT""",
    """CREATE TABLE IF NOT EXISTS delivery (id INTEGER PRIMARY KEY, target TEXT NOT NULL, key TEXT NOT NULL,
    notice BLOB NOT NULL, made_at REAL NOT NULL, tries INTEGER NOT NULL DEFAULT 0, next_at REAL,
    problem TEXT NOT NULL DEFAULT '', UNIQUE (target, key)) STRICT""",
    "CREATE INDEX IF NOT EXISTS due ON delivery (target, next_at) WHERE next_at IS NOT NULL",
    "CREATE TABLE IF NOT EXISTS cursor (at INTEGER NOT NULL) STRICT",
)
_TARGET = "name, address, format, kinds, secret, made_at, who"
_DELIVERY = "id, target, key, notice, made_at, tries, problem"


class Target(msgspec.Struct, frozen=True):
    """Where notices go."""

    name: str
    address: str
    """An https address, or `mailto:` and an address."""
    format: Format
    kinds: tuple[NoticeKind, ...]
    secret: str
    """Signs deliveries in the format `json`; empty for others."""
    made_at: float
    who: str


class Delivery(msgspec.Struct, frozen=True):
    """One notice for one target; it waits, or it is dead."""

    id: int
    target: str
    key: str
    notice: bytes
    made_at: float
    tries: int
    problem: str
    """Why the last try failed."""


def _target(name: str, address: str, form: Format, kinds: str, *rest: Any) -> Target:
    return Target(name, address, form, cast("tuple[NoticeKind, ...]", tuple(kinds.split(","))), *rest)


class Outbox:
    """Targets and deliveries of one data directory. Several processes may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def add(self, target: Target) -> None:
        """Raises `UserError` (`name_taken`, `too_many_webhooks`)."""

        def work(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM target WHERE name = ?", (target.name,)).fetchone():
                raise UserError("name_taken", f"There is a webhook {target.name!r} already: remove it first.")
            if db.execute("SELECT COUNT(*) FROM target").fetchone()[0] >= TARGETS:
                raise UserError("too_many_webhooks", f"There are {TARGETS} webhooks: remove one first.")
            row = (target.name, target.address, target.format, ",".join(target.kinds))
            db.execute(
                "INSERT INTO target VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, target.secret, target.made_at, target.who),
            )

        await self._do(work)

    async def remove(self, name: str) -> None:
        """Remove a target and what waits for it. Raises `UserError` (`no_such_webhook`)."""

        def work(db: sqlite3.Connection) -> None:
            if db.execute("DELETE FROM target WHERE name = ?", (name,)).rowcount != 1:
                raise UserError(
                    "no_such_webhook", f"There is no webhook {name[:60]!r}: `cloister webhook ls` lists them."
                )
            db.execute("DELETE FROM delivery WHERE target = ?", (name,))

        await self._do(work)

    async def targets(self) -> tuple[Target, ...]:
        if not self._path.exists():
            return ()
        rows = await self._do(
            lambda db: db.execute(f"SELECT {_TARGET} FROM target ORDER BY name").fetchall()  # noqa: S608
        )
        return tuple(_target(*row) for row in rows)

    async def waiting(self) -> dict[str, tuple[int, int]]:
        """Target → how many deliveries wait, and how many are dead."""
        query = "SELECT target, COUNT(next_at), COUNT(*) - COUNT(next_at) FROM delivery GROUP BY target"
        rows = await self._do(lambda db: db.execute(query).fetchall())
        return {name: (waiting, dead) for name, waiting, dead in rows}

    async def dead(self, limit: int = 1_000) -> tuple[Delivery, ...]:
        """The newest that are given up."""
        query = f"SELECT {_DELIVERY} FROM delivery WHERE next_at IS NULL ORDER BY id DESC LIMIT ?"  # noqa: S608
        rows = await self._do(lambda db: db.execute(query, (limit,)).fetchall())
        return tuple(Delivery(*row) for row in rows)

    async def replay(self, ids: Sequence[int]) -> int:
        """Let dead deliveries wait again, all of them if `ids` is empty; returns how many."""
        which = f" AND id IN ({','.join('?' * len(ids))})" if ids else ""
        query = f"UPDATE delivery SET next_at = 0, tries = 0 WHERE next_at IS NULL{which}"  # noqa: S608
        return await self._do(lambda db: db.execute(query, tuple(ids)).rowcount)

    # For the process that sends.

    async def cursor(self) -> int:
        """How far the log was read."""
        found = await self._do(lambda db: db.execute("SELECT at FROM cursor").fetchone())
        return found[0] if found else 0

    async def put(self, new: Sequence[tuple[str, str, bytes]], cursor: int | None = None) -> None:
        """Store deliveries (target, key, notice) and how far the log was read, both or neither."""
        now = time.time()

        def work(db: sqlite3.Connection) -> None:
            text = "INSERT INTO delivery (target, key, notice, made_at, next_at) VALUES (?, ?, ?, ?, 0) ON CONFLICT DO NOTHING"
            db.executemany(text, [(*one, now) for one in new])
            if cursor is not None:
                db.execute("DELETE FROM cursor")
                db.execute("INSERT INTO cursor VALUES (?)", (cursor,))

        await self._do(work)

    async def due(self, now: float) -> tuple[Delivery, ...]:
        """The first due delivery of each target."""
        query = (  # its parts are constants
            f"SELECT {_DELIVERY} FROM delivery WHERE id IN "  # noqa: S608
            "(SELECT MIN(id) FROM delivery WHERE next_at <= ? AND target IN (SELECT name FROM target) GROUP BY target)"
        )
        rows = await self._do(lambda db: db.execute(query, (now,)).fetchall())
        return tuple(Delivery(*row) for row in rows)

    async def sent(self, delivery: Delivery) -> None:
        await self._do(lambda db: db.execute("DELETE FROM delivery WHERE id = ?", (delivery.id,)))

    async def failed(self, delivery: Delivery, problem: str, next_at: float | None) -> None:
        """It is tried again at `next_at`; None gives it up."""

        def work(db: sqlite3.Connection) -> None:
            text = "UPDATE delivery SET tries = tries + 1, problem = ?, next_at = ? WHERE id = ?"
            db.execute(text, (problem, next_at, delivery.id))
            oldest = "SELECT id FROM delivery WHERE next_at IS NULL ORDER BY id DESC LIMIT -1 OFFSET ?"
            db.execute(f"DELETE FROM delivery WHERE id IN ({oldest})", (DEAD,))  # noqa: S608

        await self._do(work)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await in_thread(self._now, work)

    def _now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.touch(mode=0o600)
        with mapped(self._path), closing(connect(self._path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            for statement in _TABLES:
                db.execute(statement)
            try:
                done = work(db)
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            return done
