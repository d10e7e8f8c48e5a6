"""How far an attempt is: a fold of the log, so that a resumed attempt knows what the first one knew."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    ChecksRan,
    Event,
    ModelReplied,
    PhaseStarted,
    ProofTaken,
    RunClaimed,
    TurnEnded,
)
from cloister.core.records import Usage


@dataclass(slots=True)
class Progress:
    """What one attempt has done and spent."""

    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    """Time in which an owner worked on it, the baseline included; between a crash and the resume it stands."""
    silent: int = 0
    """Replies in a row without any call."""
    pending: ModelReplied | None = None
    """A reply whose turn has not ended."""
    commit: str | None = None
    """The last save point."""
    comparison: Comparison | None = None
    """The last evidence."""
    ended: AttemptEnded | None = None


def progress(events: Sequence[Event], attempt: int) -> Progress:
    """Fold the effective events of one attempt."""
    so_far = Progress()
    clock: float | None = None
    for event in events:
        if clock is not None:
            if not isinstance(event.body, RunClaimed):
                so_far.seconds += max(0.0, event.at - clock)
            clock = event.at
        match event.body:
            case PhaseStarted(phase="baseline") | AttemptStarted() if clock is None:
                clock = event.at
            case ModelReplied() as body if body.attempt == attempt:
                so_far.steps += 1
                so_far.usage += body.usage
                so_far.silent = 0 if body.calls else so_far.silent + 1
                so_far.pending = body
            case (ChecksRan() | ProofTaken()) as body if body.attempt == attempt:
                so_far.comparison = body.comparison
            case TurnEnded() as body if body.attempt == attempt:
                so_far.pending = None
                so_far.commit = body.commit
            case AttemptEnded() as body if body.attempt == attempt:
                so_far.ended = body
            case _:
                pass
    return so_far
