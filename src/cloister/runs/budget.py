"""Budgets of the levels above the run: what organisation, projects and users have spent and may spend.

The backbone looks for room and holds it in one transaction, so that runs in any number of processes never
hold the same dollar twice.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from cloister.agent.budget.purse import Held
from cloister.core.addresses import repository_matches
from cloister.core.budget import (
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
from cloister.core.events.attempt import Level, Resource
from cloister.core.ids import OwnerId, RunId
from cloister.core.log import Index, round_start
from cloister.core.requests import Budget
from cloister.log.api import BudgetStore, Hold, Payers, Totals
from cloister.runs.view import fold

ORGANISATION = "all"


class BudgetLedger:
    """`Ledger` over the totals that a backbone keeps."""

    def __init__(
        self,
        store: BudgetStore,
        tree: BudgetTree,
        owner: Callable[[], OwnerId],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._tree = tree
        self._owner = owner
        self._now = now

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        def decide(totals: Totals) -> tuple[Held | Over, Spend | None]:
            every = _Accounts(totals, self._tree, self._now()).above(totals.payers(run))
            limited = tuple(each for each in every if each.limits != Limits())
            answer = granted(limited, call)
            if isinstance(answer, Granted):
                return Held(answer, limited), answer.hold
            return answer, None

        return await self._store.reserve(Hold(ticket, run, self._owner()), decide)

    async def release(self, ticket: str) -> None:
        await self._store.release(ticket)


def above(tree: BudgetTree, now: float, run: RunId, totals: Totals) -> tuple[Account, ...]:
    """Return the levels above a run as they stand at `now` (Unix seconds), the widest first."""
    return tuple(_Accounts(totals, tree, now).above(totals.payers(run)))


def accounts(tree: BudgetTree, now: float, totals: Totals) -> tuple[Account, ...]:
    """Return every level above the runs as it stands at `now`, with a limit or without."""
    return tuple(_Accounts(totals, tree, now).every())


class _Accounts:
    """The accounts of the configured levels, from one moment's totals."""

    def __init__(self, totals: Totals, tree: BudgetTree, now: float) -> None:
        self._totals = totals
        self._tree = tree
        self._now = now

    def above(self, payers: Payers) -> Iterator[Account]:
        yield self._organisation()
        yield self._project(payers.repo)
        yield self._user(payers.who)

    def every(self) -> Iterator[Account]:
        """The organisation, and every project and user that has a table or has spent something in this month."""
        yield self._organisation()
        groups = self._spent("month")
        repos = {_project(self._tree, payers.repo)[0]: payers.repo for payers in groups}
        for table in self._tree.project:
            repos.setdefault(table.match, "")
        for name, repo in sorted(repos.items()):
            yield self._project(repo) if repo else self._unused(name)
        named = {table.name for table in self._tree.user if table.name != "*"}
        for who in sorted(named | {payers.who for payers in groups}):
            yield self._user(who)

    def _organisation(self) -> Account:
        limits = self._tree.organisation
        period: Period = "month" if limits is None else limits.period
        spent = sum(self._spent(period).values(), Spend())
        return self._account("organisation", ORGANISATION, limits or Limits(), period, spent)

    def _project(self, repo: str) -> Account:
        name, limits, period = _project(self._tree, repo)
        groups = self._spent(period).items()
        spent = sum((took for of, took in groups if _project(self._tree, of.repo)[0] == name), Spend())
        return self._account("project", name, limits, period, spent)

    def _unused(self, match: str) -> Account:
        table = next(table for table in self._tree.project if table.match == match)
        return self._account("project", match, table, table.period, Spend())

    def _user(self, who: str) -> Account:
        limits, period = _user(self._tree, who)
        spent = sum((took for of, took in self._spent(period).items() if of.who == who), Spend())
        return self._account("user", who, limits, period, spent)

    def _spent(self, period: Period) -> dict[Payers, Spend]:
        return self._totals.spent(first_day(period, self._now))

    def _account(self, level: Level, name: str, limits: Limits, period: Period, spent: Spend) -> Account:
        bare = Limits(
            steps=limits.steps, tokens=limits.tokens, dollars=limits.dollars, seconds=limits.seconds
        )
        more = self._totals.extended(level, name, first_day(period, self._now))
        return Account(level, name, bare, spent, more, period)


def _project(tree: BudgetTree, repo: str) -> tuple[str, Limits, Period]:
    """Return name, limits and period of a repository's project; without a table it is a project of its own."""
    plain = repo.rstrip("/")
    for table in tree.project:
        if repository_matches(table.match, repo):
            return table.match, table, table.period
    return plain, Limits(), "month"


def _user(tree: BudgetTree, who: str) -> tuple[Limits, Period]:
    named = next((table for table in tree.user if table.name == who), None)
    table = named or next((table for table in tree.user if table.name == "*"), None)
    return (Limits(), "month") if table is None else (table, table.period)


def run_accounts(events: Sequence[Event]) -> Iterator[Account]:
    """Return the newest round of a run and each of its attempts, from the whole log."""
    admitted = events[0].body
    if not isinstance(admitted, RunAdmitted):
        raise Bug("A run's log starts with its admission.")
    spent: dict[int | None, Spend] = {}
    extended: dict[str, dict[Resource, float]] = {}
    shares: dict[int, Limits] = {}
    start = round_start(events)
    index = Index(events[start:])  # each round has the whole budget of the request
    for body in index.of(AttemptStarted):
        if body.budget is not None:
            shares[body.attempt] = _with_seconds(body.budget)
            spent[body.attempt] = Spend()
    for body in index.of(ModelReplied, ModelSpent):
        spent[body.attempt] = spent.get(body.attempt, Spend()) + (spend_of(body) or Spend())
    for body in index.of(BudgetExtended):
        more = extended.setdefault(f"{body.level} {body.name}", {})
        more[body.what] = more.get(body.what, 0.0) + body.amount
    run, view = str(events[0].run), fold(events, time.time())
    limits = _with_seconds(view.budget)  # which the rules may have reduced
    before = fold(events[:start]).seconds if start else 0.0
    total = sum(spent.values(), Spend(seconds=view.seconds - before))
    yield Account("run", run, limits, total, extended.get(f"run {run}", {}))
    for attempt, took in sorted((number, took) for number, took in spent.items() if number is not None):
        limits = shares.get(attempt, Limits())
        yield Account("attempt", str(attempt), limits, took, extended.get(f"attempt {attempt}", {}))


def _with_seconds(budget: Budget) -> Limits:
    return msgspec.structs.replace(limits_of(budget), seconds=budget.seconds)


class BudgetReport(msgspec.Struct, frozen=True):
    """Limits and what is spent, level by level, the widest first."""

    accounts: tuple[Account, ...]
