"""`jest --json` and `vitest --reporter=json`, which write the same."""

from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole

_STATUSES: dict[str, TestStatus] = {"passed": "passed", "failed": "failed"}


class _Place(msgspec.Struct, frozen=True):
    line: int


class _Assertion(msgspec.Struct, frozen=True, rename="camel"):
    title: str
    status: str
    ancestor_titles: list[str] = []
    failure_messages: list[str | None] | None = None
    location: _Place | None = None


class _File(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    status: str
    assertion_results: list[_Assertion]
    message: str = ""


class _Report(msgspec.Struct, frozen=True, rename="camel"):
    test_results: list[_File]


def jest_json(output: CheckOutput) -> Found | None:
    """A `Parser`. A file that could not run stands for its tests."""
    for report in whole(output, b'"assertionResults"', _Report):
        tests = tuple(test for file in report.test_results for test in _file(file))
        return Found(tests=tests) if tests else None
    return None


def title(file: str, titles: list[str]) -> str:
    """The name of a test, the same whichever way it was reported."""
    return plain.name(f"{file}::{' > '.join(titles)}")


def _file(file: _File) -> Iterator[TestResult]:
    path = plain.path(file.name)
    if not file.assertion_results and file.status == "failed":
        text = file.message.split("\n")
        place = plain.place_in_stack(text) or (path, None)
        yield TestResult(plain.name(path), "error", place[0], place[1], plain.message(file.message) or None)
    for one in file.assertion_results:
        name = title(path, [*one.ancestor_titles, one.title])
        status = _STATUSES.get(one.status, "skipped")
        if status != "failed":
            yield TestResult(name, status, path, plain.count(one.location.line) if one.location else None)
            continue
        said = "\n".join(text for text in one.failure_messages or () if text)
        yield TestResult(name, status, *where(said.split("\n"), path), why(said) or None)


def where(stack: list[str], path: str) -> tuple[str, int | None]:
    """The frame in the test's own file if there is one, else the first of the repository."""
    own = plain.place_in_stack([line for line in stack if path in line])
    return own or plain.place_in_stack(stack) or (path, None)


def why(said: str) -> str:
    """The message without the frames of the runner."""
    kept = [
        line for line in said.split("\n")[:400] if not (line.lstrip().startswith("at ") and _library(line))
    ]
    return plain.message("\n".join(kept))


def _library(line: str) -> bool:
    return "node_modules/" in line or "node:" in line or "<anonymous>" in line or "[native code]" in line
