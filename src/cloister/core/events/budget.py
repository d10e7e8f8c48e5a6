"""Money: what calls to models took, and what the budgets said about it."""

from typing import Literal

from cloister.core.events.run import EventBody
from cloister.core.requests import Usage

Level = Literal["organisation", "project", "user", "run", "attempt"]
"""Whose budget it is, the widest first."""
Resource = Literal["steps", "tokens", "dollars", "seconds"]


class ModelSpent(EventBody, frozen=True):
    """The usage of a call to a model that was not a step of the loop, or of a step without a reply."""

    attempt: int | None
    purpose: str
    """`summarise`, `wrap_up`, `judge` …"""
    model: str
    usage: Usage
    seconds: float
    cost: float | None = None
    estimated: bool = False
    """True: the call was cut off before the provider reported its usage."""


class BudgetWarned(EventBody, frozen=True):
    """Most of a budget is spent."""

    level: Level
    name: str
    """The organisation, project, user, run id or attempt number."""
    what: Resource
    spent: float
    limit: float
    attempt: int | None = None


class BudgetSpent(EventBody, frozen=True):
    """A call to a model was rejected: this budget has no room for it."""

    level: Level
    name: str
    what: Resource
    spent: float
    limit: float
    attempt: int | None = None


class BudgetExtended(EventBody, frozen=True):
    """A person added `amount` to the limit, for the rest of its period."""

    level: Level
    name: str
    what: Resource
    amount: float
    who: str
    attempt: int | None = None
