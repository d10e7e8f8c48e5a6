"""Connections and requests from a sandbox through the proxy."""

from typing import Literal

from cloister.core.events.run import EventBody


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
