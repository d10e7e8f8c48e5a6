"""Which weakenings count: those of tests that were red, and those of what decides which tests run."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnosis, TestResult, Weakening
from cloister.core.text import one_line
from cloister.feedback.integrity import rustdoc_tests
from cloister.feedback.integrity.silencing import hushed
from cloister.feedback.kinds import may_run_tests

_HOW = {
    "changed": "the test was changed",
    "skipped": "the test was skipped",
    "deleted": "the test was deleted",
    "data": "what it expects was changed",
    "configuration": "fewer tests run",
    "base": "it is red with the tests as they were on the base",
    "deceived": "what tests say can no longer be trusted",
    "silenced": "the complaint was silenced, not mended",
}


def weakened(baseline: Sequence[Diagnosis], now: Sequence[Diagnosis]) -> dict[str, str]:
    """Name of the test (or file) → one sentence; only what the base had red can be gained by weakening it."""
    found: dict[str, str] = {}
    every = {one: None for diagnosis in now for one in diagnosis.weakened}
    # A check that was red for reasons that no test explains might have been red because of any of them.
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


def _sentence(name: str, one: Weakening) -> str:
    detail = f": {one.detail}" if one.detail else ""
    return one_line(f"{name} ({_HOW[one.how]}{detail})", 300)


def _meant(one: Weakening, baseline: Sequence[Diagnosis]) -> Iterator[str]:
    for diagnosis in baseline:
        for test in diagnosis.failing:
            if _is_of(test, one):
                yield test.name


def _is_of(test: TestResult, one: Weakening) -> bool:
    """Whether the weakened piece is (part of) this red test, as far as names can tell."""
    if one.test is not None and one.test.partition(" - ")[0] == one.file:
        return rustdoc_tests.names(test.name, one.test)
    file = test.name.partition("::")[0]
    names_file = (
        "::" in test.name and ("/" in file or "." in file.rpartition("/")[2]) and _looks_like_file(file)
    )
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
        return True  # CTest knows programs, which are named like the file they are made from
    last = one.test.rpartition("::")[2]
    bare = test.name.partition("[")[0]
    if last not in bare:
        return False
    inner = bare.rpartition("::")[2]
    # JUnit 5 writes what a method takes right behind its name, surefire with braces.
    takes = r"(?:\([^()]{0,400}\)|\{[^{}]{0,400}\})?"
    ends_so = re.search(rf"(?:^|[^\w]){re.escape(last)}{takes}$", bare) is not None
    return ends_so or f"/{last}/" in f"/{inner}/"  # a subtest of Go's


def _looks_like_file(text: str) -> bool:
    return (
        re.search(r"\.(?:py|js|jsx|ts|tsx|mjs|cjs|mts|cts|rs|go|java|kt|c|cc|cpp|rb|php)$", text) is not None
    )
