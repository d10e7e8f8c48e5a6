"""Calls to models: replies, failures, advice, switches and summaries."""

from typing import Literal

from cloister.core.events.base import EventBody
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
    """What the provider wants back unchanged next time, in its own encoding."""
    cost: float | None = None
    """US dollars; None when nobody knows the model's price."""
    seen: int | None = None
    """The last event that the request was made from: what came after it, the model has not been told."""


class ModelFailed(EventBody, frozen=True):
    """One call to a model failed; `retry_seconds` is None when it is not tried again."""

    attempt: int
    code: str
    message: str
    retry_seconds: float | None = None
    model: str = ""
    role: str = "code"
    """What it was asked to be; `code` is a step of the loop."""


class Advised(EventBody, frozen=True):
    """A model with a role of its own had something to say: the kind of task, a plan, or a review of the change."""

    attempt: int
    role: Literal["plan", "review", "classify"]
    model: str
    text: str
    """The plan; what a review objects to, empty when it approves; the kind of task, empty when it is none of them."""


class ModelSwitched(EventBody, frozen=True):
    """Another model goes on with the same conversation, because the one before it failed."""

    attempt: int
    from_model: str
    to_model: str
    reason: str


class ModelChosen(EventBody, frozen=True):
    """A person wants another model to go on; each attempt takes it for its next step."""

    model: str
    who: str


class ContextSummarised(EventBody, frozen=True):
    """From here on the model sees this in place of the conversation up to `up_to_seq`."""

    attempt: int
    up_to_seq: int
    """The last `TurnEnded` that it stands for."""
    text: str
    """The model's own summary; empty when it was of no use, and then only what the log itself says is told."""
    files: tuple[str, ...] = ()
    """What differed from the base in the sandbox at that moment."""
    before_tokens: int = 0
    after_tokens: int = 0
    """Of the whole request, estimated."""
    kept_turns: int | None = None
    """How many turns stay: the same as `up_to_seq` says, in a way that also holds in the log of a fork."""
