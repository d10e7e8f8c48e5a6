"""Which events still count after a resume."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AskRaised,
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    ChecksRan,
    Delta,
    Event,
    FinishRefused,
    Inherited,
    ModelReplied,
    ProofTaken,
    RunAdmitted,
    RunContinued,
    RunResumed,
    SandboxOpened,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)
from cloister.core.requests import NewRun

_OF_A_TURN = (ActionDecided, AskRaised, ToolReturned, ChecksRan, ProofTaken, SaveRefused, FinishRefused)


def request_of(events: Sequence[Event]) -> NewRun:
    """What a run was asked for: its first event, by the backbone's contract."""
    body = events[0].body
    assert isinstance(body, RunAdmitted)  # noqa: S101
    return body.request


def effective(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events without the results of turns that a resume cut off.

    A turn is a `ModelReplied` up to its `TurnEnded`. What a half-done turn did was lost with its sandbox,
    so its results are dropped; its reply is kept, because a recorded reply is not asked for again.
    """
    if not any(type(event.body) is RunResumed for event in events):
        return tuple(events)
    kept: list[Event] = []
    open_turn: dict[int, list[int]] = {}
    """Attempt → positions in `kept` of results since its last ended turn."""
    dropped: set[int] = set()
    for event in events:
        body = event.body
        match body:
            case ModelReplied():
                open_turn[body.attempt] = []
            case TurnEnded():
                open_turn[body.attempt] = []
            case RunResumed():
                for attempt, positions in open_turn.items():
                    if body.attempt is None or body.attempt == attempt:
                        dropped.update(positions)
                        positions.clear()
            case _ if isinstance(body, _OF_A_TURN):
                open_turn.setdefault(body.attempt, []).append(len(kept))
            case _:
                pass
        kept.append(event)
    return tuple(event for position, event in enumerate(kept) if position not in dropped)


# What one attempt sees of the log: its own events, and what it inherited from those it was forked from.


_ITS_OWN = (AttemptStarted, AttemptForked, AttemptEnded, SandboxOpened)
"""What is about the attempt that it names, and nobody inherits."""

_NUMBERS = ("up_to_seq", "seen", "after_seq")
"""Fields that hold the number of another event."""


@dataclass(frozen=True, slots=True)
class SavePoint:
    """The end of a turn, where files and conversation can be gone on from."""

    seq: int
    """Of its `TurnEnded`; 0 is the untouched base."""
    step: int
    commit: str
    comparison: Comparison | None
    """The newest evidence at that point; None before any check ran."""


def ancestors(events: Sequence[Event], attempt: int) -> dict[int, int]:
    """Each attempt that `attempt` descends from → the last event that it inherited of it."""
    forks = {e.body.attempt: e.body for e in events if isinstance(e.body, AttemptForked)}
    found: dict[int, int] = {}
    until: int | None = None
    while (fork := forks.get(attempt)) is not None and fork.parent not in found:
        until = fork.at_seq if until is None else min(until, fork.at_seq)
        found[fork.parent] = until
        attempt = fork.parent
    return found


def root_of(events: Sequence[Event], attempt: int) -> int:
    """The attempt, among those a run begins with, that `attempt` descends from."""
    return min((attempt, *ancestors(events, attempt)))


def depth(events: Sequence[Event], attempt: int) -> int:
    """How many forks lie between `attempt` and the one it descends from."""
    return len(ancestors(events, attempt))


class Sight:
    """How one attempt sees events, given in their order: what it inherited is its own."""

    def __init__(self, events: Sequence[Event], attempt: int) -> None:
        self._attempt = attempt
        self._inherited = ancestors(events, attempt)
        self._until = min(self._inherited.values(), default=None)
        self._here: list[tuple[int, int]] = []
        """Numbers of inherited events in the log that they come from, and here."""

    def of(self, event: Event) -> Event:
        """`event` with its number as it is."""
        body = event.body
        if isinstance(body, Inherited):
            # A forked run's attempts all begin with the same conversation, unless they go back to before it.
            if self._until is not None and self._until < event.seq:
                return event
            self._here.append((body.seq, event.seq))
            return msgspec.structs.replace(event, body=self._renumbered(_as(body.body, self._attempt)))
        owner = _owner(body)
        if owner is None or owner == self._attempt or isinstance(body, _ITS_OWN):
            return event
        if event.seq > self._inherited.get(owner, 0):
            return event
        return msgspec.structs.replace(event, body=_as(body, self._attempt))

    def _renumbered(self, body: AnyBody) -> AnyBody:
        """What names another event names it by its number here."""
        for name in _NUMBERS:
            old = cast("int | None", getattr(body, name, None))
            if old is not None:
                new = max((here for there, here in self._here if there <= old), default=0)
                body = msgspec.structs.replace(body, **{name: new})
        return body


def _owner(body: AnyBody) -> int | None:
    return cast("int | None", getattr(body, "attempt", None))


def _as(body: AnyBody, attempt: int) -> AnyBody:
    return body if _owner(body) is None else msgspec.structs.replace(body, attempt=attempt)


def seen_by(events: Sequence[Event], attempt: int) -> tuple[Event, ...]:
    """The whole log with what `attempt` inherited as its own; numbers stay as they are."""
    sight = Sight(events, attempt)
    return tuple(sight.of(event) for event in events)


def of_attempt(events: Sequence[Event], attempt: int) -> tuple[Event, ...]:
    """Only what concerns `attempt`: its own and inherited events as they are in the log, and those of the run."""
    inherited = ancestors(events, attempt)
    kept: list[Event] = []
    for event in events:
        owner = _owner(event.body)
        if owner is None or owner == attempt or event.seq <= inherited.get(owner, 0):
            kept.append(event)
    return tuple(kept)


def save_points(events: Sequence[Event], attempt: int) -> tuple[SavePoint, ...]:
    """Those that `attempt` made or inherited, oldest first."""
    found: list[SavePoint] = []
    comparison: Comparison | None = None
    for event in effective(seen_by(events, attempt)):
        match event.body:
            case (ChecksRan() | ProofTaken()) as body if body.attempt == attempt:
                comparison = body.comparison
            case TurnEnded() as body if body.attempt == attempt:
                found.append(SavePoint(event.seq, body.step, body.commit, comparison))
            case _:
                pass
    return tuple(found)


def attempts_of(events: Sequence[Event]) -> tuple[int, ...]:
    """The numbers of all attempts in the log."""
    kinds = (AttemptStarted, AttemptForked)
    return tuple(sorted({event.body.attempt for event in events if isinstance(event.body, kinds)}))


def round_start(events: Sequence[Event]) -> int:
    """The position of the event that began the newest round: 0, or the last `RunContinued`."""
    for position in range(len(events) - 1, 0, -1):
        if isinstance(events[position].body, RunContinued):
            return position
    return 0


# What the loop sees of the log it writes: the events so far and a way to add to them.


class Journal(Protocol):
    """One run's log in the hands of its owner."""

    @property
    def events(self) -> Sequence[Event]:
        """Everything in the log, own entries and those from outside, up to this moment."""
        ...

    async def append(self, *bodies: AnyBody) -> None:
        """Durable when it returns. Raises `Fenced` when the run has another owner."""
        ...

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        """As `append`, but only if the log still ends with event `last`; else False, and `events` is up to date."""
        ...

    def show(self, delta: Delta) -> None:
        """Stream a fragment; never waits."""
        ...

    async def changed(self, after: int) -> None:
        """Wait until there is an event with `seq > after`."""
        ...
