"""What all runs have spent, by run and day: folded from the log once and stored beside it, with a cursor.

The tables hold nothing that the log does not, except the holds of calls under way. Each reader folds what
the log has beyond the cursor, so the totals are right whatever process wrote the log, and after any crash.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec

from cloister.core import limits
from cloister.core.budget import DAY_SECONDS, Spend
from cloister.core.events.attempt import Level, Resource
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import Usage
from cloister.log.api import Hold, Payers, Totals
from cloister.log.sqlite.changes import Buried, Held, Released, record

T = TypeVar("T")

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

_COUNTED = ("RunAdmitted", "ModelReplied", "ModelSpent", "BudgetExtended")
"""Events of which more than the time counts."""

_ROWS = (  # every part of it is a constant of this file
    "SELECT id, run, at, CAST(substr(body, 1, 40) AS TEXT), CASE WHEN "  # noqa: S608
    + " OR ".join(
        f'substr(body, 1, {len(kind) + 10}) = CAST(\'{{"type":"{kind}"\' AS BLOB)' for kind in _COUNTED
    )
    + " THEN body END FROM events WHERE id > ? ORDER BY id"
)


class _Request(msgspec.Struct, frozen=True):
    repo: str = ""


class _Counted(msgspec.Struct, frozen=True):
    """The fields that count."""

    type: str
    usage: Usage = Usage()
    cost: float | None = None
    who: str = ""
    request: _Request = _Request()
    level: Level = "run"
    name: str = ""
    what: Resource = "steps"
    amount: float = 0.0


_decode = msgspec.json.Decoder(_Counted).decode

_Row = tuple[int, int, float, str, bytes | None]
"""Number of the event, number of its run, time, first characters of the body, and the whole body if it counts."""


@dataclass(slots=True)
class _Run:
    """Who pays for a run, and the time of its last event while an owner drives it; else None."""

    who: str
    repo: str
    last_at: float | None = None


class _Extension(msgspec.Struct, frozen=True):
    """What a person added to a limit."""

    level: Level
    name: str
    day: int
    what: Resource
    amount: float


@dataclass(slots=True)
class _Tally:
    """What a part of the log adds."""

    known: Callable[[int], _Run | None]
    """Looks up a run that was admitted before this part."""
    up_to: int = 0
    runs: dict[int, _Run] = field(default_factory=dict[int, _Run])
    """Runs with events in this part."""
    days: dict[tuple[int, int], Spend] = field(default_factory=dict[tuple[int, int], Spend])
    """Run and day → what was spent."""
    extensions: list[_Extension] = field(default_factory=list[_Extension])

    def take(self, rows: Iterable[_Row]) -> None:
        for number, run, at, head, data in rows:
            self.up_to = number
            body = _understood(data)
            if body is not None and body.type == "RunAdmitted":
                self.runs[run] = _Run(body.who, body.request.repo)
            paying = self.runs.get(run) or self.known(run)
            if paying is None:
                continue  # its admission cannot be read
            self.runs[run] = paying
            day = int(at // DAY_SECONDS)
            self._add(run, day, _worked(paying, at, head))
            if body is not None and body.type == "BudgetExtended":
                self.extensions.append(_Extension(body.level, body.name, day, body.what, body.amount))
            elif body is not None and body.type != "RunAdmitted":
                self._add(run, day, _paid(body))

    def _add(self, run: int, day: int, spend: Spend) -> None:
        if spend != Spend():
            self.days[run, day] = self.days.get((run, day), Spend()) + spend


def _understood(data: bytes | None) -> _Counted | None:
    try:
        return None if data is None else _decode(data)
    except msgspec.MsgspecError:
        return None  # written by a newer version


def _worked(paying: _Run, at: float, head: str) -> Spend:
    """Return the wall time since the run's last event, while an owner drove it."""
    before, paying.last_at = paying.last_at, at
    if head.startswith('{"type":"RunClaimed"'):
        return Spend()
    if before is None:
        paying.last_at = None
        return Spend()
    if head.startswith('{"type":"RunFinished"'):
        paying.last_at = None
    return Spend(seconds=max(0.0, at - before))


def _paid(body: _Counted) -> Spend:
    # Old logs may hold numbers from providers that are larger than the tables can store.
    steps, tokens = int(body.type == "ModelReplied"), max(0, min(body.usage.total, limits.CALL_TOKENS))
    if body.cost is None:
        return Spend(steps, tokens, unpriced=tokens)
    return Spend(steps, tokens, body.cost)


def _stored(db: sqlite3.Connection) -> bool:
    """Return whether the tables exist."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger_read'").fetchone() is not None


def _read_on(db: sqlite3.Connection, stored: bool) -> _Tally:
    """Fold what the log has beyond the tables. Changes nothing."""

    def known(run: int) -> _Run | None:
        if not stored:
            return None
        found = db.execute("SELECT who, repo, last_at FROM ledger_runs WHERE run = ?", (run,)).fetchone()
        return None if found is None else _Run(*cast("tuple[str, str, float | None]", found))

    read = db.execute("SELECT up_to FROM ledger_read").fetchone() if stored else None
    tally = _Tally(known, 0 if read is None else read[0])
    with closing(db.execute(_ROWS, (tally.up_to,))) as rows:
        tally.take(cast("Iterable[_Row]", rows))
    return tally


def bring_up(db: sqlite3.Connection) -> None:
    """Move the cursor to the end of the log; inside a transaction that the caller began."""
    for statement in TABLES:
        db.execute(statement)
    tally = _read_on(db, stored=True)
    db.execute("INSERT OR REPLACE INTO ledger_read VALUES (1, ?)", (tally.up_to,))
    db.executemany(
        "INSERT OR REPLACE INTO ledger_runs VALUES (?, ?, ?, ?)",
        [(run, paying.who, paying.repo, paying.last_at) for run, paying in tally.runs.items()],
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


class SqliteTotals:
    """`Totals` in one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._kept = _stored(db)
        self._fresh = _read_on(db, self._kept)

    def payers(self, run: RunId) -> Payers:
        number: int = self._db.execute("SELECT num FROM runs WHERE id = ?", (run,)).fetchone()[0]
        paying = self._fresh.runs.get(number) or self._fresh.known(number)
        return Payers("", "") if paying is None else Payers(paying.repo, paying.who)

    def spent(self, since_day: int) -> dict[Payers, Spend]:
        found: dict[Payers, Spend] = {}
        for payers, spend in self._rows(since_day):
            found[payers] = found.get(payers, Spend()) + spend
        return found

    def _rows(self, since_day: int) -> Iterator[tuple[Payers, Spend]]:
        for (run, day), spend in self._fresh.days.items():
            if day >= since_day:
                paying = self._fresh.runs[run]
                yield Payers(paying.repo, paying.who), spend
        if not self._kept:
            return
        for repo, who, *sums in self._db.execute(
            "SELECT repo, who, SUM(steps), SUM(tokens), SUM(dollars), SUM(seconds), SUM(unpriced) "
            "FROM ledger_days JOIN ledger_runs USING (run) WHERE day >= ? GROUP BY repo, who",
            (since_day,),
        ):
            yield Payers(repo, who), Spend(*sums)
        for repo, who, *sums in self._db.execute(
            "SELECT l.repo, l.who, SUM(h.steps), SUM(h.tokens), SUM(h.dollars) FROM ledger_holds h "
            "JOIN runs r ON r.id = h.run JOIN ledger_runs l ON l.run = r.num GROUP BY l.repo, l.who"
        ):
            yield Payers(repo, who), Spend(*sums)

    def extended(self, level: Level, name: str, since_day: int) -> dict[Resource, float]:
        more: dict[Resource, float] = {}
        for each in self._fresh.extensions:
            if (each.level, each.name) == (level, name) and each.day >= since_day:
                more[each.what] = more.get(each.what, 0.0) + each.amount
        if self._kept:
            for what, amount in self._db.execute(
                "SELECT what, SUM(amount) FROM ledger_extensions WHERE level = ? AND name = ? AND day >= ? GROUP BY what",
                (level, name, since_day),
            ):
                resource = cast("Resource", what)
                more[resource] = more.get(resource, 0.0) + amount
        return more


def reserve(
    db: sqlite3.Connection,
    hold: Hold,
    decide: Callable[[Totals], tuple[T, Spend | None]],
    owner_lives: Callable[[OwnerId], bool],
) -> T:
    """Decide on up-to-date totals and store what `decide` holds; drop the holds of dead owners first."""
    bring_up(db)
    for (name,) in db.execute("SELECT DISTINCT owner FROM ledger_holds").fetchall():
        if name != hold.owner and not owner_lives(OwnerId(name)):
            bury(db, OwnerId(name))
    answer, spend = decide(SqliteTotals(db))
    if spend is not None:
        _keep(db, Held(hold.ticket, hold.run, hold.owner, spend.steps, spend.tokens, spend.dollars))
    return answer


def hold_too(db: sqlite3.Connection, held: Held) -> None:
    """Store a hold that another copy of the log decided on."""
    bring_up(db)  # holds count for runs that the totals know
    _keep(db, held)


def _keep(db: sqlite3.Connection, held: Held) -> None:
    db.execute("INSERT INTO ledger_holds VALUES (?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(held))
    record(db, held)


def bury(db: sqlite3.Connection, owner: OwnerId) -> None:
    """Drop the holds of a dead owner."""
    if _stored(db):
        db.execute("DELETE FROM ledger_holds WHERE owner = ?", (owner,))
    record(db, Buried(owner))


def release(db: sqlite3.Connection, ticket: str) -> None:
    if _stored(db):
        db.execute("DELETE FROM ledger_holds WHERE ticket = ?", (ticket,))
    record(db, Released(ticket))
