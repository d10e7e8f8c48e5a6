"""The baseline: the checks on the untouched base. The log has it at the start of an attempt, or a while later."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from cloister.agent.evidence.run_checks import Shards, ShowCheck, find_checks, run_on_base
from cloister.core.computer import Computer
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import BaseFixed, BaselineTaken, ChecksChosen
from cloister.core.log import Journal
from cloister.core.requests import NewRun
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals, asked

_SHARE = 0.5
"""The part of the time budget that the checks on the base may take."""


class Baseline(NamedTuple):
    """The checks, their results on the base, and what the request wants of them."""

    checks: tuple[str, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    goals: Goals | None = None
    """What must be green in the end; None is every check."""


class Proof(NamedTuple):
    """The results on the change alone, compared with the base."""

    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


AwaitBaseline = Callable[[], Awaitable[Baseline]]


@dataclass(slots=True)
class BaselineLog:
    """The baseline of a run as its log has it."""

    journal: Journal
    request: NewRun
    _read: int = field(init=False, default=0)
    _checks: tuple[str, ...] | None = field(init=False, default=None)
    _known: Baseline | None = field(init=False, default=None)

    @property
    def checks(self) -> tuple[str, ...] | None:
        """The chosen checks; None before they are chosen."""
        self._catch_up()
        return self._checks

    @property
    def known(self) -> Baseline | None:
        """The baseline; None while its checks run."""
        self._catch_up()
        return self._known

    @property
    def so_far(self) -> Baseline:
        """The baseline; without results while its checks run."""
        return self.known or Baseline(self._checks or ())

    async def chosen(self) -> tuple[str, ...]:
        """Wait until the checks are chosen."""
        while (checks := self.checks) is None:
            await self.journal.changed(self._read)
        return checks

    async def ready(self) -> Baseline:
        """Wait until the log has the baseline."""
        while (known := self.known) is None:
            await self.journal.changed(self._read)
        return known

    async def record(self, found: tuple[Diagnosis, ...], *, known: bool = False) -> None:
        """Append the results. `known`: nothing was run."""
        # The base compared with itself: which of its failures the run must fix.
        compared = compare(found, found, self._goals(found))
        await self.journal.append(BaselineTaken(found, known=known, comparison=compared))

    async def choose(self, checks: tuple[str, ...]) -> None:
        await self.journal.append(ChecksChosen(checks, found=not self.request.checks))

    def _goals(self, found: tuple[Diagnosis, ...]) -> Goals:
        new = self.request
        return asked(new.prompt, found, new.checks, new.asked, new.exclude_tests)

    def _goals_at(self, taken: BaselineTaken) -> Goals:
        """The goals as the log has them: an older version may have derived others from the prompt."""
        found, was = taken.diagnoses, taken.comparison
        goals = self._goals(found)
        if was is None or not goals.everything or set(compare(found, found, goals).asked) == set(was.asked):
            return goals
        checks = {one.check for one in found}
        return msgspec.structs.replace(
            goals,
            checks=tuple(name for name in was.asked if name in checks),
            names=tuple(name for name in was.asked if name not in checks),
            told=tuple(name for name in goals.told if name in was.asked),
        )

    def _catch_up(self) -> None:
        events = self.journal.events
        for event in events[self._read :]:
            match event.body:
                case BaseFixed():  # a moved base has checks and results of its own
                    self._checks = self._known = None
                case ChecksChosen(checks=checks):
                    self._checks = checks
                case BaselineTaken(diagnoses=found) as taken:
                    self._known = Baseline(self._checks or (), found, self._goals_at(taken))
                case _:
                    pass
        self._read = len(events)


async def take_baseline(
    log: BaselineLog,
    computer: Computer,
    show: ShowCheck,
    *,
    cpus: float,
    keep: Computer | None,
    shards: Shards | None = None,
) -> None:
    """Choose the checks and run them on the base in `computer`, as far as the log does not have that yet.

    Checks that do not end in the run's time are recorded as not run. The whole output of failing ones goes to `keep`.
    """
    checks = log.checks
    if checks is None:
        checks = log.request.checks or await find_checks(computer)
        await log.choose(checks)
    seconds = log.request.budget.seconds * _SHARE
    found = await run_on_base(
        computer, checks, "baseline", show, cpus=cpus, seconds=seconds, keep=keep, shards=shards
    )
    await log.record(found)
