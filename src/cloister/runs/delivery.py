"""What a run hands back: the change as a commit on a branch, with its proof."""

from collections.abc import Sequence

import anyio

from cloister.agent.progress import progress
from cloister.agent.taint import Provenance
from cloister.core.diagnosis import Comparison
from cloister.core.errors import UserError
from cloister.core.events import (
    ActionDecided,
    AttemptEnded,
    BaseFixed,
    BaselineTaken,
    ChangeDelivered,
    ChangeMade,
    ChecksChosen,
    Event,
    RunAdmitted,
    RunFinished,
)
from cloister.core.ids import RunId
from cloister.core.log import Journal, attempts_of, effective, of_attempt, seen_by
from cloister.core.requests import NewRun, State
from cloister.core.text import one_line
from cloister.feedback.compare import compare
from cloister.forge import change, notes
from cloister.forge.api import Delivered, Removed, RunRepositories
from cloister.forge.plain import PlainGit
from cloister.forge.repositories import bare_repository as bare_repository
from cloister.forge.repositories import check_kept as check_kept
from cloister.log.journal import AttemptJournal
from cloister.policy.api import PushAction
from cloister.policy.decide import Decider
from cloister.runs.receipt import Pending, receipt
from cloister.runs.receipt_page import page
from cloister.runs.services import Means


async def remove_files(repositories: RunRepositories, run: RunId, state: State, who: str) -> Removed:
    """Delete the run's own repository: its change, its attempts' diffs and its save points.

    Raises `UserError` (`run_not_finished`).
    """
    if state != "finished":
        raise UserError(
            "run_not_finished", f"Run {run} is not finished: stop it first (`cloister stop {run}`)."
        )
    return await repositories.remove(run, who)


_DELIVERED = ("green", "unproven")
"""Outcomes whose branch goes to the repository by itself; any other waits for `apply`."""

_UNKNOWN = 1_000_000
"""More red than any attempt whose checks have run."""


def base_commit(events: Sequence[Event]) -> str | None:
    """What a run starts from; None before that is known."""
    return next((e.body.commit for e in events if isinstance(e.body, BaseFixed)), None)


def _furthest(events: Sequence[Event]) -> str | None:
    """The newest save point of the attempt that is furthest: the fewest red, then the earliest."""
    found = [progress(effective(seen_by(events, number)), number) for number in attempts_of(events)]
    # What somebody stopped, or went back from, counts only when there is nothing else.
    kept = [one for one in found if one.ended is None or one.ended.outcome != "stopped"] or found
    saved = [one for one in kept if one.commit is not None]
    furthest = min(saved, key=lambda one: one.comparison.red if one.comparison else _UNKNOWN, default=None)
    return furthest.commit if furthest else None


def result_commit(events: Sequence[Event]) -> str | None:
    """The commit that stands for the run's work so far."""
    for event in reversed(events):
        if isinstance(event.body, ChangeMade):
            return event.body.commit
    last = events[-1].body
    if isinstance(last, RunFinished) and last.attempt is not None and last.attempt in attempts_of(events):
        return attempt_commit(events, last.attempt)
    return _furthest(events)


def attempt_commit(events: Sequence[Event], attempt: int) -> str | None:
    """What one attempt has saved last. Raises `UserError` (`no_such_attempt`)."""
    _check_known(events, attempt)
    so_far = progress(effective(seen_by(events, attempt)), attempt)
    return so_far.ended.commit if so_far.ended else so_far.commit


def attempt_log(events: Sequence[Event], attempt: int) -> tuple[Event, ...]:
    """What concerns one attempt. Raises `UserError` (`no_such_attempt`)."""
    _check_known(events, attempt)
    return of_attempt(events, attempt)


def _check_known(events: Sequence[Event], attempt: int) -> None:
    known = attempts_of(events)
    if attempt not in known:
        there = ", ".join(map(str, known)) or "none yet"
        raise UserError(
            "no_such_attempt", f"Run {events[0].run} has no attempt {attempt}: there are {there}."
        )


async def make_result(means: Means, journal: Journal, run: RunId, winner: AttemptEnded | None) -> None:
    """Make the branch from the winner's files (without one, from the furthest save point) and deliver it.

    A run that changed nothing has no change. What is in the log is not done again: the change is recorded
    before it is delivered, so a delivery that fails loses nothing.
    """
    base = base_commit(journal.events)
    saved = winner.commit if winner is not None else _furthest(journal.events)
    if base is None or saved is None or saved == base:
        return
    admitted = journal.events[0].body
    assert isinstance(admitted, RunAdmitted)  # noqa: S101  (event 1 by the backbone's contract)
    bare = await means.repositories.open(run)
    branch = change.branch_name(admitted.request.prompt, run)
    made = journal.index.first(ChangeMade)
    if made is None:
        files = await change.files_of_save(bare, base, saved)
        # What is known now: the end and its signature come after the change, in `cloister receipt`.
        note = page(receipt(journal.events, pending=Pending(branch, files)))
        message = _message(journal.events, run, winner, notes.trailer(note))
        commit = await change.make_change(bare, base, saved, branch, message)
        await notes.attach(bare, commit, note)
        made = ChangeMade(branch, commit, files, winner.reason if winner else "")
        await journal.append(made)
    if winner is None or winner.outcome not in _DELIVERED:
        return
    if journal.index.first(ChangeDelivered) is not None:
        return
    if not await _may_deliver(means, journal, winner, admitted.request, branch):
        return
    # A stop that comes now must not leave a branch that the log knows nothing of.
    with anyio.CancelScope(shield=True):
        delivered = await means.forge.deliver(bare, made.commit, branch, admitted.request.repo)
        if delivered is not None:
            await journal.append(ChangeDelivered(delivered.where, delivered.branch, delivered.receipt))


async def _may_deliver(
    means: Means, journal: Journal, winner: AttemptEnded, request: NewRun, branch: str
) -> bool:
    """Whether the rules let the branch go to its repository by itself; where they ask, a person applies it."""
    action = PushAction(request.repo, f"refs/heads/{branch}")
    untrusted = Provenance(winner.attempt, AttemptJournal(journal, winner.attempt)).untrusted
    decision = Decider(means.run_policy(request)).decide(action, untrusted=untrusted)
    if decision.effect == "allow":
        return True
    await journal.append(
        ActionDecided(winner.attempt, "", f"push: {one_line(branch)}", decision.effect, decision.rule)
    )
    return False


def _message(events: Sequence[Event], run: RunId, winner: AttemptEnded | None, last: str) -> str:
    """The commit's message: what was done, then the proof."""
    summary = winner.reason.strip() if winner else ""
    subject = one_line(summary.split("\n", 1)[0] or "Unfinished work", 72)
    body = summary if "\n" in summary or len(summary) > len(subject) else ""
    proof = f"{_proof(events, run, winner)}\n{last}"
    return "\n\n".join(part for part in (subject, body, proof) if part) + "\n"


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


async def run_diff(
    repositories: RunRepositories, run: RunId, events: Sequence[Event], attempt: int | None = None
) -> str:
    """The run's work so far, or one attempt's, as a unified diff; empty when nothing changed.

    Raises `UserError` (`no_such_attempt`).
    """
    base = base_commit(events)
    commit = result_commit(events) if attempt is None else attempt_commit(events, attempt)
    if base is None or commit is None or commit == base:
        return ""
    return await change.diff(await repositories.open(run), base, commit)


async def run_apply(
    repositories: RunRepositories, run: RunId, events: Sequence[Event], repo: str
) -> Delivered:
    """Put the run's work into the repository at `repo` as a new branch, touching nothing else.

    Raises `UserError` (`no_change`) when there is nothing to put.
    """
    base, commit = base_commit(events), result_commit(events)
    admitted = events[0].body
    if base is None or commit is None or commit == base or not isinstance(admitted, RunAdmitted):
        raise UserError("no_change", f"Run {run} has changed nothing yet: there is nothing to apply.")
    branch = change.branch_name(admitted.request.prompt, run)
    delivered = await PlainGit().deliver(await repositories.open(run), commit, branch, repo)
    if delivered is None:
        raise UserError("not_a_path", f"{repo} is not a repository on this machine: give a path.")
    return delivered
