"""The time budget of one attempt: time spent and left, warnings, and requests for more."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from cloister.agent.budget.metering import BudgetedModels
from cloister.core.budget import Over, amount, sentence
from cloister.core.requests import Budget

_RESERVE_SECONDS, _RESERVE_SHARE = 30.0, 0.05
"""Reserved for the last words: the smaller of these seconds and this share."""


class Clock:
    """A monotonic clock: the times of events may jump."""

    def __init__(self, budget: Budget, models: BudgetedModels, earlier: float) -> None:
        """`earlier`: seconds already spent, by the log."""
        self._budget = budget
        self._earlier = earlier
        self._started = anyio.current_time()
        self._scope: anyio.CancelScope | None = None
        self._own_reserve = _reserve(budget.seconds)
        self._purse = models.purse
        self._payer = models.payer
        self._purse.watch_time(self._update_deadline)

    @property
    def spent(self) -> float:
        return self._earlier + anyio.current_time() - self._started

    @property
    def limit(self) -> float:
        """Including granted extensions."""
        return self._budget.seconds + self._purse.more_seconds()

    @property
    def left(self) -> float:
        """Seconds until the last words must begin, by the run's own limit and those of the levels above."""
        above = self._purse.time_above()
        return self._own_left if above is None else min(self._own_left, _left(above))

    @property
    def _own_left(self) -> float:
        return self.limit - self._own_reserve - self.spent

    @property
    def reserve(self) -> float:
        """Seconds reserved for the last words."""
        above = self._purse.time_above()
        return self._own_reserve if above is None else min(self._own_reserve, _reserve(above.limit))

    def _own(self) -> Over:
        return Over("run", str(self._purse.run), "seconds", self.spent, self.limit)

    def _above(self) -> Over | None:
        """The level above the run whose time ended before the run's own, if any."""
        above = self._purse.time_above()
        return above if above is not None and _left(above) < self._own_left else None

    @property
    def over(self) -> str:
        """The reason when no time is left."""
        above = self._above()
        if above is not None:
            return sentence(above)
        return f"The attempt's budget of {amount('seconds', self.limit)} is spent."

    @contextmanager
    def running(self) -> Generator[anyio.CancelScope]:
        """Cancel the block when no time is left. Each paid call updates the deadline."""
        with anyio.move_on_after(self.left) as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None

    def _update_deadline(self) -> None:
        if self._scope is not None:
            self._scope.deadline = anyio.current_time() + self.left

    async def warn(self) -> None:
        """Warn once when most of the time is spent."""
        await self._purse.warn_of_time(self._payer, self._own())

    async def more(self) -> bool:
        """Ask a person for more time, if the settings allow it. The wait for the answer costs no time."""
        asked = anyio.current_time()
        given = await self._purse.ask_for_time(self._payer, self._above() or self._own())
        self._started += anyio.current_time() - asked
        return given


def _reserve(limit: float) -> float:
    return min(_RESERVE_SECONDS, limit * _RESERVE_SHARE)


def _left(above: Over) -> float:
    return above.limit - _reserve(above.limit) - above.spent
