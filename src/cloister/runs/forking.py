"""A run that goes on from a save point of another: its request, its files and its conversation."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from anyio import to_thread

from cloister.core.attempts import AttemptWish, ForkedFrom, wishes
from cloister.core.errors import Bug, UserError
from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    ConnectionDecided,
    Event,
    Inherited,
    PromptReceived,
    RunAdmitted,
    RunResumed,
    SandboxOpened,
)
from cloister.core.history import effective
from cloister.core.lineage import SavePoint, root_of, seen_by
from cloister.core.records import NewRun
from cloister.forge.between import copy_commit
from cloister.runs.tree import point_at

_NOT_TALK = (AttemptStarted, AttemptForked, AttemptEnded, SandboxOpened, RunResumed)


def fork_request(events: Sequence[Event], at: int | None, say: str | None) -> NewRun:
    """The request for a run with one attempt, like the one that made the save point, that goes on from there.

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


def check_fork(events: Sequence[Event], new: NewRun) -> None:
    """Raises `UserError` unless the run in `events` is one from which `new` can go on."""
    origin = new.forked_from
    admitted = events[0].body
    if origin is None or not isinstance(admitted, RunAdmitted):
        return
    point_at(events, origin.seq)
    if new.repo != admitted.request.repo:
        raise UserError(
            "other_repository", f"Run {origin.run} worked on another repository: a fork stays with its own."
        )


def inheritance(events: Sequence[Event], new: NewRun, who: str) -> tuple[SavePoint, tuple[AnyBody, ...]]:
    """The save point, and the events with which the log of a forked run goes on after its admission."""
    origin = new.forked_from
    if origin is None:
        raise Bug("a run that was not forked inherits nothing")
    attempt, point = point_at(events, origin.seq)
    ground: list[AnyBody] = []
    talk: list[AnyBody] = []
    connected = False
    for event in effective(seen_by(events, attempt)):
        body = event.body
        match body:
            case BaseFixed() | ChecksChosen():
                ground.append(body)
            case BaselineTaken():
                ground.append(msgspec.structs.replace(body, known=True))
            case _ if event.seq > point.seq or isinstance(body, _NOT_TALK):
                pass
            case ConnectionDecided(effect="allow") if not connected:
                # One is enough to know that what was read since then may be anybody's.
                connected = True
                talk.append(Inherited(event.seq, event.at, body))
            case _ if isinstance(body, PromptReceived) or getattr(body, "attempt", None) == attempt:
                talk.append(Inherited(event.seq, event.at, body))
            case _:
                pass
    told: tuple[AnyBody, ...] = (PromptReceived(origin.say, who),) if origin.say else ()
    return point, (*ground, *talk, *told)


async def copy_files(parent: Path, point: SavePoint, base: str, into: Path) -> None:
    """Bring the save point, and the base below it, into the new run's own repository."""
    if not await to_thread.run_sync(parent.exists):
        raise UserError("no_repository", "The run it goes on from was removed with its files.")
    await copy_commit(parent, point.commit, base, into)
