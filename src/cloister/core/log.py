"""Reading a run's log: an index by kind, the events that still count after a resume, and what an attempt inherits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Protocol, TypeVar, cast

import msgspec

from cloister.core.diagnosis import Comparison
from cloister.core.events import (
    ActionDecided,
    AnyBody,
    AskRaised,
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    BaseFixed,
    ChecksRan,
    Delegated,
    Delta,
    Event,
    EventBody,
    FinishRefused,
    Inherited,
    ModelReplied,
    NoteProposed,
    PagesPictured,
    PromptReceived,
    ProofTaken,
    RunAdmitted,
    RunContinued,
    RunResumed,
    SandboxOpened,
    SaveRefused,
    ToolReturned,
    TurnEnded,
)
from cloister.core.requests import Attachment, NewRun

_OF_A_TURN = (
    ActionDecided,
    AskRaised,
    ToolReturned,
    NoteProposed,
    ChecksRan,
    ProofTaken,
    SaveRefused,
    FinishRefused,
)


def request_of(events: Sequence[Event]) -> NewRun:
    """Return the request of a run: its first event, by the backbone's contract."""
    body = events[0].body
    assert isinstance(body, RunAdmitted)  # noqa: S101
    return body.request


def attachments_of(events: Sequence[Event]) -> tuple[Attachment, ...]:
    """What was attached to the prompts of a run, those that a fork inherited included."""
    found: list[Attachment] = []
    for event in events:
        body = event.body.body if isinstance(event.body, Inherited) else event.body
        if isinstance(body, RunAdmitted):
            found += body.request.attachments
        elif isinstance(body, PromptReceived):
            found += body.attachments
    return tuple(found)


def pictures_of(events: Sequence[Event], attempt: int | None = None) -> dict[str, tuple[Attachment, ...]]:
    """The pictures that were taken for one attempt, or for all: by name, in their order."""
    found: dict[str, tuple[Attachment, ...]] = {}
    for event in events:
        body = event.body.body if isinstance(event.body, Inherited) else event.body
        if isinstance(body, ToolReturned | PagesPictured) and attempt in (None, body.attempt):
            taken = body.pictures if isinstance(body, ToolReturned) else (*body.before, *body.after)
            for one in taken:
                found[one.name] = (*found.get(one.name, ()), one)
    return found


B = TypeVar("B", bound=EventBody)


class Index:
    """The events of one log by kind. Feeding an event costs a dictionary lookup.

    With an `attempt`, lookups return only events that name that attempt.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._by_kind: dict[type[EventBody], list[Event]] = {}
        self.feed(events)

    def feed(self, events: Iterable[Event]) -> None:
        """Add events, in the order of the log."""
        for event in events:
            kind = type(event.body)
            if kind in self._by_kind:
                self._by_kind[kind].append(event)
            else:
                self._by_kind[kind] = [event]

    def of(self, *kinds: type[B], attempt: int | None = None) -> list[B]:
        """Return the bodies of these kinds, in the order of the log."""
        return [body for _, body in self.events(*kinds, attempt=attempt)]

    def events(self, *kinds: type[B], attempt: int | None = None) -> Iterator[tuple[Event, B]]:
        """As `of`, each body with its event."""
        found = [self._by_kind[kind] for kind in kinds if kind in self._by_kind]
        for event in found[0] if len(found) == 1 else merge(*found, key=lambda event: event.seq):
            if attempt is None or _owner(event.body) == attempt:
                yield event, cast("B", event.body)

    def first(self, *kinds: type[B], attempt: int | None = None) -> B | None:
        return next((body for _, body in self.events(*kinds, attempt=attempt)), None)

    def last(self, *kinds: type[B], attempt: int | None = None) -> B | None:
        newest: Event | None = None
        for kind in kinds:
            for event in reversed(self._by_kind.get(kind, ())):
                if attempt is None or _owner(event.body) == attempt:
                    newest = event if newest is None or event.seq > newest.seq else newest
                    break
        return None if newest is None else cast("B", newest.body)


def effective(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events without the results of turns that a resume cut off.

    A turn is a `ModelReplied` up to its `TurnEnded`. The work of a half-done turn was lost with its sandbox,
    so its results are dropped. Its reply is kept: the model is not called again for a recorded reply.
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


# What one attempt sees of the log: its own events, and those inherited from the attempts it was forked from.


_ITS_OWN = (AttemptStarted, AttemptForked, AttemptEnded, SandboxOpened)
"""Events that are never inherited."""

_NUMBERS = ("up_to_seq", "seen", "after_seq")
"""Fields that hold the number of another event."""


@dataclass(frozen=True, slots=True)
class SavePoint:
    """The end of a turn: a fork or a rewind can continue from its files and conversation."""

    seq: int
    """Of its `TurnEnded`; 0 is the untouched base."""
    step: int
    commit: str
    comparison: Comparison | None
    """The newest evidence at that point; None before the first check."""


def ancestors(events: Sequence[Event], attempt: int) -> dict[int, int]:
    """Return each ancestor of `attempt` → the last event inherited from it."""
    forks = {e.body.attempt: e.body for e in events if isinstance(e.body, AttemptForked)}
    found: dict[int, int] = {}
    until: int | None = None
    while (fork := forks.get(attempt)) is not None and fork.parent not in found:
        until = fork.at_seq if until is None else min(until, fork.at_seq)
        found[fork.parent] = until
        attempt = fork.parent
    return found


def root_of(events: Sequence[Event], attempt: int) -> int:
    """Return the first ancestor of `attempt`, which the run started with."""
    return min((attempt, *ancestors(events, attempt)))


def depth(events: Sequence[Event], attempt: int) -> int:
    """Return how many forks lie between `attempt` and its first ancestor."""
    return len(ancestors(events, attempt))


class Sight:
    """Shows events, given in order, as one attempt sees them: inherited events name the attempt itself."""

    def __init__(self, events: Sequence[Event], attempt: int) -> None:
        self._attempt = attempt
        self._inherited = ancestors(events, attempt)
        self._until = min(self._inherited.values(), default=None)
        self._here: list[tuple[int, int]] = []
        """Numbers of inherited events: in the log of their origin, and here."""

    def of(self, event: Event) -> Event:
        """Return `event` as the attempt sees it, with its number unchanged."""
        body = event.body
        if isinstance(body, Inherited):
            # All attempts of a forked run inherit the conversation, unless they rewind to before it.
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
        """Replace the numbers of other events by their numbers here."""
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
    """Return the whole log as `attempt` sees it; numbers stay unchanged."""
    sight = Sight(events, attempt)
    return tuple(sight.of(event) for event in events)


def of_attempt(events: Sequence[Event], attempt: int) -> tuple[Event, ...]:
    """Return the events of `attempt` and of the run: own and inherited ones, unchanged."""
    inherited = ancestors(events, attempt)
    kept: list[Event] = []
    for event in events:
        owner = _owner(event.body)
        if owner is None or owner == attempt or event.seq <= inherited.get(owner, 0):
            kept.append(event)
    return tuple(kept)


def save_points(events: Sequence[Event], attempt: int) -> tuple[SavePoint, ...]:
    """Return the save points that `attempt` made or inherited, oldest first."""
    found: list[SavePoint] = []
    comparison: Comparison | None = None
    for event in effective(seen_by(events, attempt)):
        match event.body:
            case BaseFixed():  # what was saved on another base cannot be continued here
                found, comparison = [], None
            case (ChecksRan() | ProofTaken()) as body if body.attempt == attempt:
                comparison = body.comparison
            case TurnEnded() as body if body.attempt == attempt:
                found.append(SavePoint(event.seq, body.step, body.commit, comparison))
            case _:
                pass
    return tuple(found)


def attempts_of(events: Sequence[Event]) -> tuple[int, ...]:
    """Return the numbers of all attempts in the log."""
    kinds = (AttemptStarted, AttemptForked)
    return tuple(sorted({event.body.attempt for event in events if isinstance(event.body, kinds)}))


def next_attempt(events: Sequence[Event]) -> int:
    """Return a number that no attempt and no helper of the log has."""
    kinds = (AttemptStarted, AttemptForked, Delegated)
    return 1 + max((event.body.attempt for event in events if isinstance(event.body, kinds)), default=-1)


def round_start(events: Sequence[Event]) -> int:
    """The position of the event that began the newest round: 0, or the last `RunContinued`."""
    for position in range(len(events) - 1, 0, -1):
        if isinstance(events[position].body, RunContinued):
            return position
    return 0


REBASE, CONFLICTS = "rebase", "conflicts"
"""`PromptReceived.ref` of the message that asks for a replay on a moved base (also `rebase …`), and of its conflicts."""


def rebase_due(events: Sequence[Event]) -> PromptReceived | None:
    """The message of the newest round that asks for a replay, as long as that has not happened."""
    asked: PromptReceived | None = None
    for event in events[round_start(events) :]:
        match event.body:
            case PromptReceived(ref=ref) as body if ref.partition(" ")[0] == REBASE:
                asked = body
            case BaseFixed():
                asked = None
            case _:
                pass
    return asked


def replayed(events: Sequence[Event]) -> bool:
    """True if the newest round began with a change that was replayed on a moved base without conflicts."""
    index = Index(events[round_start(events) :])
    fixed = round_start(events) > 0 and index.first(BaseFixed) is not None
    return fixed and not any(said.ref == CONFLICTS for said in index.of(PromptReceived))


class Journal(Protocol):
    """One run's log in the hands of its owner: the events so far, and a way to append."""

    @property
    def events(self) -> Sequence[Event]:
        """All events so far, the owner's and those from outside."""
        ...

    @property
    def index(self) -> Index:
        """The same events by kind."""
        ...

    async def append(self, *bodies: AnyBody) -> None:
        """Durable when it returns. Raises `Fenced` when the run has another owner."""
        ...

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        """As `append`, but only if the log still ends with event `last`; else return False, with `events` up to date."""
        ...

    def show(self, delta: Delta) -> None:
        """Stream a fragment; never waits."""
        ...

    async def changed(self, after: int) -> None:
        """Wait until there is an event with `seq > after`."""
        ...
