"""`mocha -R json`."""

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole
from cloister.feedback.formats.jest_json import where, why


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
