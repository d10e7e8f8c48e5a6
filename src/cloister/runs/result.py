"""What a run hands back: the change as a commit on a branch, with its proof."""

from collections.abc import Sequence
from pathlib import Path

from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.events import (
    AttemptEnded,
    BaseFixed,
    BaselineTaken,
    ChangeMade,
    ChecksChosen,
    Event,
    RunAdmitted,
    TurnEnded,
)
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


def bare_repository(data_dir: Path, run: RunId) -> Path:
    """The run's own repository, which only we write to."""
    return data_dir / "runs" / run / "repo.git"


def _base(events: Sequence[Event]) -> str | None:
    return next((e.body.commit for e in events if isinstance(e.body, BaseFixed)), None)


def _last_saved(events: Sequence[Event], attempt: int | None) -> str | None:
    """The newest save point of `attempt`, or of any."""
    for event in reversed(events):
        body = event.body
        if isinstance(body, TurnEnded) and attempt in (None, body.attempt):
            return body.commit
    return None


def _result_commit(events: Sequence[Event]) -> str | None:
    """The commit that stands for the run's work so far."""
    for event in reversed(events):
        if isinstance(event.body, ChangeMade):
            return event.body.commit
    return _last_saved(events, None)


async def make_result(means: Means, journal: Journal, run: RunId, winner: AttemptEnded | None) -> None:
    """Make the branch from the winner's files (without one, from the last save point) and deliver it.

    A run that changed nothing has no change. Doing it again after a crash gives the same commit.
    """
    events = journal.events
    base = _base(events)
    saved = winner.commit if winner is not None else _last_saved(events, None)
    if base is None or saved is None or saved == base:
        return
    if any(isinstance(event.body, ChangeMade) for event in events):
        return
    admitted = events[0].body
    assert isinstance(admitted, RunAdmitted)  # noqa: S101  (event 1 by the backbone's contract)
    bare = bare_repository(means.data_dir, run)
    branch = change.branch_name(admitted.request.prompt, run)
    message = _message(events, run, winner)
    commit = await change.make_change(bare, base, saved, branch, message)
    files = await change.files(bare, base, commit)
    delivered: Delivered | None = None
    if winner is not None and winner.outcome in _DELIVERED:
        delivered = await means.forge.deliver(bare, commit, branch, admitted.request.repo)
    await journal.append(
        ChangeMade(
            branch=delivered.branch if delivered else branch,
            commit=commit,
            files=files,
            summary=winner.reason if winner else "",
            delivered_to=delivered.where if delivered else None,
        )
    )


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
    return f"{comparison.red} red, {comparison.passed} passed"


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
