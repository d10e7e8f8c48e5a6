"""The budget tree: the limits of each level, what it has spent, and whether one more call fits. Pure.

organisation → project → user → run → attempt. A call to a model must fit into every level.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, cast

import msgspec

from cloister.core.events import AnyBody, Event, ModelReplied, ModelSpent
from cloister.core.events.attempt import Level, Resource
from cloister.core.requests import Budget, Usage

Period = Literal["day", "month"]

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000_000)]
_Amount = Annotated[float, msgspec.Meta(gt=0, le=1_000_000_000_000)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits; None sets none."""

    steps: _Count | None = None
    tokens: _Count | None = None
    dollars: _Amount | None = None
    seconds: _Amount | None = None

    def of(self, what: Resource) -> float | None:
        return cast("float | None", getattr(self, what))


class PeriodLimits(Limits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that are reset each day or month, in UTC."""

    period: Period = "month"


class ProjectLimits(PeriodLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[budgets.project]]` table."""

    match: str
    """A shell pattern for the repository's path or URL; all matches share the budget."""


class UserLimits(PeriodLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[budgets.user]]` table."""

    name: str
    """The user; `*` is every user without a table, each with a budget of their own."""


class BudgetTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[budgets]` table of the configuration file."""

    warn_percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 80.0
    """Warn when this much of a limit is spent."""
    ask: bool = False
    """Ask a person for more when a limit is reached, instead of ending the run."""
    extend_percent: Annotated[float, msgspec.Meta(gt=0, le=1_000)] = 25.0
    """How much of the limit an approval adds."""
    unpriced: _Amount | None = None
    """US dollars per million tokens of models with an unknown price; None: they cost nothing."""
    organisation: PeriodLimits | None = None
    project: tuple[ProjectLimits, ...] = ()
    """The first match counts."""
    user: tuple[UserLimits, ...] = ()

    @property
    def outer(self) -> bool:
        """Whether any level above the run has a limit."""
        return self.organisation is not None or bool(self.project) or bool(self.user)


RESOURCES: tuple[Resource, ...] = ("steps", "tokens", "dollars", "seconds")

DAY_SECONDS = 86_400
LEAST_OUTPUT_TOKENS = 256
"""Calls with less room for output than this are not made."""
WRAP_UP_TOKENS = 600
"""Output tokens of an attempt's final summary; reserved until then."""


class Spend(msgspec.Struct, frozen=True):
    """What was spent."""

    steps: int = 0
    tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    """Wall time in which runs worked."""
    unpriced: int = 0
    """Tokens of models with an unknown price; not in `dollars`."""

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.dollars + other.dollars,
            self.seconds + other.seconds,
            self.unpriced + other.unpriced,
        )

    def of(self, what: Resource) -> float:
        return cast("float", getattr(self, what))


class Account(msgspec.Struct, frozen=True):
    """One level of the tree and its totals."""

    level: Level
    name: str
    limits: Limits
    spent: Spend = Spend()
    """Including holds for calls under way."""
    extended: dict[Resource, float] = {}
    """Extensions of the limits by people."""
    period: Period | None = None

    def limit(self, what: Resource) -> float | None:
        limit = self.limits.of(what)
        return None if limit is None else limit + self.extended.get(what, 0.0)

    def left(self, what: Resource) -> float | None:
        limit = self.limit(what)
        return None if limit is None else limit - self.spent.of(what)


class Call(msgspec.Struct, frozen=True):
    """A planned call to a model."""

    input_tokens: int
    output_tokens: int
    """At most."""
    steps: int = 1
    dollars_in: float | None = None
    """For all of the input; None if the price is unknown."""
    dollars_out: float | None = None
    """For one token of output."""
    keep_back: bool = True
    """Whether enough must remain for the last words."""


class Over(msgspec.Struct, frozen=True):
    """A limit, and how much of it is spent."""

    level: Level
    name: str
    what: Resource
    spent: float
    limit: float


class Granted(msgspec.Struct, frozen=True):
    """The call fits if its reply has at most `output_tokens`."""

    output_tokens: int
    hold: Spend
    """What it takes at most: held until it is known."""


def granted(accounts: Sequence[Account], call: Call) -> Granted | Over:
    """Whether `call` fits into every account; its output is cut to what does."""
    output = call.output_tokens
    for account in accounts:
        for what in RESOURCES:
            left = account.left(what)
            room = output if left is None else _output_room(what, left, call)
            if room < min(LEAST_OUTPUT_TOKENS, call.output_tokens):
                return Over(
                    account.level, account.name, what, account.spent.of(what), account.limit(what) or 0.0
                )
            output = min(output, room)
    return Granted(output, _hold(call, output))


def _output_room(what: Resource, left: float, call: Call) -> int:
    """How many tokens of output this much of one resource allows."""
    match what:
        case "steps":
            return call.output_tokens if left >= call.steps else 0
        case "seconds":
            return call.output_tokens if left > 0 else 0
        case "tokens":
            last = call.input_tokens + WRAP_UP_TOKENS if call.keep_back else 0
            return int(left) - call.input_tokens - last
        case "dollars":
            if call.dollars_in is None or call.dollars_out is None:
                return call.output_tokens
            last = call.dollars_in + WRAP_UP_TOKENS * call.dollars_out if call.keep_back else 0.0
            left -= call.dollars_in + last
            if call.dollars_out <= 0:
                return call.output_tokens if left >= 0 else 0
            # Cut first: a price that is next to nothing allows more than a number can say.
            return int(min(left / call.dollars_out, call.output_tokens))


def _hold(call: Call, output: int) -> Spend:
    tokens = call.input_tokens + output
    if call.dollars_in is None or call.dollars_out is None:
        return Spend(call.steps, tokens, unpriced=tokens)
    return Spend(call.steps, tokens, call.dollars_in + output * call.dollars_out)


def warnings(accounts: Sequence[Account], percent: float) -> Iterator[Over]:
    """Yield the limits of which at least `percent` is spent."""
    for account in accounts:
        for what in RESOURCES:
            limit = account.limit(what)
            if limit is not None and account.spent.of(what) >= limit * percent / 100:
                yield Over(account.level, account.name, what, account.spent.of(what), limit)


def spend_of(body: AnyBody) -> Spend | None:
    """Return what an event records as spent on models; None if it is no such event."""
    match body:
        case ModelReplied():
            return _paid(1, body.usage, body.cost)
        case ModelSpent():
            return _paid(0, body.usage, body.cost)
        case _:
            return None


def _paid(steps: int, usage: Usage, cost: float | None) -> Spend:
    tokens = max(0, usage.total)
    if cost is None:
        return Spend(steps, tokens, unpriced=tokens)
    return Spend(steps, tokens, max(0.0, cost))


def dollars_of(events: Sequence[Event], attempt: int) -> float | None:
    """Return what an attempt spent on models; None if a price is unknown or it made no call."""
    costs = [
        event.body.cost
        for event in events
        if isinstance(event.body, ModelReplied | ModelSpent) and event.body.attempt == attempt
    ]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if costs and len(known) == len(costs) else None


def limits_of(budget: Budget) -> Limits:
    """Return a budget as limits, without seconds: the loop enforces those."""
    return Limits(steps=budget.steps, tokens=budget.tokens, dollars=budget.dollars)


def first_day(period: Period, at: float) -> int:
    """Return the first day, counted from 1970, of the period that contains `at` (Unix seconds)."""
    day = int(at // DAY_SECONDS)
    if period == "day":
        return day
    return day - datetime.fromtimestamp(at, UTC).day + 1


def amount(what: Resource, value: float) -> str:
    """Format an amount of a resource with its unit."""
    match what:
        case "dollars":
            return f"${value:,.2f}"
        case "seconds":
            return f"{round(value, 1):g} seconds"
        case _:
            return f"{value:,.0f} {what}"


def sentence(over: Over) -> str:
    """Return why a call was rejected, as one sentence."""
    match over.level:
        case "run" | "attempt":
            whose = f"The {over.level}'s budget"
        case "organisation":
            whose = "The organisation's budget"
        case _:
            whose = f"The budget of {over.level} {over.name}"
    return f"{whose} of {amount(over.what, over.limit)} is spent."
