"""The purse of a run: every model call is paid from it, or is not made."""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import anyio
import msgspec

from cloister.agent.approvals import answered, new_ask_id
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
    Delegated,
    ModelReplied,
    ModelSpent,
    RunContinued,
)
from cloister.core.events.attempt import Level, Resource
from cloister.core.ids import RunId
from cloister.core.log import Journal
from cloister.core.requests import Budget, Usage

_Key = tuple[Level, str, Resource, float]


class Held(msgspec.Struct, frozen=True):
    """A reservation for a call on the levels above the run."""

    granted: Granted
    accounts: tuple[Account, ...] = ()
    """Those levels before the reservation."""


class Ledger(Protocol):
    """Spending and limits of the levels above the run. Durable and shared by all runs."""

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        """Atomically reserve room for `call` on all levels, or return the limit that has none."""
        ...

    async def release(self, ticket: str) -> None:
        """End a reservation after the cost is in the log. Unknown tickets are ignored."""
        ...


class NoLedger:
    """A ledger without limits."""

    async def reserve(self, run: RunId, ticket: str, call: Call) -> Held | Over:
        return Held(Granted(call.output_tokens, Spend()))

    async def release(self, ticket: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Payer:
    """The account that pays for a call."""

    attempt: int | None = None
    """None for calls of the run itself."""
    budget: Budget | None = None
    """The attempt's share; None uses the run's budget alone."""
    above: "Payer | None" = None
    """The attempt that a helper works for: it pays too, and no person is asked for more."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission for a call, with its maximum cost reserved."""

    ticket: str
    output_tokens: int
    seq: int
    """The last event before the call."""


@dataclass(slots=True)
class _Books:
    """Spending, extensions and warnings of the run, folded from its growing log."""

    taken: int = 0
    spent: dict[int | None, Spend] = field(default_factory=dict[int | None, Spend])
    extended: dict[tuple[Level, str], dict[Resource, float]] = field(
        default_factory=dict[tuple[Level, str], dict[Resource, float]]
    )
    warned: set[_Key] = field(default_factory=set[_Key])
    refused: set[_Key] = field(default_factory=set[_Key])
    helpers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Attempt → the helpers whose work it pays."""

    def update(self, journal: Journal) -> None:
        for event in journal.events[self.taken :]:
            match event.body:
                case (ModelReplied() | ModelSpent()) as body:
                    took = spend_of(body) or Spend()
                    self.spent[body.attempt] = self.spent.get(body.attempt, Spend()) + took
                case Delegated() as body:
                    self.helpers.setdefault(body.parent, []).append(body.attempt)
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
    """Budget, spending and open reservations of one run."""

    def __init__(
        self,
        journal: Journal,
        budget: Budget,
        tree: BudgetTree,
        ledger: Ledger,
        ask_seconds: float,
        capped: Set[str] = frozenset(),
    ) -> None:
        """`capped`: resources limited by a policy. Only an admin can extend those."""
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
        """The time budgets of the levels above, as of `_above_at`."""
        self._above_at = 0.0
        self._watching: list[Callable[[], None]] = []

    @property
    def journal(self) -> Journal:
        return self._journal

    @property
    def run(self) -> RunId:
        return self._journal.events[0].run

    def accounts(self, payer: Payer) -> tuple[Account, ...]:
        """The current accounts of the run and the attempt."""
        self._books.update(self._journal)
        found = [self._account("run", str(self.run), self._budget, self._everyone())]
        for one in (payer.above, payer):
            # A share that is the whole budget of the run needs no account of its own.
            if one is not None and one.attempt is not None and one.budget not in (None, self._budget):
                whose = self._with_helpers(one.attempt)
                found.append(self._account("attempt", str(one.attempt), one.budget, whose))
        return tuple(found)

    def _with_helpers(self, attempt: int | None) -> list[int | None]:
        return [attempt, *(self._books.helpers.get(attempt, ()) if attempt is not None else ())]

    def spent(self, attempt: int | None, *, held: bool = True) -> Spend:
        """Spending of one payer; with `held`, including reservations."""
        self._books.update(self._journal)
        whose = self._with_helpers(attempt)
        if held:
            return self._taken(whose)
        return sum((self._books.spent.get(one, Spend()) for one in whose), Spend())

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
        """Reserve the maximum cost of `call` on every level, or return the level without room. Both are recorded."""
        while True:
            answer = await self._try(payer, call)
            if isinstance(answer, Permit):
                return answer
            if payer.above is not None or not call.keep_back:
                return answer  # last words: ask no person for more
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
        """Remember the time budgets of the levels above. Time passes and cannot be reserved."""
        timed = [account for account in above if account.limit("seconds") is not None]
        self._above = tuple(
            Over(each.level, each.name, "seconds", each.spent.seconds, each.limit("seconds") or 0.0)
            for each in timed
        )
        self._above_at = anyio.current_time()
        for tell in self._watching:
            tell()

    def time_above(self) -> Over | None:
        """The level above that runs out of time first, by this run's own spending since the last call."""
        passed = anyio.current_time() - self._above_at
        now = [msgspec.structs.replace(each, spent=each.spent + passed) for each in self._above]
        return min(now, key=lambda each: each.limit - each.spent, default=None)

    def watch_time(self, tell: Callable[[], None]) -> None:
        """Call `tell` with each permitted call: time budgets may have changed."""
        self._watching.append(tell)

    def assumed(self, usage: Usage) -> float | None:
        """Assumed US dollars for a model without a known price; None if the settings assume none."""
        per_million = self._tree.unpriced
        return None if per_million is None else usage.total * per_million / 1_000_000

    def more_seconds(self) -> float:
        """Seconds that people added to the run. They count for all attempts."""
        self._books.update(self._journal)
        return self._books.extended.get(("run", str(self.run)), {}).get("seconds", 0.0)

    async def warn_of_time(self, payer: Payer, over: Over) -> None:
        """Warn once when most of the time is spent."""
        if over.spent >= over.limit * self._tree.warn_percent / 100:
            self._books.update(self._journal)
            await self._warn_once(payer, over)

    async def ask_for_time(self, payer: Payer, over: Over) -> bool:
        """Ask for more time of a level. True if granted; both answers are recorded."""
        seen = self._journal.events[-1].seq
        async with self._asking:
            given = await self._given_more(payer, over, seen)
        if given and over.level != "run":
            self._above = ()  # the next call updates it
        return given

    async def settle(self, ticket: str) -> None:
        """End the reservation of a call whose cost is in the log."""
        with anyio.CancelScope(shield=True):
            await self._ledger.release(ticket)
            self._held.pop(ticket, None)

    async def _warn(self, payer: Payer, accounts: Sequence[Account]) -> None:
        """Warn once per limit."""
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
        """Ask a person for more, once per limit, if the settings allow it. True if the caller should try again."""
        self._books.update(self._journal)
        if any(isinstance(event.body, BudgetExtended) for event in self._journal.events[seen:]):
            return True  # granted while this call waited for its turn to ask
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
        # An operator may choose the budget of a run, but not limits that others set.
        own = over.level in ("run", "attempt") and over.what not in self._capped
        ask = AskRaised(
            ask=new_ask_id(),
            attempt=payer.attempt or 0,
            action=f"budget: {amount(over.what, more)} more for {over.level} {over.name}",
            detail=f"{sentence(over)} {amount(over.what, over.spent)} are spent or held. "
            f"Allow adds {amount(over.what, more)}. Deny ends the attempt; its work is saved.",
            deadline=time.time() + self._ask_seconds,
            rule="" if own else f"the budget of {over.level} {over.name}",
            approver="operator" if own else "admin",
        )
        await self._journal.append(ask)
        return await answered(self._journal, ask)


def _key(over: Over | BudgetWarned | BudgetSpent) -> _Key:
    return (over.level, over.name, over.what, over.limit)
