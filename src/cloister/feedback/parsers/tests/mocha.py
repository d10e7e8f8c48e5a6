"""`mocha -R json`."""

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import whole
from cloister.feedback.parsers.tests.jest import where, why


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    stack: str = ""


class _Test(msgspec.Struct, frozen=True):
    full: str = msgspec.field(name="fullTitle")
    err: _Error = _Error()
    file: str | None = None


class _Report(msgspec.Struct, frozen=True):
    tests: list[_Test]
    pending: list[_Test]
    failures: list[_Test]
    passes: list[_Test]


def mocha_json(output: CheckOutput) -> Found | None:
    """A `Parser`. Hooks that failed are among the failures and not among the tests."""
    for report in whole(output, b'"fullTitle"', _Report):
        tests = [
            *(_result(test, "failed") for test in report.failures),
            *(_result(test, "passed") for test in report.passes),
            *(_result(test, "skipped") for test in report.pending),
        ]
        return Found(tests=tuple(tests)) if tests else None
    return None


def _result(test: _Test, status: TestStatus) -> TestResult:
    file = plain.path(test.file) if test.file else None
    if status != "failed":
        return TestResult(plain.name(test.full), status, file)
    place = where(test.err.stack.split("\n"), file or "")
    said = why(test.err.stack) or plain.message(test.err.message) or None
    return TestResult(plain.name(test.full), status, place[0] or None, place[1], said)


# What mocha prints, with its spec and its dot reporter.


_PASSING = re.compile(r"^ {2}(\d{1,9}) passing \([\w .]{1,20}\)$")
_HEAD = re.compile(r"^ {2}(\d{1,9})\) (\S.*)$")


def mocha_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by their full title, the others by number."""
    if b" passing (" not in output.out:
        return None
    text = output.out_lines
    ends = [index for index, line in enumerate(text) if _PASSING.match(line)]
    if not ends:
        return None
    passing = _PASSING.match(text[ends[-1]])
    tests: dict[str, TestResult] = {}
    heads = [index for index in range(ends[-1] + 1, len(text)) if _HEAD.match(text[index])]
    for start, stop in pairwise([*heads, len(text)]):
        test = _failing(text[start : min(stop, start + 300)])
        tests.setdefault(test.name, test)
    unlisted = int(passing[1]) if passing else 0
    return Found(tests=tuple(tests.values()), unlisted=unlisted) if tests or unlisted else None


def _failing(text: Sequence[str]) -> TestResult:
    """The titles go down one line each, deeper each time; the last of them ends with a colon."""
    head = _HEAD.match(text[0])
    titles = [head[2] if head else text[0]]
    story: Sequence[str] = text[1:]
    if not titles[0].endswith(":"):
        for index, line in enumerate(text[1:12]):
            titles.append(line.strip())
            if line.endswith(":"):
                story = text[index + 2 :]
                break
    name = plain.name(" ".join(titles).removesuffix(":"))
    file, line = where(list(story), "")
    said = [line.strip() for line in story if not line.lstrip().startswith("at ")]
    return TestResult(name, "failed", file or None, line, plain.message("\n".join(said).strip()) or None)
