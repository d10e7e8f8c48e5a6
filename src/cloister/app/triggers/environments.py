"""Environments that a server keeps ready: built when the branch of a repository moves, and again at times of a schedule."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import anyio

from cloister.app.triggers.entries import EnvironmentEntry
from cloister.core.errors import CloisterError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 3_600.0
"""Before a build that failed is tried again although the branch has not moved."""


class Made(NamedTuple):
    """The environment of a commit."""

    commit: str
    bare: Path
    """Our repository with the commit."""
    template: str
    built: bool
    """False if it was there."""
    built_at: float
    """Unix seconds."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What the last look at a repository found."""

    made: Made
    tried_at: float
    """When it was last built, or a build was tried."""


Tip = Callable[[EnvironmentEntry, Path], Awaitable[str]]
"""The newest commit of the branch, by a repository of ours. Raises `CloisterError`."""
Build = Callable[[EnvironmentEntry, bool], Awaitable[Made]]
"""Builds the environment of the newest commit if it is missing, or again. Raises `CloisterError`."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """Keeps the environments of the settings, while a server lives."""

    entries: Sequence[EnvironmentEntry]
    tip: Tip
    build: Build
    now: Callable[[], float] = time.time

    async def run(self) -> None:
        """Never returns."""
        async with anyio.create_task_group() as tasks:
            for entry in self.entries:
                tasks.start_soon(self._keep, entry)

    async def _keep(self, entry: EnvironmentEntry) -> None:
        last: Look | None = None
        while True:
            try:
                last = await self.look(entry, last)
            except CloisterError as error:
                logger.warning("the environment of %s is not kept ready: %s", entry.repo, error.message)
            except Exception:
                logger.exception("the environment of %s is not kept ready", entry.repo)
            await anyio.sleep(entry.minutes * 60)

    async def look(self, entry: EnvironmentEntry, last: Look | None) -> Look:
        """Build the environment if the branch moved since the `last` look, or a time of the schedule has come."""
        now = self.now()
        if last is None or _failed_long_ago(last, now) or await self._has_moved(entry, last.made):
            made = await self.build(entry, False)
            last = Look(made, now if made.built or made.problem else made.built_at)
        if self._is_due(entry, last.tried_at, now):
            last = Look(await self.build(entry, True), now)
        return last

    async def _has_moved(self, entry: EnvironmentEntry, made: Made) -> bool:
        return await self.tip(entry, made.bare) != made.commit

    def _is_due(self, entry: EnvironmentEntry, since: float, now: float) -> bool:
        if entry.cron is None:
            return False
        from cloister.core.system.schedule import last_time, read_cron, read_zone  # noqa: PLC0415

        return last_time(read_cron(entry.cron), read_zone(entry.zone), since, now) is not None


def _failed_long_ago(last: Look, now: float) -> bool:
    return bool(last.made.problem) and now - last.tried_at >= RETRY_SECONDS
