"""Two runs, or two attempts, side by side: outcome, diff of diffs, cost, steps, time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloister.agent.progress import progress
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.events import AttemptForked, AttemptStarted, Event, ModelReplied
from cloister.core.ids import RunId
from cloister.core.log import effective, seen_by
from cloister.core.requests import FileChange, Outcome, Usage
from cloister.forge import change
from cloister.forge.read import diff_of_diffs
from cloister.runs.attempts.tree import ended
from cloister.runs.delivery import attempt_commit, bare_repository, base_commit, check_kept, result_commit
from cloister.runs.view import fold


class Side(msgspec.Struct, frozen=True):
    """One run or attempt of a comparison."""

    name: str
    """A run, or a run and an attempt: `RUN/K`."""
    run: RunId
    attempt: int | None
    """None for the whole run."""
    prompt: str
    outcome: Outcome | None
    """None while it works."""
    reason: str | None
    comparison: Comparison | None
    """The newest evidence."""
    steps: int
    usage: Usage
    cost: float | None
    seconds: float
    commit: str | None
    files: tuple[FileChange, ...]


class Compared(msgspec.Struct, frozen=True):
    """Two sides and how their changes differ."""

    a: Side
    b: Side
    same_change: bool
    diff: str
    """The unified diff from the diff of `a` to that of `b`, without hunk positions and object names."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, or one attempt of it, to compare."""

    events: Sequence[Event]
    attempt: int | None

    @property
    def name(self) -> str:
        run = self.events[0].run
        return run if self.attempt is None else f"{run}/{self.attempt}"


def parse_subject(text: str) -> tuple[str, int | None]:
    """`RUN` or `RUN/K`. Raises `UserError` (`bad_attempt`)."""
    run, slash, number = text.partition("/")
    if not slash:
        return run, None
    if not number.isascii() or not number.isdigit() or len(number) > 6:
        raise UserError("bad_attempt", f"Write an attempt as RUN/K with a number, not {text[:64]!r}.")
    return run, int(number)


async def compare_runs(data_dir: Path, a: Subject, b: Subject, now: float) -> Compared:
    """Raises `UserError` (`no_such_attempt`, `same_twice`)."""
    if a.name == b.name:
        raise UserError(
            "same_twice",
            f"Both sides are {a.name}: name two runs, or two attempts of one as RUN/0 and RUN/1.",
        )
    left, left_diff = await _side(data_dir, a, now)
    right, right_diff = await _side(data_dir, b, now)
    found = ""
    if left_diff != right_diff:
        bares = [bare_repository(data_dir, side.run) for side in (left, right)]
        bare = next(bare for bare in bares if bare.exists())
        found = await diff_of_diffs(bare, left_diff, right_diff, (left.name, right.name))
    return Compared(left, right, not found, found)


async def _side(data_dir: Path, subject: Subject, now: float) -> tuple[Side, str]:
    events = subject.events
    bare, base = bare_repository(data_dir, events[0].run), base_commit(events)
    commit = result_commit(events) if subject.attempt is None else attempt_commit(events, subject.attempt)
    files: tuple[FileChange, ...] = ()
    diff = ""
    if base is not None and commit is not None and commit != base:
        check_kept(data_dir, events[0].run)
        files = await change.files(bare, base, commit)
        diff = await change.diff(bare, base, commit)
    side = _run(subject, now) if subject.attempt is None else _attempt(subject, subject.attempt, now)
    return msgspec.structs.replace(side, commit=commit, files=files), diff


def _run(subject: Subject, now: float) -> Side:
    view = fold(subject.events, now)
    winner = next((one for one in view.attempts if one.attempt == view.winner), None)
    return Side(
        name=subject.name,
        run=view.id,
        attempt=None,
        prompt=view.prompt,
        outcome=view.outcome,
        reason=view.reason,
        comparison=winner and winner.comparison,
        steps=view.steps,
        usage=view.usage,
        cost=view.cost,
        seconds=view.seconds,
        commit=None,
        files=(),
    )


def _attempt(subject: Subject, number: int, now: float) -> Side:
    """The work and the cost of one attempt, without those of its parent."""
    view = fold(subject.events, now)
    own = next(one for one in view.attempts if one.attempt == number)
    evidence = progress(effective(seen_by(subject.events, number)), number).comparison
    return Side(
        name=subject.name,
        run=view.id,
        attempt=number,
        prompt=view.prompt,
        outcome=own.outcome,
        reason=own.reason,
        comparison=own.comparison or evidence,
        steps=own.steps,
        usage=own.usage,
        cost=own.cost,
        seconds=_seconds(subject.events, number, now),
        commit=None,
        files=(),
    )


def _seconds(events: Sequence[Event], number: int, now: float) -> float:
    """From its start to its end."""
    own = [e for e in events if getattr(e.body, "attempt", None) == number]
    start = next(
        (e.at for e in own if isinstance(e.body, AttemptStarted | AttemptForked | ModelReplied)), now
    )
    over = ended(events, number)
    return max(0.0, (over.at if over else now) - start)
