"""What a run hands back: the change as a commit on a branch, with its proof."""

from collections.abc import Sequence
from pathlib import Path

import anyio

from cloister.agent.progress import progress
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.events import (
    AttemptEnded,
    BaseFixed,
    BaselineTaken,
    ChangeDelivered,
    ChangeMade,
    ChecksChosen,
    Event,
    RunAdmitted,
    TurnEnded,
)
from cloister.core.history import effective
from cloister.core.ids import RunId
from cloister.core.journal import Journal
from cloister.core.text import one_line
from cloister.feedback.compare import compare
from cloister.forge import change
from cloister.forge.api import Delivered
from cloister.forge.plain import PlainGit
from cloister.runs.means import Means

_DELIVERED = ("green", "unproven")
"""Outcomes whose branch goes to the repository by itself; any other waits for `apply`."""

_UNKNOWN = 1_000_000
"""More red than any attempt whose checks have run."""


def bare_repository(data_dir: Path, run: RunId) -> Path:
    """The run's own repository, which only we write to."""
    return data_dir / "runs" / run / "repo.git"


def _base(events: Sequence[Event]) -> str | None:
    return next((e.body.commit for e in events if isinstance(e.body, BaseFixed)), None)


def _furthest(events: Sequence[Event]) -> str | None:
    """The newest save point of the attempt that is furthest: the fewest red, then the earliest."""
    counting = effective(events)
    attempts = sorted({e.body.attempt for e in counting if isinstance(e.body, TurnEnded)})
    found = [progress(counting, attempt) for attempt in attempts]
    furthest = min(found, key=lambda one: one.comparison.red if one.comparison else _UNKNOWN, default=None)
    return furthest.commit if furthest else None


def _result_commit(events: Sequence[Event]) -> str | None:
    """The commit that stands for the run's work so far."""
    for event in reversed(events):
        if isinstance(event.body, ChangeMade):
            return event.body.commit
    return _furthest(events)


async def make_result(means: Means, journal: Journal, run: RunId, winner: AttemptEnded | None) -> None:
    """Make the branch from the winner's files (without one, from the furthest save point) and deliver it.

    A run that changed nothing has no change. What is in the log is not done again: the change is recorded
    before it is delivered, so a delivery that fails loses nothing.
    """
    base = _base(journal.events)
    saved = winner.commit if winner is not None else _furthest(journal.events)
    if base is None or saved is None or saved == base:
        return
    admitted = journal.events[0].body
    assert isinstance(admitted, RunAdmitted)  # noqa: S101  (event 1 by the backbone's contract)
    bare = bare_repository(means.data_dir, run)
    branch = change.branch_name(admitted.request.prompt, run)
    made = next((e.body for e in journal.events if isinstance(e.body, ChangeMade)), None)
    if made is None:
        message = _message(journal.events, run, winner)
        commit = await change.make_change(bare, base, saved, branch, message)
        files = await change.files(bare, base, commit)
        made = ChangeMade(branch, commit, files, winner.reason if winner else "")
        await journal.append(made)
    if winner is None or winner.outcome not in _DELIVERED:
        return
    if any(isinstance(event.body, ChangeDelivered) for event in journal.events):
        return
    # A stop that comes now must not leave a branch that the log knows nothing of.
    with anyio.CancelScope(shield=True):
        delivered = await means.forge.deliver(bare, made.commit, branch, admitted.request.repo)
        if delivered is not None:
            await journal.append(ChangeDelivered(delivered.where, delivered.branch))


def _message(events: Sequence[Event], run: RunId, winner: AttemptEnded | None) -> str:
    """The commit's message: what was done, then the proof."""
    summary = winner.reason.strip() if winner else ""
    subject = one_line(summary.split("\n", 1)[0] or "Unfinished work", 72)
    body = summary if "\n" in summary or len(summary) > len(subject) else ""
    return "\n\n".join(part for part in (subject, body, _proof(events, run, winner)) if part) + "\n"


def _proof(events: Sequence[Event], run: RunId, winner: AttemptEnded | None) -> str:
    lines: list[str] = []
    for event in events:
        match event.body:
            case ChecksChosen() as chosen:
                lines += [f"Check: {one_line(check, 200)}" for check in chosen.checks]
            case BaselineTaken() as baseline:
                before = compare(baseline.diagnoses, baseline.diagnoses)
                lines.append(f"Before: {_count(before)}")
            case _:
                pass
    if winner is not None and lines:
        lines.append(f"Now: {_count(winner.comparison)}")
    return "\n".join([*lines, f"Cloister-Run: {run}"])


def _count(comparison: Comparison) -> str:
    old = (
        f" ({len(comparison.unrelated)} of them as on the base, not asked for)"
        if comparison.unrelated
        else ""
    )
    return f"{comparison.red} red{old}, {comparison.passed} passed"


async def run_diff(data_dir: Path, run: RunId, events: Sequence[Event]) -> str:
    """The run's work so far as a unified diff; empty when nothing changed."""
    base, commit = _base(events), _result_commit(events)
    if base is None or commit is None or commit == base:
        return ""
    return await change.diff(bare_repository(data_dir, run), base, commit)


async def run_apply(data_dir: Path, run: RunId, events: Sequence[Event], repo: str) -> Delivered:
    """Put the run's work into the repository at `repo` as a new branch, touching nothing else.

    Raises `UserError` (`no_change`) when there is nothing to put.
    """
    base, commit = _base(events), _result_commit(events)
    admitted = events[0].body
    if base is None or commit is None or commit == base or not isinstance(admitted, RunAdmitted):
        raise UserError("no_change", f"Run {run} has changed nothing yet: there is nothing to apply.")
    branch = change.branch_name(admitted.request.prompt, run)
    delivered = await PlainGit().deliver(bare_repository(data_dir, run), commit, branch, repo)
    if delivered is None:
        raise UserError("not_a_path", f"{repo} is not a repository on this machine: give a path.")
    return delivered
