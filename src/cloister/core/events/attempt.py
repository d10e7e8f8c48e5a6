"""Entries of the log about forks and ranks of attempts. They are read from `core/events/__init__.py` like all others."""

from cloister.core.attempts import Score
from cloister.core.events.base import Body
from cloister.core.requests import Budget


class AttemptForked(Body, frozen=True):
    """A new attempt goes on from a save point of another: with its files, and its conversation up to there."""

    attempt: int
    parent: int
    at_seq: int
    """The `TurnEnded` event of the save point; 0 is the untouched base."""
    reason: str
    budget: Budget
    hint: str
    """What the new attempt is told."""
    asked: int | None = None
    """The `RewindRequested` or `RunContinued` event that this answers; None when a search decided."""
    stuck: int | None = None
    """The attempt in whose place it works, as a search decided."""


class AttemptsRanked(Body, frozen=True):
    """All attempts have ended and the evidence was weighed."""

    scores: tuple[Score, ...]
    """Best first."""
    tied: tuple[int, ...] = ()
    """Attempts whose evidence is the same as the best one's, that one included; empty when it is alone."""


class JudgeSpoke(Body, frozen=True):
    """A model chose among attempts that the evidence could not tell apart."""

    model: str
    tied: tuple[int, ...]
    choice: int | None
    """None when it gave no usable answer: then the earliest attempt is taken."""
    text: str
    seconds: float


class RewindRequested(Body, frozen=True):
    """A person wants the run to go on from an earlier save point."""

    to: int
    """The number of the save point's `TurnEnded` event."""
    who: str
