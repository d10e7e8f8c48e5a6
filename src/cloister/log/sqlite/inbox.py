"""Deliveries of webhooks, and tasks and marks of triggers, in a file of their own.

Requests that wait together share a commit.
"""

import json
import math
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio import to_thread

from cloister.core.errors import Bug, HostError
from cloister.log.sqlite.schema import connect, mapped

BATCH = 1_024
PENDING = 100_000
"""Deliveries that may wait; one more is refused, and its sender tries again later."""
KEPT_SECONDS = 30 * 86_400.0
"""How long a delivery is remembered, so that a copy of it is refused."""
_SWEEP = 1_000
"""Deliveries between two removals of old ones."""

T = TypeVar("T")

_TABLES = (
    """CREATE TABLE IF NOT EXISTS delivery (id INTEGER PRIMARY KEY, hook TEXT NOT NULL, key TEXT NOT NULL,
    event TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL, done REAL, nonce TEXT NOT NULL DEFAULT '',
    UNIQUE (hook, key)) STRICT""",
    "CREATE INDEX IF NOT EXISTS pending ON delivery (id) WHERE done IS NULL",
    "CREATE INDEX IF NOT EXISTS old ON delivery (at)",
    """CREATE TABLE IF NOT EXISTS task (name TEXT PRIMARY KEY, kind TEXT NOT NULL, trigger TEXT NOT NULL,
    value BLOB NOT NULL, due REAL NOT NULL, tries INTEGER NOT NULL) STRICT""",
    "CREATE INDEX IF NOT EXISTS due ON task (kind, due)",
    "CREATE TABLE IF NOT EXISTS mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
)


class Delivery(msgspec.Struct, frozen=True):
    """One webhook that arrived."""

    id: int
    hook: str
    event: str
    """What its sender calls the kind of it."""
    body: bytes
    name: str
    """Of this delivery alone, also when the file is lost or restored and its numbers begin again."""


class Task(msgspec.Struct, frozen=True):
    """Something to do, kept until it is done."""

    name: str
    """The same name is the same task."""
    kind: str
    trigger: str
    value: bytes
    """What its kind needs, as JSON."""
    due: float = 0.0
    """Unix seconds."""
    tries: int = 0
    """How often it failed."""


class _Job(Generic[T]):
    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        self.work, self.done = work, anyio.Event()
        self.answer: tuple[T] | None = None
        self.error: BaseException | None = None


class Inbox:
    """What came in and is not processed yet; durable when a call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: list[_Job[object]] = []
        self._rung = anyio.Event()
        self._waiting = 0
        self._since_sweep = 0
        self.arrived = anyio.Event()
        """Set when a delivery is stored; a reader replaces it."""

    async def put(self, hook: str, key: str, event: str, body: bytes) -> bool:
        """Store a delivery; False if one with this key is known. Raises `HostError` (`hooks_full`)."""
        if self._waiting >= PENDING:
            raise HostError("hooks_full", "Too many deliveries wait to be processed: send it again later.")

        def work(db: sqlite3.Connection) -> bool:
            row = (hook, key, event, body, time.time(), f"-{secrets.token_hex(8)}")
            text = "INSERT INTO delivery (hook, key, event, body, at, nonce) VALUES (?, ?, ?, ?, ?, ?)"
            return db.execute(f"{text} ON CONFLICT DO NOTHING", row).rowcount == 1

        new = await self._write(work)
        if new:
            self._waiting += 1
            self.arrived.set()
        return new

    async def waiting(self, limit: int = 256) -> tuple[Delivery, ...]:
        """The oldest deliveries that are not processed."""
        text = (
            "SELECT id, hook, event, body, id || nonce FROM delivery WHERE done IS NULL ORDER BY id LIMIT ?"
        )
        rows = await self._write(lambda db: db.execute(text, (limit,)).fetchall())
        return tuple(Delivery(*row) for row in rows)

    async def processed(
        self,
        deliveries: Sequence[Delivery],
        tasks: Sequence[Task] = (),
        marks: Mapping[str, str | None] | None = None,
    ) -> None:
        """They are not returned again, and `tasks` and `marks` stand in their place, in one transaction.

        The content of a delivery is dropped; its key stays known.
        """
        now = time.time()
        self._since_sweep += len(deliveries)
        sweep = self._since_sweep >= _SWEEP

        def work(db: sqlite3.Connection) -> None:
            text = "UPDATE delivery SET done = ?, body = x'' WHERE id = ? AND done IS NULL"
            db.executemany(text, [(now, one.id) for one in deliveries])
            _add(db, tasks)
            for name, value in (marks or {}).items():
                _mark(db, name, value)
            if sweep:
                db.execute("DELETE FROM delivery WHERE at < ? AND done IS NOT NULL", (now - KEPT_SECONDS,))

        await self._write(work)
        self._waiting -= len(deliveries)
        self._since_sweep = 0 if sweep else self._since_sweep

    async def mark(self, name: str, value: str | None) -> None:
        """Remember a value under a name; None forgets it."""

        await self._write(lambda db: _mark(db, name, value))

    async def marks(self, beginning: str) -> dict[str, str]:
        """Every mark whose name begins so, without that beginning."""
        return await self._write(lambda db: _read_marks(db, beginning))

    async def add(self, *tasks: Task) -> None:
        """Store tasks; those whose names are known stay as they are."""
        await self._write(lambda db: _add(db, tasks))

    async def tasks(
        self, kind: str, until: float = math.inf, limit: int = 256, without: Sequence[str] = ()
    ) -> tuple[Task, ...]:
        """Tasks of a kind that are due, the earliest first, but those of the triggers `without`."""
        text = (
            "SELECT name, kind, trigger, value, due, tries FROM task WHERE kind = ? AND due <= ? "
            "AND trigger NOT IN (SELECT value FROM json_each(?)) ORDER BY due LIMIT ?"
        )
        values = (kind, until, json.dumps(without), limit)
        return await self._write(lambda db: tuple(Task(*row) for row in db.execute(text, values).fetchall()))

    async def counts(self, kind: str) -> dict[str, int]:
        """Trigger → its tasks of a kind."""
        text = "SELECT trigger, COUNT(*) FROM task WHERE kind = ? GROUP BY trigger"
        return await self._write(lambda db: dict(db.execute(text, (kind,)).fetchall()))

    async def put_off(self, task: Task) -> None:
        """Store the new time and tries of a task; its value stays as it was stored last."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("UPDATE task SET due = ?, tries = ? WHERE name = ?", (task.due, task.tries, task.name))

        await self._write(work)

    async def keep(self, task: Task) -> None:
        """Store the new value and tries of a task."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE task SET value = ?, tries = ? WHERE name = ?", (task.value, task.tries, task.name)
            )

        await self._write(work)

    async def done(
        self, task: Task, then: Sequence[Task] = (), marks: Mapping[str, str | None] | None = None
    ) -> None:
        """Forget a task; `then` and `marks` stand in its place, in one transaction."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM task WHERE name = ?", (task.name,))
            _add(db, then)
            for name, value in (marks or {}).items():
                _mark(db, name, value)

        await self._write(work)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        job = _Job(work)
        self._jobs.append(job)  # pyright: ignore[reportArgumentType] - the server of jobs never reads the answer
        self._rung.set()
        await job.done.wait()
        if job.error is not None:
            raise job.error
        if job.answer is None:
            raise Bug("A write to the inbox ended without an answer.")
        return job.answer[0]

    async def serve(self) -> None:
        """Commit what callers ask for, all that waits in one transaction. Never returns."""
        db = await to_thread.run_sync(_open, self._path)
        try:
            count = "SELECT COUNT(*) FROM delivery WHERE done IS NULL"
            self._waiting += db.execute(count).fetchone()[0]
            while True:
                await self._rung.wait()
                self._rung = anyio.Event()
                while self._jobs:
                    batch, self._jobs = self._jobs[:BATCH], self._jobs[BATCH:]
                    with anyio.CancelScope(shield=True):
                        await to_thread.run_sync(self._commit, db, batch)
                    for job in batch:
                        job.done.set()
        finally:
            db.close()

    def _commit(self, db: sqlite3.Connection, batch: Sequence[_Job[object]]) -> None:
        try:
            with mapped(self._path):
                db.execute("BEGIN IMMEDIATE")
                for job in batch:
                    job.answer = (job.work(db),)
                db.execute("COMMIT")
        except Exception as error:  # every caller learns of it: nothing of the batch is stored
            for job in batch:
                job.error = error
            if db.in_transaction:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")


def _add(db: sqlite3.Connection, tasks: Sequence[Task]) -> None:
    text = "INSERT INTO task (name, kind, trigger, value, due, tries) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    db.executemany(text, [(one.name, one.kind, one.trigger, one.value, one.due, one.tries) for one in tasks])


def _mark(db: sqlite3.Connection, name: str, value: str | None) -> None:
    db.execute("DELETE FROM mark WHERE name = ?", (name,))
    if value is not None:
        db.execute("INSERT INTO mark (name, value) VALUES (?, ?)", (name, value))


def _read_marks(db: sqlite3.Connection, beginning: str) -> dict[str, str]:
    rows = db.execute(
        "SELECT name, value FROM mark WHERE substr(name, 1, ?) = ?", (len(beginning), beginning)
    )
    return {name[len(beginning) :]: value for name, value in rows.fetchall()}


def _open(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    with mapped(path):
        db = connect(path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        for statement in _TABLES:
            db.execute(statement)
        db.execute("BEGIN IMMEDIATE")
        if "nonce" not in {column[1] for column in db.execute("PRAGMA table_info(delivery)")}:
            db.execute("ALTER TABLE delivery ADD COLUMN nonce TEXT NOT NULL DEFAULT ''")
        db.execute("COMMIT")
    return db


@asynccontextmanager
async def open_inbox(path: Path) -> AsyncGenerator[Inbox]:
    """The inbox in the file at `path`, which is made if missing. Raises `HostError`."""
    inbox = Inbox(path)
    await to_thread.run_sync(lambda: _open(path).close())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inbox.serve)
        try:
            yield inbox
        finally:
            tasks.cancel_scope.cancel()
