"""What all runs have spent, by run and day: folded from the log once and kept beside it.

The tables hold nothing that the log does not; they remember how far they have read. Whoever wants to know reads
on from there, so they are right whoever wrote the log, and after any crash.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

import msgspec

from cloister.core import limits
from cloister.core.budget import DAY_SECONDS, Spend
from cloister.core.records import Usage
from cloister.core.spending import Level, Resource

TABLES = (
    "CREATE TABLE IF NOT EXISTS ledger_read (one INTEGER PRIMARY KEY CHECK (one = 1), up_to INTEGER NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS ledger_runs (
        run INTEGER PRIMARY KEY, who TEXT NOT NULL, repo TEXT NOT NULL, last_at REAL
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS ledger_days (
        run INTEGER NOT NULL, day INTEGER NOT NULL, steps INTEGER NOT NULL, tokens INTEGER NOT NULL,
        dollars REAL NOT NULL, seconds REAL NOT NULL, unpriced INTEGER NOT NULL, PRIMARY KEY (run, day)
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS ledger_extensions (
        level TEXT NOT NULL, name TEXT NOT NULL, day INTEGER NOT NULL, what TEXT NOT NULL, amount REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS ledger_holds (
        ticket TEXT PRIMARY KEY, run TEXT NOT NULL, owner TEXT NOT NULL,
        steps INTEGER NOT NULL, tokens INTEGER NOT NULL, dollars REAL NOT NULL
    ) STRICT""",
)

_TOLD = ("RunAdmitted", "ModelReplied", "ModelSpent", "BudgetExtended")
"""Events of which more than the time counts."""

_ROWS = (  # every part of it is a constant of this file
    "SELECT id, run, at, CAST(substr(body, 1, 40) AS TEXT), CASE WHEN "  # noqa: S608
    + " OR ".join(
        f'substr(body, 1, {len(kind) + 10}) = CAST(\'{{"type":"{kind}"\' AS BLOB)' for kind in _TOLD
    )
    + " THEN body END FROM events WHERE id > ? ORDER BY id"
)


class _Request(msgspec.Struct, frozen=True):
    repo: str = ""


class _Body(msgspec.Struct, frozen=True):
    """What counts of the events that are told of."""

    type: str
    usage: Usage = Usage()
    cost: float | None = None
    who: str = ""
    request: _Request = _Request()
    level: Level = "run"
    name: str = ""
    what: Resource = "steps"
    amount: float = 0.0


_decode = msgspec.json.Decoder(_Body).decode

Row = tuple[int, int, float, str, bytes | None]
"""Number of the event, of its run, when, how it begins, and all of it where more counts."""


@dataclass(slots=True)
class RunOf:
    """Whose a run is, and when it last showed a sign of work; None while nobody works on it."""

    who: str
    repo: str
    last_at: float | None = None


class Extension(msgspec.Struct, frozen=True):
    """What a person added to a limit."""

    level: Level
    name: str
    day: int
    what: Resource
    amount: float


@dataclass(slots=True)
class Tally:
    """What some part of the log adds."""

    known: Callable[[int], RunOf | None]
    """Whose a run is that was admitted before this part."""
    up_to: int = 0
    runs: dict[int, RunOf] = field(default_factory=dict[int, RunOf])
    """Those that this part tells of."""
    days: dict[tuple[int, int], Spend] = field(default_factory=dict[tuple[int, int], Spend])
    """Run and day → what was spent."""
    extensions: list[Extension] = field(default_factory=list[Extension])

    def take(self, rows: Iterable[Row]) -> None:
        for number, run, at, head, data in rows:
            self.up_to = number
            body = _understood(data)
            if body is not None and body.type == "RunAdmitted":
                self.runs[run] = RunOf(body.who, body.request.repo)
            whose = self.runs.get(run) or self.known(run)
            if whose is None:
                continue  # its admission cannot be read: it is nobody's
            self.runs[run] = whose
            day = int(at // DAY_SECONDS)
            self._add(run, day, _worked(whose, at, head))
            if body is not None and body.type == "BudgetExtended":
                self.extensions.append(Extension(body.level, body.name, day, body.what, body.amount))
            elif body is not None and body.type != "RunAdmitted":
                self._add(run, day, _paid(body))

    def _add(self, run: int, day: int, spend: Spend) -> None:
        if spend != Spend():
            self.days[run, day] = self.days.get((run, day), Spend()) + spend


def _understood(data: bytes | None) -> _Body | None:
    try:
        return None if data is None else _decode(data)
    except msgspec.MsgspecError:
        return None  # written by a newer version; what it says is not ours to guess


def _worked(whose: RunOf, at: float, head: str) -> Spend:
    """The wall time since the run's last event, while somebody drove it."""
    before, whose.last_at = whose.last_at, at
    if head.startswith('{"type":"RunClaimed"'):
        return Spend()
    if before is None:
        whose.last_at = None
        return Spend()
    if head.startswith('{"type":"RunFinished"'):
        whose.last_at = None
    return Spend(seconds=max(0.0, at - before))


def _paid(body: _Body) -> Spend:
    # A log from a time when providers were believed whatever they said may hold more than the tables can.
    steps, tokens = int(body.type == "ModelReplied"), max(0, min(body.usage.total, limits.CALL_TOKENS))
    if body.cost is None:
        return Spend(steps, tokens, unpriced=tokens)
    return Spend(steps, tokens, body.cost)


def stored(db: sqlite3.Connection) -> bool:
    """Whether there are tables to read on from."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger_read'").fetchone() is not None


def read_on(db: sqlite3.Connection) -> Tally:
    """What the log has beyond the tables. Changes nothing."""
    there = stored(db)

    def known(run: int) -> RunOf | None:
        if not there:
            return None
        found = db.execute("SELECT who, repo, last_at FROM ledger_runs WHERE run = ?", (run,)).fetchone()
        return None if found is None else RunOf(*cast("tuple[str, str, float | None]", found))

    up_to = next(_numbers(db, "SELECT up_to FROM ledger_read"), 0) if there else 0
    tally = Tally(known, up_to)
    with closing(db.execute(_ROWS, (up_to,))) as rows:
        tally.take(cast("Iterable[Row]", rows))
    return tally


def _numbers(db: sqlite3.Connection, query: str) -> Iterator[int]:
    return (number for (number,) in db.execute(query))


def keep(db: sqlite3.Connection) -> None:
    """Bring the tables up to date; inside a transaction that someone else began."""
    for statement in TABLES:
        db.execute(statement)
    tally = read_on(db)
    db.execute("INSERT OR REPLACE INTO ledger_read VALUES (1, ?)", (tally.up_to,))
    db.executemany(
        "INSERT OR REPLACE INTO ledger_runs VALUES (?, ?, ?, ?)",
        [(run, whose.who, whose.repo, whose.last_at) for run, whose in tally.runs.items()],
    )
    db.executemany(
        "INSERT INTO ledger_days VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET steps = steps + excluded.steps,"
        " tokens = tokens + excluded.tokens, dollars = dollars + excluded.dollars,"
        " seconds = seconds + excluded.seconds, unpriced = unpriced + excluded.unpriced",
        [
            (run, day, spend.steps, spend.tokens, spend.dollars, spend.seconds, spend.unpriced)
            for (run, day), spend in tally.days.items()
        ],
    )
    db.executemany(
        "INSERT INTO ledger_extensions VALUES (?, ?, ?, ?, ?)",
        [(each.level, each.name, each.day, each.what, each.amount) for each in tally.extensions],
    )
