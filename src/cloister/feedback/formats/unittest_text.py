"""What `python -m unittest` and runners built on it print."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.traceback import traces

_RAN = re.compile(r"^Ran (\d{1,9}) tests? in \d[\d.]{0,15}s$")
_NAMED = re.compile(r"^([^\s()]{1,300}) \(([\w.<>]{1,600})\)(.*)$")
_RULE = "=" * 70
_THIN_RULE = "-" * 70
_HEADLINES: dict[str, TestStatus] = {"FAIL": "failed", "ERROR": "error", "UNEXPECTED SUCCESS": "failed"}
_COUNTS = re.compile(r"(skipped|expected failures)=(\d{1,9})")
_FIXTURES = ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule")


def unittest_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by name; the others by name where the runner was verbose, else by number."""
    if b"Ran " not in output.err and b"Ran " not in output.out:
        return None
    for text in (output.err_lines, output.out_lines):
        ends = [index for index, line in enumerate(text) if _RAN.match(line)]
        if ends:
            return _found(text, ends[-1])
    return None


def _found(text: Sequence[str], end: int) -> Found | None:
    ran = _RAN.match(text[end])
    total = int(ran[1]) if ran else 0
    left_out = sum(int(count) for line in text[end + 1 : end + 4] for _, count in _COUNTS.findall(line))
    tests = {test.name: test for test in _verbose(text[:end])}
    for test in _failing(text[:end]):
        if test.name not in tests or tests[test.name].status not in ("failed", "error") or test.message:
            tests[test.name] = test
    counted = [test for test in tests.values() if not test.name.endswith(_FIXTURES)]
    named = sum(test.status != "skipped" for test in counted)
    unlisted = max(0, total - left_out - named)
    if not tests and not unlisted:
        return None
    return Found(tests=tuple(tests.values()), unlisted=unlisted)


def _name(text: str) -> tuple[str, str] | None:
    """The name of the test in `test_x (pkg.Class.test_x) (i=1)`, and what stands behind it."""
    named = _NAMED.match(text)
    if named is None:
        return None
    short, owner = named[1], named[2].removesuffix("." + named[1])
    if owner.endswith("_FailedTest"):
        return plain.name(short), named[3]
    return plain.name(f"{owner}::{short}"), named[3]


def _verbose(text: Sequence[str]) -> Iterator[TestResult]:
    """Lines such as `test_x (pkg.Class.test_x) ... ok`; a docstring moves the verdict one line down."""
    for index, line in enumerate(text):
        said, dots, verdict = line.rpartition(" ... ")
        status = _verdict(verdict)
        if not dots or status is None or said.startswith(" "):
            continue
        named = _name(said) or (_name(text[index - 1]) if index else None)
        if named:
            yield TestResult(named[0], status)


def _verdict(word: str) -> TestStatus | None:
    if word == "ok":
        return "passed"
    if word in ("FAIL", "ERROR", "unexpected success"):
        return "error" if word == "ERROR" else "failed"
    return "skipped" if word.startswith("skipped") or word == "expected failure" else None


def _failing(text: Sequence[str]) -> Iterator[TestResult]:
    """The long account of each failure; of several subtests of one test the first is told."""
    starts = [index for index, line in enumerate(text) if line == _RULE]
    seen: set[str] = set()
    for start, stop in pairwise([*starts, len(text)]):
        headline = text[start + 1] if start + 1 < stop else ""
        word, _, what = headline.partition(": ")
        named = _name(what) or ((plain.name(what), "") if what else None)
        if word not in _HEADLINES or named is None or named[0] in seen:
            continue
        seen.add(named[0])
        yield _account(_HEADLINES[word], named, text[start + 2 : stop])


def _account(status: TestStatus, named: tuple[str, str], text: Sequence[str]) -> TestResult:
    name, subtest = named
    found = traces(text)
    if not found:
        return TestResult(
            name, status, message=plain.message("\n".join(text).replace(_THIN_RULE, "")) or None
        )
    last = found[-1]
    why = "\n".join(line for line in text[last.ends :] if line != _THIN_RULE)
    return TestResult(name, status, last.file, last.line, plain.message(f"{subtest.strip()} {why}".strip()))
