"""Watch one run to its end: feed the screen, move its clock, handle Ctrl-C."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

import anyio

from cloister.cli.screen.screen import Show
from cloister.core.errors import CloisterError
from cloister.core.events import Blame, Delta, Event, PhaseStarted, RunContinued, RunFinished
from cloister.core.requests import Accepted, Outcome
from cloister.runs.event_text.lines import seconds

if TYPE_CHECKING:
    from cloister.cli.client.steer import Steering
    from cloister.log.api import RunRow

TICK_SECONDS = 0.2
STOP_SECONDS = 20.0
"""How long a run may take to stop before the command ends."""

_EXIT_CODES: dict[Blame, int] = {"user": 2, "host": 3, "outside": 4, "sandbox": 5, "bug": 70}
_OUTCOMES: dict[Outcome, int] = {"proven": 0, "green": 0, "unbroken": 10, "unproven": 11}
"""Exit codes of outcomes; every other one is 1."""
_ACCEPTED: dict[Accepted, tuple[Outcome, ...]] = {
    "proven": (),
    "unbroken": ("unbroken",),
    "unproven": ("unbroken", "unproven"),
}


def accepted(outcome: str | None, accept: Accepted) -> bool:
    """True if an outcome counts as success."""
    return outcome in ("proven", "green", *_ACCEPTED[accept])


Source = Callable[[], Awaitable[None]]
"""Feeds a watch with everything a run emits until the run finishes."""


class Watch:
    """Feeds a screen and remembers how the run ended."""

    def __init__(
        self, show: Show, after: int = 0, accept: Accepted = "proven", steering: "Steering | None" = None
    ) -> None:
        self._show = show
        self._row: Callable[[], Awaitable[RunRow]] | None = None
        self._begun = anyio.Event()
        self._steering = steering
        self._accepted = _ACCEPTED[accept]
        self.outcome: Outcome | None = None
        self.blame: Blame | None = None
        self.last_seq = after
        self.interrupts = 0
        self.left = False
        """True if a person left with one Ctrl-C, so that the run goes on."""

    def at(self, row: "Callable[[], Awaitable[RunRow]]") -> None:
        """From now on show how long a phase usually takes, as the run's `row` says."""
        self._row = row

    def feed(self, item: Event | Delta) -> None:
        if isinstance(item, Event):
            self.last_seq = item.seq
            if isinstance(item.body, RunFinished):
                self.outcome, self.blame = item.body.outcome, item.body.blame
            elif isinstance(item.body, RunContinued):
                self.outcome = self.blame = None
            elif isinstance(item.body, PhaseStarted):
                self._begun.set()
        if self._steering is not None:
            self._steering.feed(item)
        self._show.feed(item)

    async def until_end(self, source: Source, stop: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Run `source` until it ends or Ctrl-C interrupts it.

        The first Ctrl-C calls `stop` and lets the run end. It returns at once without a `stop`, if `stop` returns
        False, and at the second Ctrl-C. With a keyboard, Ctrl-C is a key: it leaves, and twice it stops the run.
        """
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with self._keyboard(), anyio.create_task_group() as tasks:

                async def hear() -> None:
                    async for _ in signals:
                        self.interrupts += 1
                        tasks.cancel_scope.deadline = anyio.current_time() + STOP_SECONDS
                        if stop is None or self.interrupts > 1 or not await stop():
                            tasks.cancel_scope.cancel()

                async def leave(steering: "Steering") -> None:
                    await steering.left()
                    self.interrupts += 1
                    self.left = not steering.stopping
                    tasks.cancel_scope.cancel()

                tasks.start_soon(hear)
                tasks.start_soon(self._tick)
                tasks.start_soon(self._say_usual)
                if self._steering is not None:
                    tasks.start_soon(leave, self._steering)
                try:
                    await source()
                finally:
                    self._show.close()
                tasks.cancel_scope.cancel()

    def _keyboard(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._steering is None else self._steering.keyboard()

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        if self.interrupts or (self._steering is not None and self._steering.stopping):
            return 130
        if self.blame is not None:
            return _EXIT_CODES[self.blame]
        if self.outcome is None:
            return 1
        return 0 if self.outcome in self._accepted else _OUTCOMES.get(self.outcome, 1)

    async def _say_usual(self) -> None:
        """Show with each phase how long it usually takes."""
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            with suppress(CloisterError):
                row = None if self._row is None else await self._row()
                usual = None if row is None else row.phase_usual
                self._show.usual(
                    "" if row is None or usual is None else f"{row.phase} usually takes {seconds(usual)}"
                )

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(TICK_SECONDS)
            self._show.tick()
