"""What a search would localise, as an observation for the models of a run, once one of them needs it.

A model that repairs the fault at once pays nothing for it: the failing tests run with coverage only after an attempt has
changed files twice without success, got stuck, or read for several turns.
"""

from collections import Counter
from collections.abc import Sequence

import anyio
import msgspec

from cloister.core.computer import Computer
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError
from cloister.core.events import ChecksRan, Event, FaultLocalised, ModelReplied, StuckNoticed, Suspect
from cloister.core.events.repair import SUSPECTS
from cloister.core.log import Journal
from cloister.core.text import one_line
from cloister.harnesses.repair.api import Localised
from cloister.harnesses.repair.suite import Suite, in_place_of, script_of, suite_of
from cloister.harnesses.repair.words import NO_RULES, NO_TEST, how

NAMES, NAME_CHARS = 20, 400
"""Most tests that an event names, and most characters of a name."""
_REPLIES = 6
_RED = 2
_PASSING = 60
"""Passing tests that run for an observation: those nearest to the failing ones, and some others."""
_SECONDS = 120.0


async def suite_for(baseline: Sequence[Diagnosis], computer: Computer) -> tuple[Suite | None, str]:
    """The test command to search with, or why there is none."""
    red = [diagnosis for diagnosis in baseline if diagnosis.failing]
    # Without a failing test, a check may fail before any test runs: an import error of the product.
    bad = red or [diagnosis for diagnosis in baseline if not diagnosis.green]
    for diagnosis in bad:
        if (suite := suite_of(await _resolved(diagnosis.check, computer))) is not None:
            return suite, ""
    return None, NO_RULES.format(check=one_line(bad[0].check, 120)) if bad else NO_TEST


async def _resolved(check: str, computer: Computer) -> str:
    """What `npm test` and the like run."""
    name = script_of(check)
    if name is None:
        return check
    folder = check[3:].split("&&")[0].strip() + "/" if check.startswith("cd ") else ""
    try:
        package = await computer.read(f"{folder}package.json", limit_bytes=1_000_000)
        return in_place_of(check, msgspec.json.decode(package, type=_Package).scripts.get(name, check))
    except (CloisterError, msgspec.MsgspecError):
        return check


class _Package(msgspec.Struct):
    """What a search reads of a package.json."""

    scripts: dict[str, str] = {}


def localised_event(found: Localised, folder: str) -> FaultLocalised:
    """The record of what was localised; `folder` is where the tests run."""
    at = f"{folder}/" if folder else ""
    return FaultLocalised(
        failing=tuple(one_line(one.test, NAME_CHARS) for one in found.failing[:NAMES]),
        suspects=tuple(
            Suspect(one_line(at + one.path, NAME_CHARS), one.line, one.score, one_line(one.why, 200))
            for one in found.suspects[:SUSPECTS]
        ),
        how=how(found),
        lines=len(found.suspects),
        seconds=found.seconds,
    )


async def needed(journal: Journal, start: int) -> None:
    """Wait until an attempt may need to know where the fault is, by the events from `start` on."""
    replies: Counter[int] = Counter()
    red: Counter[int] = Counter()
    while not any(_counts(event, replies, red) for event in journal.events[start:]):
        start = len(journal.events)
        await journal.changed(start)


def _counts(event: Event, replies: Counter[int], red: Counter[int]) -> bool:
    match event.body:
        case StuckNoticed():
            return True
        case ModelReplied(attempt=attempt):
            replies[attempt] += 1
            return replies[attempt] >= _REPLIES
        case ChecksRan(attempt=attempt, comparison=comparison):
            red[attempt] += not comparison.green
            return red[attempt] >= _RED
        case _:
            return False


async def observed(computer: Computer, baseline: Sequence[Diagnosis]) -> FaultLocalised | None:
    """Localise the failures of the baseline in a sandbox with the base. None: no runner with rules, or nothing suspicious.

    Raises `UserError` (`worker_lost`) if the tests cannot be driven.
    """
    from cloister.harnesses.repair.trials import Trials  # noqa: PLC0415  (slow to load, and rarely needed)

    names = [test.name for diagnosis in baseline for test in diagnosis.failing]
    suite, _ = await suite_for(baseline, computer)
    if suite is None or not names:
        return None
    with anyio.move_on_after(_SECONDS):
        async with Trials(computer, suite, workers=1, seconds=_SECONDS) as trials:
            found = await trials.localise(names, seconds=_SECONDS / 2, passing=_PASSING)
            return localised_event(found, suite.folder) if found.suspects else None
    return None
