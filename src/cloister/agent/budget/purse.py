"""The purse of a run: every call to a model is paid from it, or is not made.

`Purse.models` wraps a run's models so that there is no way to ask one without paying; the loop takes nothing else.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import anyio
import msgspec

from cloister.agent.approvals import answered
from cloister.core.budget import (
    Account,
    BudgetTree,
    Call,
    Granted,
    Over,
    Spend,
    amount,
    granted,
    limits_of,
    sentence,
    spend_of,
    warnings,
)
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    BudgetExtended,
    BudgetSpent,
    BudgetWarned,
    ModelReplied,
    ModelSpent,
    RunContinued,
)
from cloister.core.events.budget import Level, Resource
from cloister.core.ids import RunId
from cloister.core.log import Journal
from cloister.core.requests import Budget, Usage

_Key = tuple[Level, str, Resource, float]


class Held(msgspec.Struct, frozen=True):
    """The levels above the run hold what the call takes at most, until it is released."""

    granted: Granted
    accounts: tuple[Account, ...] = ()
    """Those levels as they stood before it."""


class Ledger(Protocol):
    """What the levels above the run have spent and may spend; durable, and one for all runs."""

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        """Hold room for `call` under `ticket`, or say which limit has none. All or nothing, whoever else asks."""
        ...

    async def release(self, ticket: str) -> None:
        """The call is over and what it took is in the log. A ticket that holds nothing is fine."""
        ...


class NoLedger:
    """Nothing above the run has a limit."""

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        return Held(Granted(call.output_tokens, Spend()))

    async def release(self, ticket: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Payer:
    """On whose account a call is made."""

    attempt: int | None = None
    """None for what belongs to the run and to no attempt of it."""
    budget: Budget | None = None
    """The attempt's own share; None draws from the run's budget alone."""
    inherited: Spend = field(default_factory=Spend)
    """What counts as spent of that share, though another attempt paid it."""


@dataclass(frozen=True, slots=True)
class Permit:
    """A call may be made, and its most is held."""

    ticket: str
    output_tokens: int
    seq: int
    """The last event before it."""


@dataclass(slots=True)
class _Books:
    """What the run's own log says about money, taken in as it grows."""

    taken: int = 0
    spent: dict[int | None, Spend] = field(default_factory=dict[int | None, Spend])
    extended: dict[tuple[Level, str], dict[Resource, float]] = field(
        default_factory=dict[tuple[Level, str], dict[Resource, float]]
    )
    warned: set[_Key] = field(default_factory=set[_Key])
    refused: set[_Key] = field(default_factory=set[_Key])

    def update(self, journal: Journal) -> None:
        for event in journal.events[self.taken :]:
            match event.body:
                case (ModelReplied() | ModelSpent()) as body:
                    took = spend_of(body) or Spend()
                    self.spent[body.attempt] = self.spent.get(body.attempt, Spend()) + took
                case RunContinued():  # each round has the whole budget of the request
                    for kept in (self.spent, self.extended, self.warned, self.refused):
                        kept.clear()
                case BudgetExtended() as body:
                    more = self.extended.setdefault((body.level, body.name), {})
                    more[body.what] = more.get(body.what, 0.0) + body.amount
                case BudgetWarned() as body:
                    self.warned.add(_key(body))
                case BudgetSpent() as body:
                    self.refused.add(_key(body))
                case _:
                    pass
        self.taken = len(journal.events)


class Purse:
    """All that one run may spend, with what it has spent: a fold of its log, and what is held for calls under way."""

    def __init__(
        self,
        journal: Journal,
        budget: Budget,
        tree: BudgetTree,
        ledger: Ledger,
        ask_seconds: float,
        capped: Set[str] = frozenset(),
    ) -> None:
        """`capped` is what a policy limits: more of that than it says only an admin may give."""
        self._journal = journal
        self._budget = budget
        self._tree = tree
        self._ledger = ledger
        self._ask_seconds = ask_seconds
        self._capped = capped
        self._books = _Books()
        self._held: dict[str, tuple[int | None, Spend]] = {}
        self._asking = anyio.Lock()
        self._above: tuple[Over, ...] = ()
        """The time of the levels above, as it was known last, at `_above_at`."""
        self._above_at = 0.0
        self._watching: list[Callable[[], None]] = []

    @property
    def journal(self) -> Journal:
        return self._journal

    @property
    def run(self) -> RunId:
        return self._journal.events[0].run

    def accounts(self, payer: Payer) -> tuple[Account, ...]:
        """The run and the attempt as they stand."""
        self._books.update(self._journal)
        run = self._account("run", str(self.run), self._budget, self._everyone())
        if payer.budget is None or payer.attempt is None:
            return (run,)
        if payer.budget == self._budget and payer.inherited == Spend():
            return (run,)  # its share is the whole: the run's limits say it all
        mine = self._account("attempt", str(payer.attempt), payer.budget, [payer.attempt])
        return (run, msgspec.structs.replace(mine, spent=mine.spent + payer.inherited))

    def spent(self, attempt: int | None, *, held: bool = True) -> Spend:
        """What one payer has spent, with what is `held` for its calls under way."""
        self._books.update(self._journal)
        return self._taken([attempt]) if held else self._books.spent.get(attempt, Spend())

    def _taken(self, attempts: Iterable[int | None]) -> Spend:
        whose = set(attempts)
        spent = sum((took for who, took in self._books.spent.items() if who in whose), Spend())
        return sum((hold for who, hold in self._held.values() if who in whose), spent)

    def _everyone(self) -> set[int | None]:
        return {*self._books.spent, *(attempt for attempt, _ in self._held.values())}

    def _account(self, level: Level, name: str, budget: Budget, attempts: Iterable[int | None]) -> Account:
        extended = self._books.extended.get((level, name), {})
        return Account(level, name, limits_of(budget), self._taken(attempts), extended)

    async def permit(self, payer: Payer, call: Call) -> Permit | Over:
        """Hold what `call` takes at most on every level, or say which has no room; both are in the log."""
        while True:
            answer = await self._try(payer, call)
            if isinstance(answer, Permit):
                return answer
            if not call.keep_back:
                return answer  # the last words are not worth a question
            seen = self._journal.events[-1].seq
            async with self._asking:
                if not await self._given_more(payer, answer, seen):
                    return answer

    async def _try(self, payer: Payer, call: Call) -> Permit | Over:
        inner = self.accounts(payer)
        mine = granted(inner, call)
        if isinstance(mine, Over):
            return mine
        ticket = secrets.token_hex(8)
        self._held[ticket] = (payer.attempt, mine.hold)
        held: Held | Over | None = None
        try:
            less = msgspec.structs.replace(call, output_tokens=mine.output_tokens)
            held = await self._ledger.reserve(self.run, ticket, less)
            if isinstance(held, Over):
                return held
            self._learn(held.accounts)
            await self._warn(payer, (*held.accounts, *inner))
            return Permit(ticket, held.granted.output_tokens, self._journal.events[-1].seq)
        except BaseException:
            held = None
            raise
        finally:
            if not isinstance(held, Held):
                await self.settle(ticket)

    def _learn(self, above: Sequence[Account]) -> None:
        """How much time the levels above have: it passes while a call or a command runs, and is not held."""
        timed = [account for account in above if account.limit("seconds") is not None]
        self._above = tuple(
            Over(each.level, each.name, "seconds", each.spent.seconds, each.limit("seconds") or 0.0)
            for each in timed
        )
        self._above_at = anyio.current_time()
        for tell in self._watching:
            tell()

    def time_above(self) -> Over | None:
        """The level above that runs out of time first, with what this run alone has spent of it meanwhile."""
        passed = anyio.current_time() - self._above_at
        now = [msgspec.structs.replace(each, spent=each.spent + passed) for each in self._above]
        return min(now, key=lambda each: each.limit - each.spent, default=None)

    def watch_time(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever more is known about the time above."""
        self._watching.append(tell)

    def assumed(self, usage: Usage) -> float | None:
        """US dollars for `usage` of a model whose price nobody knows; None when it counts as none."""
        per_million = self._tree.unpriced
        return None if per_million is None else usage.total * per_million / 1_000_000

    def more_seconds(self) -> float:
        """What people added to the time of the run, which passes for all its attempts at once."""
        self._books.update(self._journal)
        return self._books.extended.get(("run", str(self.run)), {}).get("seconds", 0.0)

    async def warn_of_time(self, payer: Payer, spent: float, limit: float) -> None:
        """Say once that most of the time is over, if it is. It is measured by whoever can interrupt."""
        if spent >= limit * self._tree.warn_percent / 100:
            self._books.update(self._journal)
            await self._warn_once(payer, Over("run", str(self.run), "seconds", spent, limit))

    async def ask_for_time(self, payer: Payer, spent: float, limit: float) -> bool:
        """Whether there is more time now that it is over; both answers are in the log."""
        return await self._ask_for(payer, Over("run", str(self.run), "seconds", spent, limit))

    async def ask_for_time_above(self, payer: Payer, over: Over) -> bool:
        """As `ask_for_time`, of a level above the run."""
        given = await self._ask_for(payer, over)
        if given:
            self._above = ()  # known again with the next call
        return given

    async def _ask_for(self, payer: Payer, over: Over) -> bool:
        seen = self._journal.events[-1].seq
        async with self._asking:
            return await self._given_more(payer, over, seen)

    async def settle(self, ticket: str) -> None:
        """The call is over, and what it took is in the log."""
        with anyio.CancelScope(shield=True):
            await self._ledger.release(ticket)
            self._held.pop(ticket, None)

    async def _warn(self, payer: Payer, accounts: Sequence[Account]) -> None:
        """Once for each limit."""
        for over in warnings(accounts, self._tree.warn_percent):
            await self._warn_once(payer, over)

    async def _warn_once(self, payer: Payer, over: Over) -> None:
        key = _key(over)
        if key not in self._books.warned:
            self._books.warned.add(key)
            await self._journal.append(
                BudgetWarned(over.level, over.name, over.what, over.spent, over.limit, payer.attempt)
            )

    async def _given_more(self, payer: Payer, over: Over, seen: int) -> bool:
        """Ask a person for more, where that is allowed, once for each limit. True when it is worth another look."""
        self._books.update(self._journal)
        if any(isinstance(event.body, BudgetExtended) for event in self._journal.events[seen:]):
            return True  # somebody gave more while this one waited for its turn to ask
        if _key(over) in self._books.refused:
            return False
        if self._tree.ask:
            more = over.limit * self._tree.extend_percent / 100
            more = float(ceil(more)) if over.what in ("steps", "tokens") else more
            answer = await self._ask(payer, over, more)
            if answer.answer == "allow":
                body = BudgetExtended(over.level, over.name, over.what, more, answer.who, payer.attempt)
                await self._journal.append(body)
                return True
        spent = BudgetSpent(over.level, over.name, over.what, over.spent, over.limit, payer.attempt)
        await self._journal.append(spent)
        return False

    async def _ask(self, payer: Payer, over: Over, more: float) -> AskAnswered:
        # What is the run's own an operator could have asked for at its start; the rest was set for them.
        own = over.level in ("run", "attempt") and over.what not in self._capped
        ask = AskRaised(
            ask="a-" + secrets.token_hex(4),
            attempt=payer.attempt or 0,
            action=f"budget: {amount(over.what, more)} more for {over.level} {over.name}",
            detail=f"{sentence(over)} {amount(over.what, over.spent)} are spent or held. "
            f"A yes adds {amount(over.what, more)}; a no ends the work here, with what is done saved.",
            deadline=time.time() + self._ask_seconds,
            rule="" if own else f"the budget of {over.level} {over.name}",
            approver="operator" if own else "admin",
        )
        await self._journal.append(ask)
        return await answered(self._journal, ask)


def _key(over: Over | BudgetWarned | BudgetSpent) -> _Key:
    return (over.level, over.name, over.what, over.limit)
