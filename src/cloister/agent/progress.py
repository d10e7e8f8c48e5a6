"""The progress of an attempt: a fold of the log, so that a resumed attempt continues where it was."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    BaseFixed,
    ChecksRan,
    Delegated,
    Event,
    ModelChosen,
    ModelReplied,
    ModelSwitched,
    PauseRequested,
    PhaseStarted,
    ProofTaken,
    ResumeRequested,
    RunClaimed,
    RunContinued,
    RunPaused,
    RunResumed,
    TurnEnded,
)
from cloister.core.log import effective
from cloister.core.requests import Usage
from cloister.model.api import Failure


@dataclass(slots=True)
class Progress:
    """Steps, spending and results of one attempt."""

    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    """Working time, including the baseline. The time between a crash and the resume does not count."""
    silent: int = 0
    """Consecutive replies without a tool call."""
    pending: ModelReplied | None = None
    """A reply whose turn has not ended."""
    commit: str | None = None
    """The last save point."""
    comparison: Comparison | None = None
    """The newest check results."""
    ended: AttemptEnded | None = None


def progress(events: Sequence[Event], attempt: int) -> Progress:
    """Fold the effective events of one attempt."""
    return _Fold(attempt).over(events)


class Progressing:
    """The progress of an attempt with a growing log. Each event is read once."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._taken = 0
        self._fold = _Fold(attempt)

    def over(self, events: Sequence[Event]) -> Progress:
        """Like `progress` of the effective events. Earlier return values stay unchanged."""
        fresh = events[self._taken :]
        if any(type(event.body) is RunResumed for event in fresh):  # it supersedes earlier events
            self._fold = _Fold(self._attempt)
            fresh = effective(events)
        self._taken = len(events)
        return replace(self._fold.over(fresh))


class _Fold:
    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._so_far = Progress()
        self._clock: float | None = None
        self._paused = False

    def over(self, events: Sequence[Event]) -> Progress:
        """Add `events`; return the progress so far."""
        for event in events:
            self._take(event)
        return self._so_far

    def _count_time(self, event: Event) -> None:
        if self._clock is not None:
            if not isinstance(event.body, RunClaimed) and not self._paused:
                until = event.body.since if isinstance(event.body, RunPaused) else event.at
                self._so_far.seconds += max(0.0, until - self._clock)
            self._clock = event.at
        if isinstance(event.body, PauseRequested | ResumeRequested):
            self._paused = isinstance(event.body, PauseRequested)

    def _take(self, event: Event) -> None:
        attempt, so_far = self._attempt, self._so_far
        self._count_time(event)
        match event.body:
            case PhaseStarted(phase="baseline") | AttemptStarted() if self._clock is None:
                self._clock = event.at
            case BaseFixed():  # save points on another base do not count
                so_far.commit = so_far.comparison = None
            case Delegated() as body if body.attempt == attempt:  # the time of a helper is its own
                so_far.seconds, self._clock = 0.0, event.at
            case RunContinued():  # time and silence count per round
                so_far.seconds, so_far.silent, self._clock, self._paused = 0.0, 0, None, False
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


# The model of the next step: also a fold of the log, so that a resume uses the same one.


class InCharge:
    """The model in charge of an attempt with a growing log."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._taken = 0
        self._chosen: str | None = None

    def ring(self, events: Sequence[Event], chain: Sequence[str]) -> tuple[str, ...]:
        """The model in charge, then its stand-ins: the chain, rotated."""
        for event in events[self._taken :]:
            match event.body:
                case ModelSwitched() as body if body.attempt == self._attempt:
                    self._chosen = body.to_model
                case ModelChosen() as body:
                    self._chosen = body.model
                case _:
                    pass
        self._taken = len(events)
        current = self._chosen or chain[0]
        if current not in chain:
            return (current, *chain)
        at = chain.index(current)
        return (*chain[at:], *chain[:at])


def stands_in(failure: Failure) -> bool:
    """True if another model may succeed with the same request."""
    return failure.retryable or failure.code in ("auth", "quota", "bad_request")
