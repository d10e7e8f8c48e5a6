"""The levels above the run: what organisation, projects and users have spent, and room held for calls under way.

Room is looked for and held in one transaction of the log's own file, so that runs in any number of processes
never promise the same dollar twice.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Protocol, TypeVar, cast

import msgspec

from cloister.agent.budget.purse import Held
from cloister.core import limits
from cloister.core.budget import (
    DAY_SECONDS,
    Account,
    BudgetTree,
    Call,
    Granted,
    Limits,
    Over,
    Period,
    Spend,
    first_day,
    granted,
    limits_of,
    spend_of,
)
from cloister.core.errors import Bug
from cloister.core.events import AttemptStarted, BudgetExtended, Event, ModelReplied, ModelSpent, RunAdmitted
from cloister.core.events.budget import Level, Resource
from cloister.core.ids import OwnerId, RunId
from cloister.core.log import round_start
from cloister.core.requests import Budget, Usage
from cloister.runs.view import fold

# What all runs have spent, by run and day: folded from the log once and kept beside it.
#
# The tables hold nothing that the log does not; they remember how far they have read. Whoever wants to know reads
# on from there, so they are right whoever wrote the log, and after any crash.


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


T = TypeVar("T")
ORGANISATION = "all"
_Group = tuple[str, str]
"""Repository and user."""


class Database(Protocol):
    """Where the log is, for whoever keeps something beside it."""

    async def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction that may write; durable when this returns."""
        ...

    async def look(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do `work`, which only reads; None when there is no log yet."""
        ...


class SqliteLedger:
    """`Ledger` beside the embedded backbone's log."""

    def __init__(
        self,
        database: Database,
        tree: BudgetTree,
        owner: OwnerId,
        owner_lives: Callable[[OwnerId], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._tree = tree
        self._owner = owner
        self._owner_lives = owner_lives
        self._now = now

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        return await self._database.transact(partial(self._reserve, run, ticket, call))

    async def release(self, ticket: str) -> None:
        await self._database.transact(partial(_release, ticket))

    async def accounts(self) -> tuple[Account, ...]:
        """Every level above the runs, with a limit or without, as it stands."""
        return await self._database.look(partial(accounts, self._tree, self._now())) or ()

    async def accounts_of(self, run: RunId) -> tuple[Account, ...]:
        """The levels above one run, which there is."""
        return await self._database.look(partial(above, self._tree, self._now(), run)) or ()

    def _reserve(self, run: RunId, ticket: str, call: Call, db: sqlite3.Connection) -> Held | Over:
        keep(db)
        owners = [OwnerId(name) for (name,) in db.execute("SELECT DISTINCT owner FROM ledger_holds")]
        for owner in owners:
            if owner != self._owner and not self._owner_lives(owner):
                db.execute("DELETE FROM ledger_holds WHERE owner = ?", (owner,))
        books = _Books(db, self._tree, self._now())
        group = books.group_of(run)
        limited = tuple(each for each in _above(books, *group) if each.limits != Limits())
        answer = granted(limited, call)
        if isinstance(answer, Granted):
            hold = answer.hold
            db.execute(
                "INSERT INTO ledger_holds VALUES (?, ?, ?, ?, ?, ?)",
                (ticket, run, self._owner, hold.steps, hold.tokens, hold.dollars),
            )
            return Held(answer, limited)
        return answer


def _release(ticket: str, db: sqlite3.Connection) -> None:
    if stored(db):
        db.execute("DELETE FROM ledger_holds WHERE ticket = ?", (ticket,))


class _Books:
    """All that was spent, in one moment of the log."""

    def __init__(self, db: sqlite3.Connection, tree: BudgetTree, now: float) -> None:
        self._db = db
        self.tree = tree
        self.now = now
        self._fresh: Tally = read_on(db)
        self._kept = stored(db)

    def group_of(self, run: RunId) -> _Group:
        """Repository and user of a run."""
        number: int = self._db.execute("SELECT num FROM runs WHERE id = ?", (run,)).fetchone()[0]
        whose = self._fresh.runs.get(number) or self._fresh.known(number)
        return ("", "") if whose is None else (whose.repo, whose.who)

    def spent(self, period: Period) -> dict[_Group, Spend]:
        """By repository and user, since the period began; with what is held."""
        since = first_day(period, self.now)
        found: dict[_Group, Spend] = {}
        for group, spend in self._rows(since):
            found[group] = found.get(group, Spend()) + spend
        return found

    def _rows(self, since: int) -> Iterator[tuple[_Group, Spend]]:
        for (run, day), spend in self._fresh.days.items():
            if day >= since:
                whose = self._fresh.runs[run]
                yield (whose.repo, whose.who), spend
        if not self._kept:
            return
        for repo, who, *sums in self._db.execute(
            "SELECT repo, who, SUM(steps), SUM(tokens), SUM(dollars), SUM(seconds), SUM(unpriced) "
            "FROM ledger_days JOIN ledger_runs USING (run) WHERE day >= ? GROUP BY repo, who",
            (since,),
        ):
            yield (repo, who), Spend(*sums)
        for repo, who, *sums in self._db.execute(
            "SELECT l.repo, l.who, SUM(h.steps), SUM(h.tokens), SUM(h.dollars) FROM ledger_holds h "
            "JOIN runs r ON r.id = h.run JOIN ledger_runs l ON l.run = r.num GROUP BY l.repo, l.who"
        ):
            yield (repo, who), Spend(*sums)

    def extended(self, level: Level, name: str, period: Period) -> dict[Resource, float]:
        since = first_day(period, self.now)
        more: dict[Resource, float] = {}
        for each in self._fresh.extensions:
            if (each.level, each.name) == (level, name) and each.day >= since:
                more[each.what] = more.get(each.what, 0.0) + each.amount
        if self._kept:
            for what, amount in self._db.execute(
                "SELECT what, SUM(amount) FROM ledger_extensions WHERE level = ? AND name = ? AND day >= ? GROUP BY what",
                (level, name, since),
            ):
                resource = cast("Resource", what)
                more[resource] = more.get(resource, 0.0) + amount
        return more


def _account(books: _Books, level: Level, name: str, limits: Limits, period: Period, spent: Spend) -> Account:
    return Account(level, name, _bare(limits), spent, books.extended(level, name, period), period)


def _bare(limits: Limits) -> Limits:
    return Limits(steps=limits.steps, tokens=limits.tokens, dollars=limits.dollars, seconds=limits.seconds)


def _project(tree: BudgetTree, repo: str) -> tuple[str, Limits, Period]:
    """The name, the limits and the period of a repository's project; without a table it is a project of its own."""
    plain = repo.rstrip("/")
    for table in tree.project:
        if fnmatchcase(plain, table.match):
            return table.match, table, table.period
    return plain, Limits(), "month"


def _user(tree: BudgetTree, who: str) -> tuple[Limits, Period]:
    named = next((table for table in tree.user if table.name == who), None)
    table = named or next((table for table in tree.user if table.name == "*"), None)
    return (Limits(), "month") if table is None else (table, table.period)


def _organisation(books: _Books) -> Account:
    limits = books.tree.organisation
    period: Period = "month" if limits is None else limits.period
    spent = sum(books.spent(period).values(), Spend())
    return _account(books, "organisation", ORGANISATION, limits or Limits(), period, spent)


def _project_account(books: _Books, repo: str) -> Account:
    name, limits, period = _project(books.tree, repo)
    groups = books.spent(period).items()
    spent = sum((took for (of, _), took in groups if _project(books.tree, of)[0] == name), Spend())
    return _account(books, "project", name, limits, period, spent)


def _user_account(books: _Books, who: str) -> Account:
    limits, period = _user(books.tree, who)
    spent = sum((took for (_, of), took in books.spent(period).items() if of == who), Spend())
    return _account(books, "user", who, limits, period, spent)


def above(tree: BudgetTree, now: float, run: RunId, db: sqlite3.Connection) -> tuple[Account, ...]:
    """The levels above a run as they stand at `now` (Unix seconds), the widest first. Only reads."""
    books = _Books(db, tree, now)
    return tuple(_above(books, *books.group_of(run)))


def accounts(tree: BudgetTree, now: float, db: sqlite3.Connection) -> tuple[Account, ...]:
    """Every level above the runs as it stands at `now`, with a limit or without. Only reads."""
    return tuple(_all(_Books(db, tree, now)))


def _above(books: _Books, repo: str, who: str) -> Iterator[Account]:
    yield _organisation(books)
    yield _project_account(books, repo)
    yield _user_account(books, who)


def _all(books: _Books) -> Iterator[Account]:
    """The organisation, and every project and user that has a table or has spent something in this month."""
    yield _organisation(books)
    groups = books.spent("month")
    repos = {_project(books.tree, repo)[0]: repo for repo, _ in groups}
    for table in books.tree.project:
        repos.setdefault(table.match, "")
    for name, repo in sorted(repos.items()):
        yield _project_account(books, repo) if repo else _unused(books, name)
    named = {table.name for table in books.tree.user if table.name != "*"}
    for who in sorted(named | {who for _, who in groups}):
        yield _user_account(books, who)


def _unused(books: _Books, match: str) -> Account:
    table = next(table for table in books.tree.project if table.match == match)
    return _account(books, "project", match, table, table.period, Spend())


def run_accounts(events: Sequence[Event]) -> Iterator[Account]:
    """The newest round of a run and each of its attempts, from the whole log."""
    admitted = events[0].body
    if not isinstance(admitted, RunAdmitted):
        raise Bug("A run's log starts with its admission.")
    spent: dict[int | None, Spend] = {}
    extended: dict[str, dict[Resource, float]] = {}
    shares: dict[int, Limits] = {}
    start = round_start(events)
    for event in events[start:]:  # each round has the whole budget of the request
        match event.body:
            case AttemptStarted(budget=Budget() as budget) as body:
                shares[body.attempt] = msgspec.structs.replace(limits_of(budget), seconds=budget.seconds)
                spent.setdefault(body.attempt, Spend())
            case (ModelReplied() | ModelSpent()) as body:
                spent[body.attempt] = spent.get(body.attempt, Spend()) + (spend_of(body) or Spend())
            case BudgetExtended(level="run" | "attempt") as body:
                more = extended.setdefault(f"{body.level} {body.name}", {})
                more[body.what] = more.get(body.what, 0.0) + body.amount
            case _:
                pass
    budget, run = admitted.request.budget, str(events[0].run)
    limits = msgspec.structs.replace(limits_of(budget), seconds=budget.seconds)
    before = fold(events[:start]).seconds if start else 0.0
    total = sum(spent.values(), Spend(seconds=fold(events, time.time()).seconds - before))
    yield Account("run", run, limits, total, extended.get(f"run {run}", {}))
    for attempt, took in sorted((number, took) for number, took in spent.items() if number is not None):
        limits = shares.get(attempt, Limits())
        yield Account("attempt", str(attempt), limits, took, extended.get(f"attempt {attempt}", {}))


class BudgetReport(msgspec.Struct, frozen=True):
    """Limits and what is spent, level by level, the widest first."""

    accounts: tuple[Account, ...]
