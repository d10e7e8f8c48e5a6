"""What every API's way to say things has in common: replies to be sent, and the answers of `model_server`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from cloister.testing.model_server import Answer

Ending = Literal["end", "tools", "length", "refused"]

EVENT_STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class SentCall:
    """A tool call as it goes over the wire: the JSON text of its arguments, in fragments."""

    id: str
    name: str
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """One reply, whatever the format."""

    text: tuple[str, ...] = ()
    calls: tuple[SentCall, ...] = ()
    ending: Ending = "end"
    input_tokens: int = 100
    cached_tokens: int = 40
    """Part of `input_tokens`."""
    output_tokens: int = 20


@dataclass(frozen=True, slots=True)
class Wire:
    """One API's way to say things."""

    reply: Callable[[Sent], Answer]
    error: Callable[[int, str, str], Answer]
    """Status, the API's own name for the error, message."""
    errors: dict[int, str] = field(default_factory=dict[int, str])
    """Status → what the API calls it."""
    lacks: frozenset[str] = frozenset()
    """What the API has no word for: `refused`, `fragments` of a call, `reasoning` that is given back, `repeated ids`."""
    too_long: tuple[str, str] = ("", "")
    """What the error for a conversation that is too long is called, and what it says."""
    key_header: str = "authorization"
    """The header in which the key travels."""


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def named(data: dict[str, object]) -> bytes:
    """An event with its type as its name."""
    return event(data, str(data["type"]))


def json_answer(status: int, body: object) -> Answer:
    return Answer(status, JSON, (msgspec.json.encode(body),))
