"""Money: what calls to models took, and what the budgets said about it."""

from typing import Literal

from cloister.core.events.base import EventBody
from cloister.core.requests import Usage

Level = Literal["organisation", "project", "user", "run", "attempt"]
"""Whose budget it is, the widest first."""
Resource = Literal["steps", "tokens", "dollars", "seconds"]


class ModelSpent(EventBody, frozen=True):
    """A call to a model that was no step of the loop, or a step whose reply never came: what it took."""

    attempt: int | None
    purpose: str
    """What it was for: `summarise`, `wrap_up`, `judge` …"""
    model: str
    usage: Usage
    seconds: float
    cost: float | None = None
    estimated: bool = False
    """True when it was cut off before the provider said what it took."""


class BudgetWarned(EventBody, frozen=True):
    """Most of a budget is spent."""

    level: Level
    name: str
    """Which organisation, project or user; the run's id, or the attempt's number."""
    what: Resource
    spent: float
    limit: float
    attempt: int | None = None


class BudgetSpent(EventBody, frozen=True):
    """A call to a model was not made, because this budget does not hold it."""

    level: Level
    name: str
    what: Resource
    spent: float
    limit: float
    attempt: int | None = None


class BudgetExtended(EventBody, frozen=True):
    """A person gave more: `amount` on top of the limit, for the rest of its period."""

    level: Level
    name: str
    what: Resource
    amount: float
    who: str
    attempt: int | None = None
