"""Recognises tests that a change renamed or moved: the same body, or the same assertions."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cloister.feedback.integrity import text_tests
from cloister.feedback.integrity.versions import Version, has_tests

Place = tuple[str, str]
"""The path of a test file, and the name of the test inside it."""

_ASSERTS = re.compile(
    r"assert|expect|should|require|check|equal|verify|\bt\.\w|^if\b|^\}? *else if\b", re.IGNORECASE
)
_GROUP = re.compile(r"^(?:describe|context|suite|mod|pub mod|(?:public |final )*class)\b")


class _Test(NamedTuple):
    body: object
    """Everything inside the test."""
    assertions: tuple[str, ...]
    groups: tuple[str, ...] = ()
    """Lines that name groups of tests. Runners put them before the name of the test."""


def renames(changed: Sequence[Version]) -> dict[Place, Place]:
    """Old place → new place of each test that was renamed or moved.

    A test in the same place is included if a group of tests in its file has another name.
    In the proof each must also pass as the base has it, whatever it is called now.
    """
    files = [one for one in changed if has_tests(one.path)]
    old = {place: test for one in files for place, test in _tests(one.path, one.before)}
    new = {place: test for one in files for place, test in _tests(one.path, one.after)}
    gone = {place: test for place, test in old.items() if place not in new}
    fresh = {place: test for place, test in new.items() if place not in old}
    found = _pairs({p: t.body for p, t in gone.items()}, {p: t.body for p, t in fresh.items()})
    stays = {p: p for p, t in old.items() if p in new and new[p].body == t.body and new[p].groups != t.groups}
    taken = set(found.values())
    left = {p: t.assertions for p, t in gone.items() if p not in found and t.assertions}
    free = {p: t.assertions for p, t in fresh.items() if p not in taken}
    twice = {value for value, many in Counter(left.values()).items() if many > 1}
    twice |= {value for value, many in Counter(free.values()).items() if many > 1}
    return stays | found | _pairs({p: value for p, value in left.items() if value not in twice}, free)


def _pairs(gone: Mapping[Place, object], fresh: Mapping[Place, object]) -> dict[Place, Place]:
    """Pair equal values, each once. Among equal ones prefer the same name, then the same file."""
    by_value: dict[object, list[Place]] = {}
    for place, value in fresh.items():
        by_value.setdefault(value, []).append(place)
    found: dict[Place, Place] = {}
    for place, value in gone.items():
        last = place[1].split("::")[-1]
        if there := by_value.get(value):
            best = min(there, key=lambda other: (other[1].split("::")[-1] != last, other[0] != place[0]))
            there.remove(best)
            found[place] = best
    return found


def _tests(path: str, text: str | None) -> Iterator[tuple[Place, _Test]]:
    if text is None:
        return
    blocks, outside = text_tests.outlines(path, text)
    groups = tuple(line for line in outside if _GROUP.match(line))
    for name, (head, *lines) in blocks.items():
        told = head.replace(name.rpartition("::")[2], "", 1)
        asserted = tuple(line for line in (told, *lines) if _ASSERTS.search(line))
        yield (path, name), _Test((told, *lines), asserted, groups)
