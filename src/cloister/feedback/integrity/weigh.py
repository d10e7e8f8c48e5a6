"""Which weakenings count: those of tests that failed on the base, and those of test configuration."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnosis, TestResult, Weakening
from cloister.core.text import one_line
from cloister.feedback.integrity import rustdoc_tests
from cloister.feedback.integrity.silencing import hushed
from cloister.feedback.kinds import is_source, may_run_tests

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
    every = {one: None for diagnosis in now for one in diagnosis.weakened}
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
