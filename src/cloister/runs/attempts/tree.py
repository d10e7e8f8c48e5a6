"""The tree of a run's attempts and their save points, and forks of it. Pure folds of the log."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cloister.core import limits
from cloister.core.attempts import AttemptWish, ForkedFrom, Score, wishes
from cloister.core.budget import dollars_of
from cloister.core.errors import Bug, UserError
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptForked,
    AttemptsRanked,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    ConnectionDecided,
    Delegated,
    DelegationEnded,
    Event,
    Inherited,
    ModelReplied,
    ModelSpent,
    PromptReceived,
    RunAdmitted,
    RunFinished,
    RunResumed,
    SandboxOpened,
)
from cloister.core.ids import RunId
from cloister.core.log import Index, SavePoint, attempts_of, effective, root_of, save_points, seen_by
from cloister.core.requests import NewRun, Outcome
from cloister.core.system import in_thread
from cloister.forge.host import in_bare
from cloister.forge.read import copy_commit


class PointView(msgspec.Struct, frozen=True):
    """A save point; `cloister fork` and `cloister rewind` take its number."""

    seq: int
    step: int
    commit: str
    red: int | None
    """Failures of the newest checks; None before any ran."""


class NodeView(msgspec.Struct, frozen=True):
    """One attempt with its own save points; earlier ones are its parent's."""

    attempt: int
    parent: int | None
    at: int | None
    """The save point of the parent where it begins; 0 is the untouched base."""
    reason: str | None
    """Why it was forked; None for the first attempts."""
    model: str | None
    temperature: float | None
    outcome: Outcome | None
    """None while it works."""
    ended: str | None
    """Why it ended."""
    points: tuple[PointView, ...]
    tokens: int = 0
    """Tokens that it spent itself."""
    dollars: float | None = None
    """The same in US dollars; None if a price is unknown."""
    helper: bool = False
    """True if it works for its parent and is no result of its own."""


class TreeView(msgspec.Struct, frozen=True):
    """All attempts of a run."""

    run: RunId
    forked_from: ForkedFrom | None
    inherited: tuple[PointView, ...]
    """Save points of the run it was forked from."""
    winner: int | None
    nodes: tuple[NodeView, ...]
    """By number: a parent comes before its children."""
    ranking: tuple[Score, ...] = ()


def tree(events: Sequence[Event]) -> TreeView:
    """The tree of the run with the whole log `events`."""
    admitted = events[0].body
    numbers = attempts_of(events)
    index = Index(events)
    began = next((event.seq for event, _ in index.events(AttemptStarted)), len(events) + 1)
    points = {number: save_points(events, number) for number in numbers}
    inherited = {p.seq: p for found in points.values() for p in found if p.seq < began}
    finished = events[-1].body
    ranked = index.last(AttemptsRanked)
    return TreeView(
        run=events[0].run,
        forked_from=admitted.request.forked_from if isinstance(admitted, RunAdmitted) else None,
        inherited=tuple(_point(inherited[seq]) for seq in sorted(inherited)),
        winner=finished.attempt if isinstance(finished, RunFinished) else None,
        nodes=(
            *(_node(events, index, number, points[number]) for number in numbers),
            *(_helper(events, index, body) for body in index.of(Delegated)),
        ),
        ranking=ranked.scores if ranked else (),
    )


def _node(events: Sequence[Event], index: Index, number: int, points: Sequence[SavePoint]) -> NodeView:
    over = ended(events, number)
    fork = index.first(AttemptForked, attempt=number)
    started = index.first(AttemptStarted, attempt=number)
    began = next(event.seq for event in events if getattr(event.body, "attempt", None) == number)
    return NodeView(
        attempt=number,
        parent=fork and fork.parent,
        at=fork and fork.at_seq,
        reason=fork and fork.reason,
        model=started and (started.model or started.harness),
        temperature=started and started.temperature,
        outcome=over and over.outcome,
        ended=over and over.reason,
        points=tuple(_point(point) for point in points if point.seq > began),
        tokens=sum(body.usage.total for body in index.of(ModelReplied, ModelSpent, attempt=number)),
        dollars=dollars_of(events, number),
    )


_ENDS: dict[str, Outcome] = {"done": "unproven", "budget": "budget", "red": "red", "failed": "failed"}


def _helper(events: Sequence[Event], index: Index, body: Delegated) -> NodeView:
    """A helper of an attempt. One that the end of its attempt or of the run cut off is stopped."""
    over = index.last(DelegationEnded, attempt=body.attempt)
    parent = ended(events, body.parent)
    cut_off = "Its attempt ended first." if over is None and parent is not None else None
    return NodeView(
        attempt=body.attempt,
        parent=body.parent,
        at=None,
        reason=f"helper: {body.task}",
        model=body.model,
        temperature=None,
        outcome=_ENDS[over.outcome] if over else "stopped" if cut_off else None,
        ended=over.report if over else cut_off,
        points=(),
        tokens=sum(one.usage.total for one in index.of(ModelReplied, ModelSpent, attempt=body.attempt)),
        dollars=dollars_of(events, body.attempt),
        helper=True,
    )


class AttemptEnd(msgspec.Struct, frozen=True):
    """The end of an attempt."""

    at: float
    """Unix seconds."""
    outcome: Outcome
    reason: str


def ended(events: Sequence[Event], attempt: int) -> AttemptEnd | None:
    """How an attempt ended: by itself, or cut off by the end of its round; None while it works."""
    begun = False
    for event in events:
        match event.body:
            case AttemptEnded() as body if body.attempt == attempt:
                return AttemptEnd(event.at, body.outcome, body.reason)
            case (AttemptStarted() | AttemptForked()) as body if body.attempt == attempt:
                begun = True
            case RunFinished() as body if begun:
                return AttemptEnd(event.at, "stopped", body.reason)
            case _:
                pass
    return None


def _point(point: SavePoint) -> PointView:
    return PointView(point.seq, point.step, point.commit, point.comparison and point.comparison.red)


def all_points(events: Sequence[Event]) -> dict[int, tuple[int, SavePoint]]:
    """Every save point of a run by its number, with the attempt that made or first inherited it."""
    found: dict[int, tuple[int, SavePoint]] = {}
    for number in attempts_of(events):
        for point in save_points(events, number):
            found.setdefault(point.seq, (number, point))
    return found


def point_at(events: Sequence[Event], seq: int | None) -> tuple[int, SavePoint]:
    """The attempt and the save point that `seq` names; None is that of the result, or of the furthest work.

    Raises `UserError` (`no_save_point`).
    """
    run, found = events[0].run, all_points(events)
    if not found:
        raise UserError(
            "no_save_point", f"Run {run} has no save point yet: there is nothing to continue from."
        )
    if seq is None:
        return _furthest(events, found)
    if seq not in found:
        near = ", ".join(str(known) for known in sorted(found, key=lambda known: abs(known - seq))[:3])
        raise UserError(
            "no_save_point",
            f"Event {seq} of run {run} is no save point: the nearest are {near}; `cloister tree {run} --json` lists all.",
        )
    return found[seq]


def rewindable(events: Sequence[Event], to: int) -> SavePoint:
    """The save point to which a run, or a fork of it, can go back.

    Raises `UserError` (`no_save_point`, `too_many_attempts`).
    """
    _, point = point_at(events, to)
    if len(attempts_of(events)) >= limits.SEARCH_NODES and not isinstance(events[-1].body, RunFinished):
        run = events[0].run
        raise UserError(
            "too_many_attempts",
            f"Run {run} has {limits.SEARCH_NODES} attempts, the most that a run may have: "
            f"`cloister fork {run} --at {to}` continues in a new run.",
        )
    return point


def _furthest(events: Sequence[Event], found: dict[int, tuple[int, SavePoint]]) -> tuple[int, SavePoint]:
    finished = events[-1].body
    winner = finished.attempt if isinstance(finished, RunFinished) else None
    own = [one for one in found.values() if winner is None or one[0] == winner] or list(found.values())
    if winner is not None:
        return max(own, key=lambda one: one[1].seq)
    last = dict(sorted(own, key=lambda one: one[1].seq))
    return min(last.items(), key=lambda one: (_red(one[1]), -one[1].seq))


def _red(point: SavePoint) -> int:
    return 1_000_000 if point.comparison is None else point.comparison.red


# Forks: the request, the files and the conversation of a run that continues from a save point of another.

_NOT_TALK = (AttemptStarted, AttemptForked, AttemptEnded, SandboxOpened, RunResumed)


def fork_request(events: Sequence[Event], at: int | None, say: str | None) -> NewRun:
    """The request for a run with one attempt that continues from the save point `at`.

    Raises `UserError` (`no_save_point`).
    """
    admitted = events[0].body
    if not isinstance(admitted, RunAdmitted):
        raise Bug("A run's log starts with its admission.")
    attempt, point = point_at(events, at)
    wish = wishes(admitted.request)[root_of(events, attempt)]
    return msgspec.structs.replace(
        admitted.request,
        key=None,
        n=1,
        attempts=() if wish == AttemptWish() else (msgspec.structs.replace(wish, share=1.0),),
        first_green=False,
        forked_from=ForkedFrom(events[0].run, point.seq, say),
    )


async def check_fork(bare: Path, events: Sequence[Event], new: NewRun) -> None:
    """Raises `UserError` unless `new` can continue the run of `events`, whose repository is `bare`."""
    origin = new.forked_from
    admitted = events[0].body
    if origin is None or not isinstance(admitted, RunAdmitted):
        return
    _, point = point_at(events, origin.seq)
    if new.repositories != admitted.request.repositories:
        raise UserError(
            "other_repository", f"Run {origin.run} worked on another repository: a fork keeps the repository."
        )
    await check_saved(bare, point)


def inheritance(events: Sequence[Event], new: NewRun, who: str) -> tuple[SavePoint, tuple[AnyBody, ...]]:
    """The save point, and the events that follow the admission of a forked run."""
    origin = new.forked_from
    if origin is None:
        raise Bug("a run that was not forked inherits nothing")
    attempt, point = point_at(events, origin.seq)
    earlier: list[AnyBody] = []
    ground: list[AnyBody] = []
    talk: list[AnyBody] = []
    connected = False
    for event in effective(seen_by(events, attempt)):
        body = event.body
        match body:
            case BaseFixed() if ground:  # a rebase: what was said before it stays before it
                earlier, ground, talk = [*earlier, *talk], [body], []
            case BaseFixed() | ChecksChosen():
                ground.append(body)
            case BaselineTaken():
                ground.append(msgspec.structs.replace(body, known=True))
            case _ if event.seq > point.seq or isinstance(body, _NOT_TALK):
                pass
            case ConnectionDecided(effect="allow") if not connected:
                # One is enough to know that text read since then may come from outside.
                connected = True
                talk.append(Inherited(event.seq, event.at, body))
            case _ if isinstance(body, PromptReceived) or getattr(body, "attempt", None) == attempt:
                talk.append(Inherited(event.seq, event.at, body))
            case _:
                pass
    told: tuple[AnyBody, ...] = (PromptReceived(origin.say, who),) if origin.say else ()
    return point, (*earlier, *ground, *talk, *told)


async def check_saved(bare: Path, point: SavePoint) -> None:
    """Raises `UserError` (`no_save_point`) when the files of a save point were removed."""
    if not (await in_bare(bare, "cat-file", "-e", f"{point.commit}^{{commit}}")).ok:
        raise UserError(
            "no_save_point",
            f"The files of save point {point.seq} were removed after the end of its run (`save_points` in the "
            "settings): `cloister fork RUN` continues from the result.",
        )


async def copy_files(parent: Path, point: SavePoint, base: str, into: Path) -> None:
    """Copy the save point and its base into the new run's own repository."""
    if not await in_thread(parent.exists):
        raise UserError("no_repository", "The files of the run that it continues were removed.")
    await check_saved(parent, point)
    await copy_commit(parent, point.commit, base, into)
