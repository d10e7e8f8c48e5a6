"""Claims runs from the queue and drives them, a bounded number at a time, each in its own task."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from cloister.core.errors import Fenced
from cloister.core.ids import OwnerId, RunId
from cloister.core.log import Journal
from cloister.log.api import Backbone, Fence
from cloister.log.journal import open_journal

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How often to look at the queue unprompted, for runs whose owner died elsewhere."""

Conduct = Callable[[Journal, RunId], Awaitable[None]]


class Supervisor:
    """Drives the runs of one owner. With `claims_all` (a server) every queued run, else only those given to `drive`."""

    def __init__(
        self, backbone: Backbone, owner: OwnerId, conduct: Conduct, *, concurrent: int, claims_all: bool
    ) -> None:
        self._backbone = backbone
        self._owner = owner
        self._conduct = conduct
        self._slots = anyio.Semaphore(concurrent)
        self._claims_all = claims_all
        self._woken = anyio.Event()
        self._named: list[RunId] = []

    def drive(self, run: RunId) -> None:
        """Claim this run soon."""
        self._named.append(run)
        self._woken.set()

    async def supervise(self) -> None:
        """Never returns; cancelling it leaves every run resumable."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._slots.acquire()
                fence = await self._next()
                tasks.start_soon(self._run, fence)

    async def _next(self) -> Fence:
        while True:
            self._woken = anyio.Event()
            named, self._named = self._named, []
            for position, run in enumerate(named):
                if fence := await self._backbone.claim(self._owner, run):
                    self._named = named[position + 1 :] + self._named
                    return fence
            if self._claims_all and (fence := await self._backbone.claim(self._owner)):
                return fence
            if not self._named:
                with anyio.move_on_after(_LOOK_SECONDS if self._claims_all else None):
                    await self._woken.wait()

    async def _run(self, fence: Fence) -> None:
        try:
            async with open_journal(self._backbone, fence) as journal:
                await self._conduct(journal, fence.run)
        except Fenced:
            logger.warning("run %s has another owner now", fence.run)
        except Exception:
            logger.exception("run %s could not be driven", fence.run)
        finally:
            self._slots.release()


@asynccontextmanager
async def open_supervisor(supervisor: Supervisor) -> AsyncGenerator[None]:
    """Supervise in the background until the block ends."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.supervise)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
