"""Remove the save points of runs that ended long ago. The results stay.

A result is the change of each round, the last save point of each attempt, and the save point from which a message
continues the run. Only a rewind or a fork to an earlier turn needs the others.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from cloister.core.errors import CloisterError
from cloister.core.events import AttemptEnded, ChangeMade, Event, RunAdmitted
from cloister.core.ids import RunId
from cloister.core.log import attempts_of
from cloister.core.requests import SavePointLimits
from cloister.forge.api import RunRepositories
from cloister.log.api import Backbone, RunRow
from cloister.runs.attempts.tree import all_points, point_at
from cloister.runs.delivery import attempt_commit, base_commit, result_commit

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 3_600.0
_PAGE = 256
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class SavePointCollector:
    """Collects the save points of finished runs beyond the limits."""

    backbone: Backbone
    read: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    """The whole log of a run."""
    repositories: RunRepositories
    limits: SavePointLimits
    who: str
    """The person in whose name the audit states it."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await self.collect()
            except CloisterError as error:
                logger.warning("save points cannot be collected now: %s", error.message)
            except Exception:
                logger.exception("save points cannot be collected")
            await anyio.sleep(_LOOK_SECONDS)

    async def collect(self) -> tuple[RunId, ...]:
        """Return the runs whose save points were removed."""
        oldest = time.time() - self.limits.days * _DAY_SECONDS
        finished = [row async for row in self._rows() if row.state == "finished"]
        due = [row for at, row in enumerate(finished) if at >= self.limits.runs or row.updated_at <= oldest]
        return tuple([row.id for row in due if await self._of_run(row)])

    async def _rows(self) -> AsyncIterator[RunRow]:
        """Every run, newest first."""
        before: RunId | None = None
        while page := await self.backbone.runs(_PAGE, before=before):
            for row in page:
                yield row
            before = page[-1].id

    async def _of_run(self, row: RunRow) -> bool:
        lost: set[str] = set()

        async def kept() -> frozenset[str] | None:
            # Read under the lock: a message may have continued the run meanwhile.
            if (await self.backbone.row(row.id)).state != "finished":
                return None
            events = await self.read(row.id)
            commits = result_commits(events) | await self._needed_by_forks(row.id, events)
            lost.update({point.commit for _, point in all_points(events).values()} - commits)
            return commits

        try:
            done = await self.repositories.collect(row.id, row.updated_at, kept)
        except CloisterError as error:
            logger.warning("the save points of run %s were not collected: %s", row.id, error.message)
            return False
        if done and lost:
            await self.backbone.note("SavePointsRemoved", self.who, {"run": row.id, "commits": len(lost)})
        return done and bool(lost)

    async def _needed_by_forks(self, run: RunId, events: Sequence[Event]) -> frozenset[str]:
        """The save points of `run` that unfinished forks continue from."""
        points, found = all_points(events), set[str]()
        async for row in self._rows():
            if row.state == "finished":
                continue
            admitted = (await self.backbone.read(row.id, limit=1))[0].body
            origin = admitted.request.forked_from if isinstance(admitted, RunAdmitted) else None
            if origin is not None and origin.run == run and origin.seq in points:
                found.add(points[origin.seq][1].commit)
        return frozenset(found)


def result_commits(events: Sequence[Event]) -> frozenset[str]:
    """The commits that a finished run keeps."""
    ends = [e.body.commit for e in events if isinstance(e.body, AttemptEnded | ChangeMade)]
    last = [attempt_commit(events, number) for number in attempts_of(events)]
    further = [point_at(events, None)[1].commit] if all_points(events) else []
    named = (base_commit(events), result_commit(events), *ends, *last, *further)
    return frozenset(commit for commit in named if commit)
