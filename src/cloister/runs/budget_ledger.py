"""The levels above the run: what organisation, projects and users have spent, and room held for calls under way.

Room is looked for and held in one transaction of the log's own file, so that runs in any number of processes
never promise the same dollar twice.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Protocol, TypeVar, cast

import msgspec

from cloister.agent.budget import Held
from cloister.core.budget import (
    Account,
    Call,
    Granted,
    Over,
    Spend,
    first_day,
    granted,
    limits_of,
    spend_of,
)
from cloister.core.budget_tree import BudgetTree, Limits, Period
from cloister.core.errors import Bug
from cloister.core.events import AttemptStarted, BudgetExtended, Event, ModelReplied, ModelSpent, RunAdmitted
from cloister.core.ids import OwnerId, RunId
from cloister.core.records import Budget
from cloister.core.spending import Level, Resource
from cloister.runs.budget_tally import Tally, keep, read_on, stored
from cloister.runs.view import fold

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
    """A run and each of its attempts, from its whole log."""
    admitted = events[0].body
    if not isinstance(admitted, RunAdmitted):
        raise Bug("A run's log starts with its admission.")
    spent: dict[int | None, Spend] = {}
    extended: dict[str, dict[Resource, float]] = {}
    shares: dict[int, Limits] = {}
    for event in events:
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
    total = sum(spent.values(), Spend(seconds=fold(events, time.time()).seconds))
    yield Account("run", run, limits, total, extended.get(f"run {run}", {}))
    for attempt, took in sorted((number, took) for number, took in spent.items() if number is not None):
        limits = shares.get(attempt, Limits())
        yield Account("attempt", str(attempt), limits, took, extended.get(f"attempt {attempt}", {}))


class BudgetReport(msgspec.Struct, frozen=True):
    """Limits and what is spent, level by level, the widest first."""

    accounts: tuple[Account, ...]
