"""Tool calls: what the policy decided, what a person answered, what the tool returned."""

from typing import Literal

from cloister.core.events.run import EventBody
from cloister.core.requests import Origin, Role

Effect = Literal["allow", "deny", "ask"]


class ActionDecided(EventBody, frozen=True):
    attempt: int
    call: str
    action: str
    effect: Effect
    rule: str
    """The deciding rule and its source."""


class AskRaised(EventBody, frozen=True):
    """A rule says `ask`: the run waits for a person until the deadline, then uses the default."""

    ask: str
    attempt: int
    action: str
    detail: str
    deadline: float
    """Unix seconds."""
    default: Literal["allow", "deny"] = "deny"
    rule: str = ""
    """The asking rule and its source."""
    approver: Role = "operator"
    """The lowest role that may allow it."""


class AskAnswered(EventBody, frozen=True):
    ask: str
    answer: Literal["allow", "deny"]
    who: str
    role: Role = "admin"
    """The person's role."""


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
    """The source of the text. Once the run reached the network, the output of any tool may come from there."""


# Connections and requests from a sandbox through the proxy.


class ConnectionDecided(EventBody, frozen=True):
    """A program in a sandbox asked the proxy for a connection."""

    sandbox: str
    host: str
    port: int
    effect: Literal["allow", "deny"]
    rule: str
    credential: str | None = None
    """The name of the credential that the connection is for."""


class ConnectionClosed(EventBody, frozen=True):
    sandbox: str
    host: str
    port: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    credential: str | None = None
    """The names of the credentials used on it, separated by commas."""


class RequestDecided(EventBody, frozen=True):
    """One HTTP request that the proxy could read; only the first of a sandbox are recorded."""

    sandbox: str
    host: str
    port: int
    method: str
    path: str
    """Decoded and cut, without the query."""
    effect: Literal["allow", "deny"]
    rule: str
    credential: str | None = None
