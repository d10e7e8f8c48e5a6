"""A moved base: the change of a finished run is replayed onto the newest commit of its branch, and proven again.

A person or a follow-up asks for it with a message, which begins another round. The driver fetches the base, merges and
appends the outcome in one transaction. Without conflicts the replayed change is proven as it is; else the agent resolves them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cloister.core.errors import HostError, UserError
from cloister.core.events import AnyBody, BaseFixed, Event, PromptReceived, RunFinished, TurnEnded
from cloister.core.log import CONFLICTS, Index, request_of
from cloister.core.requests import FurtherRepository, Origin
from cloister.core.text import decode, one_line
from cloister.forge import Forges
from cloister.forge.api import Base
from cloister.forge.change import commit_tree
from cloister.forge.host import complaint, in_bare, is_oid, must
from cloister.forge.workspace import kept_of
from cloister.runs.attempts.tree import all_points, point_at

_SHOWN = 40
_ASKED = "The base of this change moved. Its change is replayed onto {base}, and proven there."
_RESOLVE = """\
The base moved from {old} to {new}, and the change was replayed onto it. Both sides changed these files, and the places are \
marked with <<<<<<<, ======= and >>>>>>> (first the new base, then this change):
{files}
Resolve them so that both intentions are kept, remove the marks, and finish."""


class Replayed(NamedTuple):
    """A saved tree on another base."""

    commit: str
    conflicts: tuple[str, ...]
    """Files that have marks, or of which one side was kept."""


def request_rebase(events: Sequence[Event], who: str, origin: Origin, ref: str) -> PromptReceived:
    """The message that begins the round. Raises `UserError` (`run_not_finished`, `no_change`, `no_branch`)."""
    run, base = events[0].run, Index(events).last(BaseFixed)
    if not isinstance(events[-1].body, RunFinished):
        raise UserError(
            "run_not_finished",
            f"Run {run} is not finished: stop it (`cloister stop {run}`), or wait for its end.",
        )
    if base is None or not all_points(events):
        raise UserError("no_change", f"Run {run} has no change: there is nothing to replay.")
    return PromptReceived(_ASKED.format(base=_names(moving(events))), who, origin, ref)


def moving(events: Sequence[Event]) -> tuple[FurtherRepository, ...]:
    """The repositories, each with the name whose newest commit is the new base; None is its HEAD.

    Raises `UserError` (`no_branch`).
    """
    base, wanted = Index(events).last(BaseFixed), request_of(events).repositories
    branches: list[str | None] = [None if base is None else base.branch]
    if base is not None and base.parts:
        branches = [part.branch for part in base.parts]
    found = tuple(
        FurtherRepository(one.repo, branch or one.ref) for one, branch in zip(wanted, branches, strict=True)
    )
    fixed = [one.ref for one in found if one.ref and is_oid(one.ref)]
    if len(fixed) == len(found):
        raise UserError(
            "no_branch", f"Run {events[0].run} started from the commit {fixed[0][:12]}, which does not move."
        )
    return found


def _names(found: Sequence[FurtherRepository]) -> str:
    return " and ".join(dict.fromkeys(one.ref or "HEAD" for one in found))


async def check_moved(forges: Forges, events: Sequence[Event], bare: Path) -> None:
    """Raises `UserError` (`not_moved`, `unknown_ref`, `no_branch`, …) or `OutsideError` unless the base has moved."""
    found, base = moving(events), Index(events).last(BaseFixed)
    commits = [part.commit for part in base.parts] or [base.commit] if base is not None else []
    newest = [await forges.at(one.repo).tip(one.repo, one.ref, bare) for one in found]
    if newest == commits:
        raise UserError(
            "not_moved",
            f"{one_line(_names(found), 100)} is still at {newest[0][:12]}, the base of run {events[0].run}.",
        )


async def moved_base(bare: Path, events: Sequence[Event], found: Base, origin: Origin) -> tuple[AnyBody, ...]:
    """The events that put `found` in the place of the base, with the change replayed onto it."""
    before = Index(events).last(BaseFixed)
    if before is None or found.commit == before.commit:
        return ()
    bodies: list[AnyBody] = [BaseFixed(found.commit, found.branch, found.note, found.parts)]
    if all_points(events):
        # As of the end of the last round: the result's save point.
        end = max(event.seq for event in events if isinstance(event.body, RunFinished))
        attempt, point = point_at(events[:end], None)
        done = await replay(bare, before.commit, point.commit, found.commit)
        must(
            await in_bare(bare, "update-ref", f"refs/cloister/attempt/{attempt}", done.commit),
            "keep the change",
        )
        bodies.append(TurnEnded(attempt, point.step, done.commit, True))
        if done.conflicts:
            files = "\n".join(f"- {one_line(name, 200)}" for name in done.conflicts[:_SHOWN])
            text = _RESOLVE.format(old=before.commit[:12], new=found.commit[:12], files=files)
            bodies.append(PromptReceived(text, "cloister", origin, CONFLICTS))
    return tuple(bodies)


async def replay(bare: Path, old: str, saved: str, new: str) -> Replayed:
    """Merge what `saved` changes of `old` into `new`, as a save point on `new`; runs no merge program."""
    # A parent that is surely common: the history of a base that was pushed by force may lack the old one.
    tree = decode(must(await in_bare(bare, "rev-parse", f"{new}^{{tree}}"), "find the new base")).strip()
    ours = await commit_tree(bare, tree, old, "New base\n")
    merged = await in_bare(
        bare, "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, saved
    )
    if merged.code not in (0, 1) or merged.cut:
        raise HostError("git_failed", f"git could not replay the change: {complaint(merged)}.")
    name, *files = decode(merged.out).split("\0")
    conflicts = tuple(dict.fromkeys(file for file in files if file)) if merged.code else ()
    parents = f"{new} {await kept_of(bare, saved) or ''}"
    return Replayed(await commit_tree(bare, name, parents, "Save point\n"), conflicts)
