"""Finds what a change does to the checks: silenced linters, code that is compiled differently for tests, moved tests.

Tests that were made easier need no rule: the proof runs those of the base, and changes assertions (`weakened`).
"""

import re
from collections.abc import Collection, Sequence

import msgspec

from cloister.core.diagnosis import AS_ON_THE_BASE, REWRITTEN, Diagnosis, TestResult, Weakening
from cloister.core.text import one_line
from cloister.feedback.check_commands import is_source
from cloister.feedback.integrity.evasion import deceiving, hushed, may_silence, silencing
from cloister.feedback.integrity.renames import renames
from cloister.feedback.integrity.runner_config import is_shared
from cloister.feedback.integrity.versions import Version, has_tests, is_allowed, is_product, is_test_code

MOVES = 2_000


def weakenings(changed: Sequence[Version], allowed: Collection[str] = ()) -> tuple[Weakening, ...]:
    """Every weakening in the changed files, and every test that moved.

    `allowed` are patterns of files that the task is about.
    """
    found: list[Weakening] = []
    for version in changed:
        if is_allowed(version.path, allowed):
            continue
        found.extend(silencing(version))
        if is_product(version.path):
            found.extend(deceiving(version))
    moves = [Weakening(old[0], "moved", old[1], "::".join(new)) for old, new in renames(changed).items()]
    return (*dict.fromkeys(found), *moves[:MOVES])


def permitted(found: Sequence[Diagnosis], allowed: Collection[str]) -> tuple[Diagnosis, ...]:
    """`found` without the weakenings in files that the task may change."""
    if not allowed:
        return tuple(found)
    return tuple(
        msgspec.structs.replace(
            one,
            weakened=tuple(
                weak for weak in one.weakened if weak.how == "moved" or not is_allowed(weak.file, allowed)
            ),
        )
        for one in found
    )


def may_matter(path: str) -> bool:
    """True if a changed file of this name must be compared."""
    return has_tests(path) or matters_when_new(path)


def matters_when_new(path: str) -> bool:
    """True if a new file of this name must be compared. Tests may have moved to a new file."""
    return is_shared(path) or may_silence(path) or is_test_code(path)


# Which weakenings count

_HOW = {
    "configuration": "fewer tests run",
    "base": AS_ON_THE_BASE,
    "deceived": "test results can no longer be trusted",
    "silenced": "the complaint was silenced, not fixed",
}
"""The kinds that count. Logs of older versions have others."""


def weakened(baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> dict[str, str]:
    """Name of the test (or file) → one sentence.

    A silenced linter only counts if it failed on the base. What a check rewrites says nothing if nothing was red there:
    the checks of the base may do so, too.
    """
    found: dict[str, str] = {}
    every = {one: None for diagnosis in now for one in diagnosis.weakened if one.how != "moved"}
    checks = {diagnosis.check: diagnosis for diagnosis in now}
    any_red = any(not diagnosis.green for diagnosis in baseline)
    for one in every:
        counts = hushed(one, baseline, checks) if one.how == "silenced" else one.how in _HOW
        if counts and (any_red or one.detail != REWRITTEN):
            found.setdefault(one.file, _sentence(one.file, one))
    return found


def moved_names(before: Diagnosis, now: Diagnosis) -> dict[str, str]:
    """Old name → new name, as the runner spells them, of the tests that were renamed or moved."""
    was, there = ({test.name: test for test in one.tests} for one in (before, now))
    gone = [test for name, test in was.items() if name not in there]
    fresh = {name: test for name, test in there.items() if name not in was}
    found: dict[str, str] = {}
    for one in [one for one in now.weakened if one.how == "moved" and gone and fresh]:
        file, _, name = one.detail.partition("::")
        here = [test for test in gone if test.name not in found and _is_of(test, one)]
        others = (
            [test.name for test in fresh.values() if _is_of(test, Weakening(file, "moved", name))]
            if here
            else []
        )
        for test in here:
            case = _case(test.name, one.test or "")
            same = [other for other in others if _case(other, name) == case]
            if same:
                found[test.name] = same[0]
                others.remove(same[0])
                del fresh[same[0]]
    return found


def _case(name: str, inner: str) -> str:
    """The part of a runner's name that follows the test's own: the parameters, or the subtest."""
    last = inner.rpartition("::")[2]
    return name.rpartition("::")[2].rpartition(last)[2]


def _sentence(name: str, one: Weakening) -> str:
    detail = f": {one.detail}" if one.detail else ""
    return one_line(f"{name} ({_HOW[one.how]}{detail})", 300)


def _is_of(test: TestResult, one: Weakening) -> bool:
    """True if the place of a test means this one, judged by names."""
    file = test.name.partition("::")[0]
    names_file = "::" in test.name and is_source(file)
    module = one.file.rpartition(".")[0].replace("/", ".")
    same_file = (file == one.file) if names_file else (test.file == one.file or test.name.startswith(module))
    if names_file and not same_file:
        return False
    if names_file and test.name == file:
        return True
    stem, _, ending = one.file.rpartition("/")[2].rpartition(".")
    if ending in ("c", "cc", "cpp", "cxx") and test.name == stem:
        return True  # CTest names programs, which are named after their source file
    last = (one.test or "").rpartition("::")[2]
    bare = test.name.partition("[")[0]
    if last not in bare:
        return False
    inner = bare.rpartition("::")[2]
    # JUnit 5 appends the parameter types to the method name; surefire writes them in braces.
    takes = r"(?:\([^()]{0,400}\)|\{[^{}]{0,400}\})?"
    ends_so = re.search(rf"(?:^|[^\w]){re.escape(last)}{takes}$", bare) is not None
    return ends_so or f"/{last}/" in f"/{inner}/"  # a subtest in Go
