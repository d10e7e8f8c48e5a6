"""Tool calls: what the policy decided, what a person answered, what the tool returned."""

from typing import Literal

from cloister.core.events.base import EventBody
from cloister.core.requests import Origin, Role

Effect = Literal["allow", "deny", "ask"]


class ActionDecided(EventBody, frozen=True):
    attempt: int
    call: str
    action: str
    effect: Effect
    rule: str
    """The rule that decided, and where it is written."""


class AskRaised(EventBody, frozen=True):
    """A rule says `ask`: the run waits for a person until the deadline, then takes the default."""

    ask: str
    attempt: int
    action: str
    detail: str
    deadline: float
    """Unix seconds."""
    default: Literal["allow", "deny"] = "deny"
    rule: str = ""
    """The rule that asks, and where it is written."""
    approver: Role = "operator"
    """The least role that may say yes."""


class AskAnswered(EventBody, frozen=True):
    ask: str
    answer: Literal["allow", "deny"]
    who: str
    role: Role = "admin"
    """In which role."""


class ToolReturned(EventBody, frozen=True):
    """The result of one tool call, as the model sees it."""

    attempt: int
    call: str
    tool: str
    ok: bool
    text: str
    seconds: float
    exit_code: int | None = None
    origin: Origin = "tool"
    """Where the text came from: after something came over the network, all that a tool shows may be from there."""
