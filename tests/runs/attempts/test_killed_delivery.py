"""Killed between any two writes of a delivery and of the round after it, a run ends as if nothing had happened."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.agent.loop_bench import MemoryJournal
from tests.runs.arena import Arena
from tests.runs.test_continue import AGAIN, REOPENED

from cloister.core.events import (
    AnyBody,
    AttemptEnded,
    AttemptForked,
    ChangeDelivered,
    ChangeMade,
    ModelReplied,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunResumed,
)
from cloister.core.log import Index, request_of, round_start
from cloister.runs.delivery import make_result
from cloister.testing.local import LocalHost
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio


class Killed(BaseException):
    """The machine is gone: no handler of errors runs on."""


class Mortal(MemoryJournal):
    """Takes so many writes; the next one is lost, with all that come after it."""

    left = 1_000

    def __init__(self, *bodies: AnyBody) -> None:
        super().__init__(*bodies)
        self.writes: list[type[AnyBody]] = []
        """The first event of each."""

    async def append(self, *bodies: AnyBody) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        self.writes.append(type(bodies[0]))
        await super().append(*bodies)

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        if len(self.events) == last:
            await self.append(*bodies)
        return self.events[-1].seq == last + len(bodies)


DELIVERY = (AttemptEnded, ChangeMade, ChangeDelivered, RunFinished, RunContinued, AttemptForked)


def _fresh(arena: Arena, root: Path) -> Arena:
    """A world of its own: the repository with its branches, and the run's own repository."""
    shutil.copytree(arena.repo.path, root / "repo")
    shutil.copytree(arena.bare, root / "repo.git")
    kept = root / "runs" / "r-memory" / "repo.git"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(root / "repo.git")
    return Arena(
        root,
        SampleRepo(root / "repo"),
        LocalHost(root / "boxes"),
        root / "repo.git",
        arena.base,
        arena.baseline,
    )


async def _drive(arena: Arena, journal: Mortal) -> None:
    """Two rounds, from wherever the log is."""
    services, run = arena.services(), journal.events[0].run
    while not (isinstance(journal.events[-1].body, RunFinished) and round_start(journal.events)):
        if isinstance(journal.events[-1].body, RunFinished):
            await journal.append(*REOPENED)
        winner = await arena.run(journal)
        await make_result(services, journal, run, winner)
        await journal.append(RunFinished(winner.outcome, winner.reason, winner.attempt))


def _end(arena: Arena, journal: Mortal) -> tuple[object, ...]:
    """Everything that must not depend on a kill."""
    index = Index(journal.events)
    repo, (branch,) = arena.repo, {one.branch for one in index.of(ChangeDelivered)}
    return (
        [one.outcome for one in index.of(RunFinished)],
        [one.files for one in index.of(ChangeMade)],
        [one.where == request_of(journal.events).repo for one in index.of(ChangeDelivered)],
        repo.git("branch", "--list", "cloister/*", "--format=%(refname:short)").split() == [branch],
        repo.git("show", f"{branch}:calc.py"),
        len(repo.git("rev-list", f"{arena.base}..{branch}").split()),
        Counter((one.attempt, one.step) for one in index.of(ModelReplied)),
    )


async def test_a_kill_between_any_two_writes_of_a_delivery_and_the_next_round_loses_nothing(
    arena: Arena, tmp_path: Path, long: bool
) -> None:
    """Each write is lost in turn: what was done before it is done. With `--long` also those of the turns."""
    first = _fresh(arena, tmp_path / "whole")
    whole = first.journal(first.request(AGAIN), Mortal)
    assert isinstance(whole, Mortal)
    await _drive(first, whole)
    expected = _end(first, whole)
    assert expected[0] == ["proven", "proven"]
    for left, kind in enumerate(whole.writes):
        if not long and kind not in DELIVERY:
            continue
        world = _fresh(arena, tmp_path / str(left))
        journal = world.journal(replace(first.request(AGAIN), repo=str(world.repo.path)), Mortal)
        assert isinstance(journal, Mortal)
        journal.left = left
        with pytest.raises((Killed, BaseExceptionGroup)):
            await _drive(world, journal)
        assert len(journal.writes) == left
        journal.left = 1_000
        if not isinstance(journal.events[-1].body, RunFinished):
            journal.add(RunClaimed("o-9", 9), RunResumed(len(journal.events)))
        await _drive(world, journal)
        assert _end(world, journal) == expected, f"{kind.__name__} was lost"
