"""Two runs, or two attempts, side by side: outcome, diff of diffs, cost, steps, time."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cloister.agent.progress import progress
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.events import AttemptForked, AttemptStarted, Event, ModelReplied
from cloister.core.ids import RunId
from cloister.core.log import Index, effective, seen_by
from cloister.core.requests import FileChange, Outcome, Usage
from cloister.forge import change
from cloister.forge.api import RunRepositories
from cloister.forge.read import diff_of_diffs
from cloister.runs.attempts.tree import ended
from cloister.runs.delivery import attempt_commit, base_commit, result_commit
from cloister.runs.view import fold


class Side(msgspec.Struct, frozen=True):
    """One of both."""

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
    """How the diff of `a` becomes the diff of `b`, as a unified diff; places in files and names of objects left out."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared."""

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
        raise UserError("bad_attempt", f"An attempt is written as RUN/K with a number, not {text[:64]!r}.")
    return run, int(number)


async def compare_runs(repositories: RunRepositories, a: Subject, b: Subject, now: float) -> Compared:
    """Raises `UserError` (`no_such_attempt`, `same_twice`)."""
    if a.name == b.name:
        raise UserError(
            "same_twice",
            f"Both sides are {a.name}: name two runs, or two attempts of one as RUN/0 and RUN/1.",
        )
    left, left_diff = await _side(repositories, a, now)
    right, right_diff = await _side(repositories, b, now)
    found = ""
    if left_diff != right_diff:
        changed = left if await repositories.exists(left.run) else right
        bare = await repositories.open(changed.run)
        found = await diff_of_diffs(bare, left_diff, right_diff, (left.name, right.name))
    return Compared(left, right, not found, found)


async def _side(repositories: RunRepositories, subject: Subject, now: float) -> tuple[Side, str]:
    events = subject.events
    base = base_commit(events)
    commit = result_commit(events) if subject.attempt is None else attempt_commit(events, subject.attempt)
    files: tuple[FileChange, ...] = ()
    diff = ""
    if base is not None and commit is not None and commit != base:
        bare = await repositories.open(events[0].run)
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
    """What it did and spent itself; what it inherited was its parent's."""
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
    begun = Index(events).events(AttemptStarted, AttemptForked, ModelReplied, attempt=number)
    start = next((event.at for event, _ in begun), now)
    over = ended(events, number)
    return max(0.0, (over.at if over else now) - start)
