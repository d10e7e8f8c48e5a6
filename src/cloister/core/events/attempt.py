"""The course of an attempt: start, checks, turns, forks, and the choice among attempts."""

from typing import Literal

from cloister.core.attempts import Score
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events.base import EventBody
from cloister.core.requests import Budget, Outcome

StuckKind = Literal["repeats", "alternations", "unchanged", "idle", "malformed"]


class AttemptStarted(EventBody, frozen=True):
    attempt: int
    model: str
    parent: int | None = None
    """The attempt that it was forked from."""
    at: int | None = None
    """The save point of the parent: the number of its event; 0 is the untouched base."""
    temperature: float | None = None
    hint: str | None = None
    """What it is told besides the task."""
    budget: Budget | None = None
    """Its share of the run's, for what it does itself."""


class AttemptForked(EventBody, frozen=True):
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
    """The `RewindRequested` event that this answers; None when a search decided."""
    stuck: int | None = None
    """The attempt in whose place it works, as a search decided."""


class RewindRequested(EventBody, frozen=True):
    """A person wants the run to go on from an earlier save point."""

    to: int
    """The number of the save point's `TurnEnded` event."""
    who: str


class ChecksRan(EventBody, frozen=True):
    attempt: int
    step: int
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class ProofTaken(EventBody, frozen=True):
    """The checks on the saved commit, in a fresh sandbox that holds nothing else: what a green end rests on."""

    attempt: int
    step: int
    commit: str
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class SaveRefused(EventBody, frozen=True):
    """The files of this turn could not be saved; the model is told why, and the save point before it stands."""

    attempt: int
    step: int
    text: str


class FinishRefused(EventBody, frozen=True):
    """The model said it was done and the evidence disagrees. `text` is what it is told."""

    attempt: int
    text: str


class TurnEnded(EventBody, frozen=True):
    """A save point: everything up to here survives the loss of the sandbox."""

    attempt: int
    step: int
    commit: str
    """Of the run's own repository, with untracked files; the base commit when nothing changed."""
    changed: bool
    """Whether this turn changed files."""


class StuckNoticed(EventBody, frozen=True):
    """The attempt goes round in circles; `stage` is what is done about it."""

    attempt: int
    kind: StuckKind
    evidence: str
    step: int
    stage: Literal["nudge", "escalate", "stop"] = "nudge"


class AttemptEnded(EventBody, frozen=True):
    attempt: int
    outcome: Outcome
    reason: str
    commit: str
    comparison: Comparison


class AttemptsRanked(EventBody, frozen=True):
    """All attempts have ended and the evidence was weighed."""

    scores: tuple[Score, ...]
    """Best first."""
    tied: tuple[int, ...] = ()
    """Attempts whose evidence is the same as the best one's, that one included; empty when it is alone."""


class JudgeSpoke(EventBody, frozen=True):
    """A model chose among attempts that the evidence could not tell apart."""

    model: str
    tied: tuple[int, ...]
    choice: int | None
    """None when it gave no usable answer: then the earliest attempt is taken."""
    text: str
    seconds: float
