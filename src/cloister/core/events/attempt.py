"""The course of an attempt: start, checks, turns, forks, and the choice among attempts."""

from typing import Literal

from cloister.core.attempts import Score
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events.run import EventBody
from cloister.core.requests import Budget, Outcome

StuckKind = Literal["repeats", "alternations", "unchanged", "idle", "malformed"]


class AttemptStarted(EventBody, frozen=True):
    attempt: int
    model: str
    parent: int | None = None
    """The attempt that it was forked from."""
    at: int | None = None
    """The number of the parent's save point; 0 is the untouched base."""
    temperature: float | None = None
    hint: str | None = None
    """Added to the task."""
    budget: Budget | None = None
    """Its share of the run's budget."""


class AttemptForked(EventBody, frozen=True):
    """A new attempt continues from a save point of another, with its files and its conversation."""

    attempt: int
    parent: int
    at_seq: int
    """The `TurnEnded` event of the save point; 0 is the untouched base."""
    reason: str
    budget: Budget
    hint: str
    """A message to the new attempt."""
    asked: int | None = None
    """The `RewindRequested` or `RunContinued` event that this answers; None when a search decided."""
    stuck: int | None = None
    """The stuck attempt that a search replaced by this one."""


class RewindRequested(EventBody, frozen=True):
    """A person wants the run to continue from an earlier save point."""

    to: int
    """The number of the save point's `TurnEnded` event."""
    who: str


class ChecksRan(EventBody, frozen=True):
    attempt: int
    step: int
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class ProofTaken(EventBody, frozen=True):
    """The checks on the saved commit in a fresh sandbox: the proof of a green end."""

    attempt: int
    step: int
    commit: str
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class SaveRefused(EventBody, frozen=True):
    """The files of this turn could not be saved. `text` tells the model why; the previous save point stays."""

    attempt: int
    step: int
    text: str


class FinishRefused(EventBody, frozen=True):
    """The model called `finish` and the evidence disagrees. `text` tells the model why."""

    attempt: int
    text: str


class TurnEnded(EventBody, frozen=True):
    """A save point: everything up to here survives the loss of the sandbox."""

    attempt: int
    step: int
    commit: str
    """In the run's own repository, untracked files included; the base commit if nothing changed."""
    changed: bool
    """Whether this turn modified files."""


class StuckNoticed(EventBody, frozen=True):
    """The attempt makes no progress; `stage` is the reaction."""

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
    """All attempts ended and were ranked by their evidence."""

    scores: tuple[Score, ...]
    """Best first."""
    tied: tuple[int, ...] = ()
    """Attempts with the same evidence as the best one, which is included; empty without a tie."""


class JudgeSpoke(EventBody, frozen=True):
    """A model chose among tied attempts."""

    model: str
    tied: tuple[int, ...]
    choice: int | None
    """None: no usable answer, the earliest attempt wins."""
    text: str
    seconds: float
