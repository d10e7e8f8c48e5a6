"""Finds what a change does to tests: made easier, skipped, deleted, or kept from running.

Adding to a test is fine; removing or replacing part of it is a weakening. It counts if it is about a test that failed on
the base, or about test configuration (`weakened`).
"""

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnosis, TestResult, Weakening
from cloister.core.text import one_line
from cloister.feedback.check_commands import is_source, may_run_tests
from cloister.feedback.integrity import python_tests, rustdoc_tests, text_tests
from cloister.feedback.integrity.evasion import deceiving, hushed, may_silence, silencing
from cloister.feedback.integrity.renames import renames
from cloister.feedback.integrity.test_config import configuration, stands_in
from cloister.feedback.integrity.versions import (
    Version,
    is_allowed,
    is_test_code,
    is_test_file,
    is_test_place,
)

KEPT = 400
MOVES = 2_000


def weakenings(changed: Sequence[Version], allowed: Collection[str] = ()) -> tuple[Weakening, ...]:
    """Every weakening in the changed files. If there are too many, name only the files, so that none is dropped.

    `allowed` are patterns of files that the task is about.
    """
    found: list[Weakening] = []
    moved = renames(changed, same_body=True)
    for version in changed:
        if is_allowed(version.path, allowed):
            continue
        found.extend(configuration(version))
        found.extend(one for one in _tests(version) if (one.file, one.test) not in moved)
        found.extend(silencing(version))
        if not is_test_place(version.path) and not is_test_file(version.path):
            found.extend(deceiving(version))
    once = tuple(dict.fromkeys(found))
    if len(once) > KEPT:
        once = tuple(dict.fromkeys(_whole(one) for one in once))
    if len(once) > KEPT:
        return (Weakening(".", "deceived", detail="more tests were changed than can be checked"),)
    moves = [Weakening(old[0], "moved", old[1], "::".join(new)) for old, new in renames(changed).items()]
    return (*once, *moves[:MOVES])


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


def _whole(one: Weakening) -> Weakening:
    return one if one.test is None else Weakening(one.file, "changed")


def may_matter(path: str) -> bool:
    """True if a changed file of this name must be compared."""
    return is_test_file(path) or is_test_place(path) or path.endswith(".rs") or matters_when_new(path)


def matters_when_new(path: str) -> bool:
    """True if a new file of this name must be compared. Tests may have moved to a new file."""
    return (
        path.rpartition("/")[2] in CONFIGURATION
        or may_silence(path)
        or bool(stands_in(path))
        or is_test_code(path)
    )


_SETTINGS = (
    "pytest.ini .pytest.ini pytest.toml .pytest.toml .coveragerc .nycrc .nycrc.json "
    "pyproject.toml setup.cfg tox.ini noxfile.py conftest.py package.json Makefile makefile "
    "GNUmakefile CMakeLists.txt Cargo.toml go.mod go.work .mocharc.json .mocharc.yml "
    ".mocharc.js jest.config.js jest.config.ts jest.config.mjs jest.config.json "
    "vitest.config.js vitest.config.ts vitest.config.mjs vite.config.js vite.config.ts "
    "pom.xml build.gradle build.gradle.kts sitecustomize.py usercustomize.py"
)
CONFIGURATION = frozenset(_SETTINGS.split())


def _tests(version: Version) -> Iterator[Weakening]:
    path, before, after = version.path, version.before, version.after
    if before is None:
        return  # a new file can only weaken as configuration
    if not (is_test_file(path) or is_test_place(path) or path.endswith(".rs")):
        return
    if not is_test_code(path):
        if before.strip():
            yield Weakening(path, "data")
        return
    if path.endswith((".py", ".pyi")):
        found = python_tests.weakened(before, after)
        if found is not None:
            yield from (Weakening(path, how, name) for name, how in found)
            return
    yield from (Weakening(path, how, name) for name, how in text_tests.weakened(path, before, after))
    if path.endswith(".rs"):
        yield from (Weakening(path, how, name) for name, how in rustdoc_tests.weakened(path, before, after))


# Which weakenings count

_HOW = {
    "changed": "the test was changed",
    "skipped": "the test was skipped",
    "deleted": "the test was deleted",
    "data": "its expected data was changed",
    "configuration": "fewer tests run",
    "base": "it fails with the tests of the base",
    "deceived": "test results can no longer be trusted",
    "silenced": "the complaint was silenced, not fixed",
}


def weakened(baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> dict[str, str]:
    """Name of the test (or file) → one sentence. A weakening only counts if something failed on the base."""
    found: dict[str, str] = {}
    every = {one: None for diagnosis in now for one in diagnosis.weakened if one.how != "moved"}
    # If a check failed and no failing test explains it, any test may be the reason.
    unexplained = any(
        not diagnosis.green and not diagnosis.failing and may_run_tests(diagnosis.check)
        for diagnosis in baseline
    )
    checks = {diagnosis.check: diagnosis for diagnosis in now}
    any_red = any(not diagnosis.green for diagnosis in baseline)
    for one in every:
        if one.how in ("deceived", "silenced"):
            if any_red if one.how == "deceived" else hushed(one, baseline, checks):
                found.setdefault(one.file, _sentence(one.file, one))
            continue
        if one.how in ("configuration", "base"):
            found.setdefault(one.file, _sentence(one.file, one))
            continue
        names = list(_meant(one, baseline))
        for name in names:
            found.setdefault(name, _sentence(name, one))
        if not names and unexplained:
            name = f"{one.file}::{one.test}" if one.test else one.file
            found.setdefault(name, _sentence(name, one))
    return found


def moved_names(before: Diagnosis, now: Diagnosis) -> dict[str, str]:
    """Old name → new name, as the runner spells them, of the tests that were renamed or moved. Each name is used once."""
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


def _meant(one: Weakening, baseline: Sequence[Diagnosis]) -> Iterator[str]:
    for diagnosis in baseline:
        for test in diagnosis.failing:
            if _is_of(test, one):
                yield test.name


def _is_of(test: TestResult, one: Weakening) -> bool:
    """True if the weakening is about this failing test, judged by names."""
    if one.test is not None and one.test.partition(" - ")[0] == one.file:
        return rustdoc_tests.names(test.name, one.test)
    file = test.name.partition("::")[0]
    names_file = "::" in test.name and is_source(file)
    module = one.file.rpartition(".")[0].replace("/", ".")
    same_file = (file == one.file) if names_file else (test.file == one.file or test.name.startswith(module))
    if one.how == "data":
        where = (file if names_file else test.file or "").rpartition("/")[0]
        return (bool(where) and one.file.startswith(f"{where}/")) or one.file.rpartition("/")[2].startswith(
            f"{file.rpartition('/')[2]}."
        )
    if one.test is None:
        return same_file
    if names_file and not same_file:
        return False
    if names_file and test.name == file:
        return True
    stem, _, ending = one.file.rpartition("/")[2].rpartition(".")
    if ending in ("c", "cc", "cpp", "cxx") and test.name == stem:
        return True  # CTest names programs, which are named after their source file
    last = one.test.rpartition("::")[2]
    bare = test.name.partition("[")[0]
    if last not in bare:
        return False
    inner = bare.rpartition("::")[2]
    # JUnit 5 appends the parameter types to the method name; surefire writes them in braces.
    takes = r"(?:\([^()]{0,400}\)|\{[^{}]{0,400}\})?"
    ends_so = re.search(rf"(?:^|[^\w]){re.escape(last)}{takes}$", bare) is not None
    return ends_so or f"/{last}/" in f"/{inner}/"  # a subtest in Go
