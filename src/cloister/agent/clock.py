"""The wall time of one attempt: how much is spent and left, when to warn, and asking for more of it."""

import anyio

from cloister.agent.budgeted import BudgetedModels
from cloister.core.budget import amount
from cloister.core.records import Budget

_RESERVE_SECONDS, _RESERVE_SHARE = 30.0, 0.05
"""Kept for the last words: this much, or this part of the time if that is less."""


class Clock:
    """Measures here and not between events: the clock on the wall may jump."""

    def __init__(self, budget: Budget, models: BudgetedModels, earlier: float) -> None:
        """`earlier` is what was spent before, in seconds, by the log."""
        self._budget = budget
        self._models = models
        self._earlier = earlier
        self._started = anyio.current_time()
        self.reserve = min(_RESERVE_SECONDS, budget.seconds * _RESERVE_SHARE)
        """Of the time, kept for the last words."""

    @property
    def spent(self) -> float:
        return self._earlier + anyio.current_time() - self._started

    @property
    def limit(self) -> float:
        """With what people added."""
        return self._budget.seconds + self._models.more_seconds()

    @property
    def left(self) -> float:
        """Before the last words must begin."""
        return self.limit - self.reserve - self.spent

    @property
    def over(self) -> str:
        """What is said when it is."""
        return f"The attempt's budget of {amount('seconds', self.limit)} is spent."

    async def warn(self) -> None:
        """Once most of it is spent."""
        await self._models.warn_of_time(self.spent, self.limit)

    async def more(self) -> bool:
        """Whether a person gave more, if one may be asked; waiting for the answer costs no time."""
        asked = anyio.current_time()
        given = await self._models.ask_for_time(self.spent, self.limit)
        self._started += anyio.current_time() - asked
        return given
