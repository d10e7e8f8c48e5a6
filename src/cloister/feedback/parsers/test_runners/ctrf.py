"""The Common Test Report Format (CTRF), a JSON format."""

from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import document

_STATUSES: dict[str, TestStatus] = {"passed": "passed", "failed": "failed", "other": "error"}


class _Test(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    status: str
    message: str | None = None
    trace: str | None = None
    file_path: str | None = None
    line: int | None = None


class _Results(msgspec.Struct, frozen=True):
    tests: list[_Test]
    tool: msgspec.Raw


class _Report(msgspec.Struct, frozen=True):
    results: _Results


@document(b'"results"', _Report)
def ctrf(report: _Report) -> Iterator[TestResult]:
    for test in report.results.tests:
        status = _STATUSES.get(test.status, "skipped")
        file = plain.path(test.file_path) if test.file_path else None
        said = plain.message(test.message or test.trace or "") or None
        why = said if status != "passed" else None
        yield TestResult(plain.name(test.name), status, file, plain.count(test.line), why)
