"""Watching one run to its end: the screen is fed, the clock ticks, and Ctrl-C is heard."""

import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from cloister.cli.screen.shows import Show
from cloister.core.errors import HostError
from cloister.core.events import Blame, Delta, Event, RunContinued, RunFinished
from cloister.core.requests import Outcome

if TYPE_CHECKING:
    pass
    from cloister.core.ids import RunId
    from cloister.log.sqlite.reader import LogReader


TICK_SECONDS = 0.2
STOP_SECONDS = 20.0
"""How long a run that was told to stop may take before it is cut off."""

_EXIT_CODES: dict[Blame, int] = {"user": 2, "host": 3, "outside": 4, "sandbox": 5, "bug": 70}

Source = Callable[[], Awaitable[None]]
"""Feeds a watch with everything a run emits until it has finished."""


class Watch:
    """What was seen of a run so far."""

    def __init__(self, show: Show, after: int = 0) -> None:
        self._show = show
        self.outcome: Outcome | None = None
        self.blame: Blame | None = None
        self.last_seq = after
        self.interrupts = 0

    def feed(self, item: Event | Delta) -> None:
        if isinstance(item, Event):
            self.last_seq = item.seq
            if isinstance(item.body, RunFinished):
                self.outcome, self.blame = item.body.outcome, item.body.blame
            elif isinstance(item.body, RunContinued):
                self.outcome = self.blame = None
        self._show.feed(item)

    async def until_end(self, source: Source, stop: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Feed from `source` until it ends or a person interrupts.

        The first Ctrl-C calls `stop` and leaves the run a moment to end. Without a `stop`, when it says that
        there is nothing to wait for, and at the second Ctrl-C, it ends here and now.
        """
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as tasks:

                async def hear() -> None:
                    async for _ in signals:
                        self.interrupts += 1
                        tasks.cancel_scope.deadline = anyio.current_time() + STOP_SECONDS
                        if stop is None or self.interrupts > 1 or not await stop():
                            tasks.cancel_scope.cancel()

                tasks.start_soon(hear)
                tasks.start_soon(self._tick)
                try:
                    await source()
                finally:
                    self._show.close()
                tasks.cancel_scope.cancel()

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        if self.interrupts:
            return 130
        if self.blame is not None:
            return _EXIT_CODES[self.blame]
        return 0 if self.outcome == "green" else 1

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(TICK_SECONDS)
            self._show.tick()


# A run followed straight from the log: no server, so events only, and a look every moment.


_LOOK_SECONDS = 0.2
_UNCLAIMED_SECONDS = 5.0
"""How long nobody may drive a run before we say so: between two owners there is a gap."""


async def follow_log(log: "LogReader", run: "RunId", watch: "Watch") -> None:
    """Feed the watch until the run has finished. Raises `HostError` (`not_driven`) when nobody drives it."""
    driven_at = anyio.current_time()
    while True:
        row = log.row(run)
        page = log.page(run, watch.last_seq)
        for event in page.events:
            watch.feed(event)
        if page.finished and watch.last_seq >= page.last_seq:
            # Nothing after `--after` may be left to read; how it ended is known all the same.
            watch.outcome = watch.outcome or row.outcome
            return
        now = anyio.current_time()
        if row.owner_lives or page.events:
            driven_at = now
        elif now - driven_at > _UNCLAIMED_SECONDS:
            raise HostError(
                "not_driven",
                f"Nobody drives {run} now. It is kept: `cloister serve --background` goes on with it.",
            )
        if not page.more:
            await anyio.sleep(_LOOK_SECONDS)
