"""Rank lines by how much more failing than passing tests run them, and by what the failures say. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cloister.harnesses.repair.api import Failure, Method, Status, Suspect
from cloister.harnesses.repair.suite import is_test, language_of

_SUSPECTS = 2_000
_TRACE_BONUS = 0.5
"""The deepest frame of a traceback counts this much more; frames above it half as much each."""


class Covered(msgspec.Struct, frozen=True):
    """One test of the baseline: how it went and the lines it ran."""

    id: str
    status: Status
    seconds: float = 0.0
    lines: dict[str, list[int]] = {}
    frames: list[tuple[str, int]] = []
    error: str = ""
    message: str = ""

    @property
    def failure(self) -> Failure:
        return Failure(self.id, self.error, self.message, tuple(self.frames), self.status == "late")


def ranked(tests: Sequence[Covered], failing: frozenset[str]) -> tuple[tuple[Suspect, ...], Method]:
    """Rank the lines of the product by Ochiai, raised by the tracebacks of the failures."""
    red = [test for test in tests if test.id in failing]
    green = [test for test in tests if test.id not in failing and test.status == "passed"]
    failed = _counted(red)
    if not failed:
        return by_traceback([test.failure for test in red]), "traceback"
    passed = _counted(green)
    bonus = _bonus(test.failure for test in red)
    found: list[Suspect] = []
    for place, count in failed.items():
        ochiai = count / math.sqrt(len(red) * (count + passed[place]))
        extra = bonus.get(place, 0.0)
        why = f"run by {count} of {len(red)} failing and {passed[place]} of {len(green)} passing tests"
        if extra:
            why += ", in the traceback"
        found.append(Suspect(*place, round((ochiai + _TRACE_BONUS * extra) / (1 + _TRACE_BONUS), 5), why))
    return _best(found), "coverage"


def _counted(tests: Iterable[Covered]) -> Counter[tuple[str, int]]:
    return Counter(
        (path, line)
        for test in tests
        for path, lines in test.lines.items()
        if _is_product(path)
        for line in lines
    )


def _is_product(path: str) -> bool:
    return language_of(path) is not None and not is_test(path) and not path.startswith(("/", ".."))


def _bonus(failures: Iterable[Failure]) -> Mapping[tuple[str, int], float]:
    best: dict[tuple[str, int], float] = defaultdict(float)
    for failure in failures:
        own = [place for place in failure.frames if _is_product(place[0])]
        if not own or is_test(failure.frames[-1][0]):
            continue  # the assertion of a test failed: its frames say nothing about the product
        for depth, place in enumerate(reversed(own)):
            best[place] = max(best[place], 0.5**depth)
    return best


def by_traceback(failures: Sequence[Failure]) -> tuple[Suspect, ...]:
    """Without coverage: the frames of the tracebacks, the deepest first."""
    best: dict[tuple[str, int], float] = defaultdict(float)
    for failure in failures:
        own = [place for place in failure.frames if _is_product(place[0])]
        for depth, place in enumerate(reversed(own)):
            best[place] = max(best[place], 0.8**depth)
    return _best(
        [Suspect(*place, score, "in the traceback of a failing test") for place, score in best.items()]
    )


def by_imports(files: Mapping[str, int]) -> tuple[Suspect, ...]:
    """Without coverage and traceback: every line of the files that a failing test imports. `files` has line counts."""
    return _best(
        [
            Suspect(path, line, 0.3, "in a file that the failing test imports")
            for path, count in files.items()
            if _is_product(path)
            for line in range(1, min(count, 300) + 1)
        ]
    )


def _best(found: list[Suspect]) -> tuple[Suspect, ...]:
    return tuple(sorted(found, key=lambda one: (-one.score, one.path, one.line))[:_SUSPECTS])
