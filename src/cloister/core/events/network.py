"""Connections and requests from a sandbox through the proxy."""

from typing import Literal

from cloister.core.events.base import EventBody


class ConnectionDecided(EventBody, frozen=True):
    """Something inside asked the door for a way out."""

    sandbox: str
    host: str
    port: int
    effect: Literal["allow", "deny"]
    rule: str
    credential: str | None = None
    """The name of the credential it was opened for."""


class ConnectionClosed(EventBody, frozen=True):
    sandbox: str
    host: str
    port: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    credential: str | None = None
    """The names of the credentials that were used on it, with commas between them."""


class RequestDecided(EventBody, frozen=True):
    """One HTTP request of a connection whose requests the door can read; so many of a sandbox are recorded."""

    sandbox: str
    host: str
    port: int
    method: str
    path: str
    """Decoded and cut, without the query."""
    effect: Literal["allow", "deny"]
    rule: str
    credential: str | None = None
