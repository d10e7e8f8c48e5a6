"""Calls to models: replies, failures, advice, switches and summaries."""

from typing import Literal

from cloister.core.events.run import EventBody
from cloister.core.requests import ToolCall, Usage


class ModelReplied(EventBody, frozen=True):
    attempt: int
    step: int
    model: str
    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    seconds: float
    opaque: str | None = None
    """Data that the provider wants back unchanged, in its own encoding."""
    cost: float | None = None
    """US dollars; None if the model's price is unknown."""
    seen: int | None = None
    """The last event that the request included."""


class ModelFailed(EventBody, frozen=True):
    """A call to a model failed; `retry_seconds` is None if it is not retried."""

    attempt: int
    code: str
    message: str
    retry_seconds: float | None = None
    model: str = ""
    role: str = "code"
    """The role of the call; `code` is a step of the loop."""


class Advised(EventBody, frozen=True):
    """The answer of a model in another role: the kind of task, a plan, or a review of the change."""

    attempt: int
    role: Literal["plan", "review", "classify"]
    model: str
    text: str
    """The plan; the objections of a review, empty if it approves; the kind of task, empty if none fits."""


class ModelSwitched(EventBody, frozen=True):
    """Another model continues the conversation because the previous one failed."""

    attempt: int
    from_model: str
    to_model: str
    reason: str


class ModelChosen(EventBody, frozen=True):
    """A person chose another model; each attempt uses it from its next step on."""

    model: str
    who: str


class ContextSummarised(EventBody, frozen=True):
    """From here on the model sees this summary instead of the conversation up to `up_to_seq`."""

    attempt: int
    up_to_seq: int
    """The last `TurnEnded` that it covers."""
    text: str
    """The model's summary; empty if it was unusable: then only facts from the log are kept."""
    files: tuple[str, ...] = ()
    """Files that differed from the base in the sandbox."""
    before_tokens: int = 0
    after_tokens: int = 0
    """Estimated size of the whole request."""
    kept_turns: int | None = None
    """How many turns stay: `up_to_seq` in a form that is also valid in the log of a fork."""


# Money: what calls to models took, and what the budgets said about it.


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
