"""`jest --json` and `vitest --reporter=json`, which write the same."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import whole

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


# What jest prints.


_COUNTS = re.compile(r"^Tests: {1,10}(?=.{0,200}\d+ total)(.{1,200})$")
_COUNT = re.compile(r"(\d{1,9}) (failed|passed|skipped|todo|total)")
_FILE = re.compile(r"^(FAIL|PASS) (?:\./)?(\S{1,300})(?: \([\d.]{1,12} m?s\))?$")
_HEAD = re.compile(r"^  ● (\S.*)$")
_BROKEN = "Test suite failed to run"


def jest_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by name, the others by number."""
    if b"Tests:" not in output.err and b"Tests:" not in output.out:
        return None
    for text in (output.err_lines, output.out_lines):
        counted = [found for line in text if (found := _COUNTS.match(line))]
        if counted:
            return _found(text, counted[-1][1])
    return None


def _found(text: Sequence[str], counts: str) -> Found | None:
    passed = sum(int(number) for number, word in _COUNT.findall(counts) if word == "passed")
    tests: dict[str, TestResult] = {}
    file = ""
    heads = [index for index, line in enumerate(text) if _FILE.match(line) or _HEAD.match(line)]
    for start, stop in pairwise([*heads, len(text)]):
        if opened := _FILE.match(text[start]):
            file = plain.path(opened[2])
        elif (head := _HEAD.match(text[start])) and file and "›" not in file:
            test = _failing(file, head[1], text[start + 1 : min(stop, start + 200)])
            tests.setdefault(test.name, test)
    return Found(tests=tuple(tests.values()), unlisted=passed) if tests or passed else None


def _failing(file: str, head: str, text: Sequence[str]) -> TestResult:
    story: list[str] = []
    for line in text:
        if line and not line.startswith(" "):
            break
        story.append(line.removeprefix("    "))
    place = where(story, file)
    said = [line for line in story if not line.lstrip().startswith("at ")]
    message = plain.message("\n".join(said).strip()) or None
    if head == _BROKEN:
        return TestResult(plain.name(file), "error", place[0], place[1], message)
    return TestResult(title(file, head.split(" › ")), "failed", place[0], place[1], message)


# What vitest prints.


_VITEST_COUNTS = re.compile(r"^ {2,8}Tests {2}(.{1,200}?)(?: \(\d{1,9}\))?$")
_VITEST_COUNT = re.compile(r"(\d{1,9}) (failed|passed|skipped|todo)")
_VITEST_HEAD = re.compile(
    r"^ FAIL {2}(?:\|[^|]{1,60}\| )?([^\s>\[]{1,300})(?: > (.{1,600})| \[ .{1,300} \])?$"
)
_RULE = "⎯⎯⎯⎯"


def vitest_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by name, the others by number."""
    if b" Test Files " not in output.out:
        return None
    counted = [found for line in output.out_lines if (found := _VITEST_COUNTS.match(line))]
    numbers = _VITEST_COUNT.findall(counted[-1][1]) if counted else []
    passed = sum(int(number) for number, word in numbers if word == "passed")
    tests: dict[str, TestResult] = {}
    for text in (output.err_lines, output.out_lines):
        starts = [index for index, line in enumerate(text) if line.startswith(" FAIL  ")]
        for start, stop in pairwise([*starts, len(text)]):
            if head := _VITEST_HEAD.match(text[start]):
                test = _vitest_failing(head[1], head[2], text[start + 1 : min(stop, start + 200)])
                tests.setdefault(test.name, test)
    return Found(tests=tuple(tests.values()), unlisted=passed) if tests or passed else None


def _vitest_failing(file: str, titles: str | None, text: Sequence[str]) -> TestResult:
    file = plain.path(file)
    story: list[str] = []
    for line in text:
        if line.startswith(_RULE):
            break
        story.append(line)
    place = where([line for line in story if line.startswith(" ❯ ")], file)
    frame = next((index for index, line in enumerate(story) if line.startswith(" ❯ ")), len(story))
    message = plain.message("\n".join(story[:frame]).strip()) or None
    if titles is None:
        return TestResult(plain.name(file), "error", place[0], place[1], message)
    return TestResult(title(file, titles.split(" > ")), "failed", place[0], place[1], message)
