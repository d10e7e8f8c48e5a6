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
from cloister.runs.attempts.work import attempt_commit, base_commit, result_commit
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
    """One side and its diff. An attempt counts its own work and cost, without those of its parent."""
    events, number = subject.events, subject.attempt
    base = base_commit(events)
    commit = result_commit(events) if number is None else attempt_commit(events, number)
    files: tuple[FileChange, ...] = ()
    diff = ""
    if base is not None and commit is not None and commit != base:
        bare = await repositories.open(events[0].run)
        files = await change.files(bare, base, commit)
        diff = await change.diff(bare, base, commit)
    view = fold(events, now)
    own = next(
        (one for one in view.attempts if one.attempt == (view.winner if number is None else number)), None
    )
    comparison = own and own.comparison
    if number is not None:
        comparison = comparison or progress(effective(seen_by(events, number)), number).comparison
    whole = view if number is None or own is None else own
    side = Side(
        name=subject.name,
        run=view.id,
        attempt=number,
        prompt=view.prompt,
        outcome=whole.outcome,
        reason=whole.reason,
        comparison=comparison,
        steps=whole.steps,
        usage=whole.usage,
        cost=whole.cost,
        seconds=view.seconds if number is None else _seconds(events, number, now),
        commit=commit,
        files=files,
    )
    return side, diff


def _seconds(events: Sequence[Event], number: int, now: float) -> float:
    """From its start to its end."""
    begun = Index(events).events(AttemptStarted, AttemptForked, ModelReplied, attempt=number)
    start = next((event.at for event, _ in begun), now)
    over = ended(events, number)
    return max(0.0, (over.at if over else now) - start)
