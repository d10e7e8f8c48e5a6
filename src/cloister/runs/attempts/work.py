"""The work of a run: the commits that stand for it, and its diff. Imports little: `diff` and `log` are quick commands."""

from collections.abc import Sequence

from cloister.agent.progress import progress
from cloister.core.errors import UserError
from cloister.core.events import AttemptEnded, BaseFixed, ChangeMade, Event, RunFinished, TurnEnded
from cloister.core.ids import RunId
from cloister.core.log import Index, attempts_of, effective, of_attempt, round_start, seen_by
from cloister.forge import change
from cloister.forge.api import RunRepositories
from cloister.runs.attempts.tree import point_at

_UNKNOWN = 1_000_000
"""More failures than any attempt with checks has."""


def base_commit(events: Sequence[Event]) -> str | None:
    """The base of a run, after a rebase the newest; None before it is fetched."""
    return next((e.body.commit for e in reversed(events) if isinstance(e.body, BaseFixed)), None)


def base_of(events: Sequence[Event], commit: str) -> str | None:
    """The base that was in force when the run made `commit`."""
    base: str | None = None
    for event in events:
        match event.body:
            case BaseFixed():
                base = event.body.commit
            case TurnEnded() | AttemptEnded() | ChangeMade() if event.body.commit == commit:
                return base
            case _:
                pass
    return base


def furthest(events: Sequence[Event]) -> str | None:
    """The newest save point of the attempt of this round that is furthest: the fewest red, then the earliest."""
    numbers = attempts_of(events[round_start(events) :])
    found = [progress(effective(seen_by(events, number)), number) for number in numbers]
    # An attempt that was stopped, or rewound, counts only if there is no other.
    kept = [one for one in found if one.ended is None or one.ended.outcome != "stopped"] or found
    saved = [one for one in kept if one.commit is not None]
    furthest = min(saved, key=lambda one: one.comparison.red if one.comparison else _UNKNOWN, default=None)
    return furthest.commit if furthest else None


def result_commit(events: Sequence[Event]) -> str | None:
    """The commit that stands for the run's work so far."""
    start = round_start(events)
    made = last_change(events)
    if made is not None and made[0] > start:
        return made[1].commit
    last = events[-1].body
    if isinstance(last, RunFinished) and last.attempt is not None and last.attempt in attempts_of(events):
        return attempt_commit(events, last.attempt)
    return furthest(events) or (made and made[1].commit)


def last_result(events: Sequence[Event]) -> tuple[AttemptEnded, ChangeMade]:
    """The attempt and the change that stand for a finished run. Raises `UserError` (`run_not_finished`, `no_change`)."""
    last, run = events[-1].body, events[0].run
    if not isinstance(last, RunFinished):
        raise UserError("run_not_finished", f"Run {run} is not finished: its change is not ready.")
    made, ended = last_change(events), Index(events).of(AttemptEnded)
    winner = next((one for one in reversed(ended) if last.attempt in (None, one.attempt)), None)
    if made is None or winner is None:
        raise UserError("no_change", f"Run {run} has no finished change: there is nothing to propose.")
    return winner, made[1]


def last_change(events: Sequence[Event]) -> tuple[int, ChangeMade] | None:
    """The newest change with the number of its event."""
    found = ((event.seq, event.body) for event in reversed(events) if isinstance(event.body, ChangeMade))
    return next(found, None)


def attempt_commit(events: Sequence[Event], attempt: int) -> str | None:
    """The last save point of one attempt. Raises `UserError` (`no_such_attempt`)."""
    _check_known(events, attempt)
    so_far = progress(effective(seen_by(events, attempt)), attempt)
    return so_far.ended.commit if so_far.ended else so_far.commit


def attempt_log(events: Sequence[Event], attempt: int) -> tuple[Event, ...]:
    """The events of one attempt. Raises `UserError` (`no_such_attempt`)."""
    _check_known(events, attempt)
    return of_attempt(events, attempt)


def _check_known(events: Sequence[Event], attempt: int) -> None:
    known = attempts_of(events)
    if attempt not in known:
        there = ", ".join(map(str, known)) or "none yet"
        raise UserError(
            "no_such_attempt", f"Run {events[0].run} has no attempt {attempt}: there are {there}."
        )


async def run_diff(
    repositories: RunRepositories,
    run: RunId,
    events: Sequence[Event],
    attempt: int | None = None,
    at: int | None = None,
) -> str:
    """The work of the run, of one attempt, or at a save point, as a unified diff; empty if nothing changed.

    Raises `UserError` (`no_such_attempt`, `no_save_point`).
    """
    if at is not None:
        commit = point_at(events, at)[1].commit
    else:
        commit = result_commit(events) if attempt is None else attempt_commit(events, attempt)
    base = None if commit is None else base_of(events, commit)
    if base is None or commit is None or commit == base:
        return ""
    return await change.diff(await repositories.open(run), base, commit)
