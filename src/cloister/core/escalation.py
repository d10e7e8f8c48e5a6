"""What a stuck attempt asks for, and what it can be told."""

from collections.abc import Awaitable, Callable

import msgspec


class Stuck(msgspec.Struct, frozen=True):
    """An attempt goes round in circles and said so itself would not help."""

    attempt: int
    step: int
    evidence: str
    """What it keeps doing, in words for a person and for the model that goes on."""


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """Others go on from save points: this attempt ends here."""

    attempts: tuple[int, ...]


class Switch(msgspec.Struct, frozen=True, tag="switch"):
    """Go on with another model."""

    model: str


class GiveUp(msgspec.Struct, frozen=True, tag="give_up"):
    """End here."""

    reason: str


Answer = Branch | Switch | GiveUp

Escalate = Callable[[Stuck], Awaitable[Answer]]
"""Asked by the loop when a nudge did not help; whatever it begins is in the log when it answers."""
