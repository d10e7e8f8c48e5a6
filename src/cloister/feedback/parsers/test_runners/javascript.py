"""Test runners of JavaScript, JSON and text: jest, vitest, mocha, `node --test`."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import document

_STATUSES: dict[str, TestStatus] = {"passed": "passed", "failed": "failed"}


# `jest --json` and `vitest --reporter=json` write the same format


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


@document(b'"assertionResults"', _Report)
def jest_json(report: _Report) -> Iterator[TestResult]:
    """A file that could not run is reported as one error."""
    return (test for file in report.test_results for test in _file(file))


def title(file: str, titles: list[str]) -> str:
    """The name of a test, the same in every report format."""
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
    """The first frame in the test's own file, else the first in the repository."""
    own = plain.place_in_stack([line for line in stack if path in line])
    return own or plain.place_in_stack(stack) or (path, None)


def why(said: str) -> str:
    """The message without stack frames of the runner."""
    kept = [
        line for line in said.split("\n")[:400] if not (line.lstrip().startswith("at ") and _library(line))
    ]
    return plain.message("\n".join(kept))


def _library(line: str) -> bool:
    return "node_modules/" in line or "node:" in line or "<anonymous>" in line or "[native code]" in line


# jest, as text

_COUNTS = re.compile(r"^Tests: {1,10}(?=.{0,200}\d+ total)(.{1,200})$")
_COUNT = re.compile(r"(\d{1,9}) (failed|passed|skipped|todo|total)")
_FILE = re.compile(r"^(FAIL|PASS) (?:\./)?(\S{1,300})(?: \([\d.]{1,12} m?s\))?$")
_HEAD = re.compile(r"^  ● (\S.*)$")
_BROKEN = "Test suite failed to run"


@marked(b"Tests:", where="text")
def jest_text(output: CheckOutput) -> Found | None:
    """Failing tests by name, the others as a count."""
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
    return Found.of(tests.values(), unlisted=passed)


def _failing(file: str, head: str, text: Sequence[str]) -> TestResult:
    indented = takewhile(lambda line: not line or line.startswith(" "), text)
    story = [line.removeprefix("    ") for line in indented]
    place = where(story, file)
    said = [line for line in story if not line.lstrip().startswith("at ")]
    message = plain.message("\n".join(said).strip()) or None
    if head == _BROKEN:
        return TestResult(plain.name(file), "error", place[0], place[1], message)
    return TestResult(title(file, head.split(" › ")), "failed", place[0], place[1], message)


# vitest, as text

_VITEST_COUNTS = re.compile(r"^ {2,8}Tests {2}(.{1,200}?)(?: \(\d{1,9}\))?$")
_VITEST_COUNT = re.compile(r"(\d{1,9}) (failed|passed|skipped|todo)")
_VITEST_HEAD = re.compile(
    r"^ FAIL {2}(?:\|[^|]{1,60}\| )?([^\s>\[]{1,300})(?: > (.{1,600})| \[ .{1,300} \])?$"
)
_RULE = "⎯⎯⎯⎯"


@marked(b" Test Files ")
def vitest_text(output: CheckOutput) -> Found | None:
    """Failing tests by name, the others as a count."""
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
    return Found.of(tests.values(), unlisted=passed)


def _vitest_failing(file: str, titles: str | None, text: Sequence[str]) -> TestResult:
    file = plain.path(file)
    story = list(takewhile(lambda line: not line.startswith(_RULE), text))
    place = where([line for line in story if line.startswith(" ❯ ")], file)
    frame = next((index for index, line in enumerate(story) if line.startswith(" ❯ ")), len(story))
    message = plain.message("\n".join(story[:frame]).strip()) or None
    if titles is None:
        return TestResult(plain.name(file), "error", place[0], place[1], message)
    return TestResult(title(file, titles.split(" > ")), "failed", place[0], place[1], message)


# `mocha -R json`


class _MochaError(msgspec.Struct, frozen=True):
    message: str = ""
    stack: str = ""


class _MochaTest(msgspec.Struct, frozen=True):
    full: str = msgspec.field(name="fullTitle")
    err: _MochaError = _MochaError()
    file: str | None = None


class _MochaReport(msgspec.Struct, frozen=True):
    tests: list[_MochaTest]
    pending: list[_MochaTest]
    failures: list[_MochaTest]
    passes: list[_MochaTest]


@document(b'"fullTitle"', _MochaReport)
def mocha_json(report: _MochaReport) -> Iterator[TestResult]:
    """Hooks that failed are in `failures`, not in `tests`."""
    yield from (_mocha_result(test, "failed") for test in report.failures)
    yield from (_mocha_result(test, "passed") for test in report.passes)
    yield from (_mocha_result(test, "skipped") for test in report.pending)


def _mocha_result(test: _MochaTest, status: TestStatus) -> TestResult:
    file = plain.path(test.file) if test.file else None
    if status != "failed":
        return TestResult(plain.name(test.full), status, file)
    place = where(test.err.stack.split("\n"), file or "")
    said = why(test.err.stack) or plain.message(test.err.message) or None
    return TestResult(plain.name(test.full), status, place[0] or None, place[1], said)


# mocha, as text: the spec and dot reporters

_PASSING = re.compile(r"^ {2}(\d{1,9}) passing \([\w .]{1,20}\)$")
_MOCHA_HEAD = re.compile(r"^ {2}(\d{1,9})\) (\S.*)$")


@marked(b" passing (")
def mocha_text(output: CheckOutput) -> Found | None:
    """Failing tests by their full title, the others as a count."""
    text = output.out_lines
    ends = [index for index, line in enumerate(text) if _PASSING.match(line)]
    if not ends:
        return None
    passing = _PASSING.match(text[ends[-1]])
    tests: dict[str, TestResult] = {}
    heads = [index for index in range(ends[-1] + 1, len(text)) if _MOCHA_HEAD.match(text[index])]
    for start, stop in pairwise([*heads, len(text)]):
        test = _mocha_failing(text[start : min(stop, start + 300)])
        tests.setdefault(test.name, test)
    unlisted = int(passing[1]) if passing else 0
    return Found.of(tests.values(), unlisted=unlisted)


def _mocha_failing(text: Sequence[str]) -> TestResult:
    """The titles are on one line each, each indented deeper; the last ends with a colon."""
    head = _MOCHA_HEAD.match(text[0])
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


# `node --test`

_POINT = re.compile(r"^( {0,80})([✖✔﹣]) (.{1,600}?) \(\d[\d.]{0,20}ms\)(?: # .{0,200})?$")
_SUITE = re.compile(r"^( {0,80})▶ (.{1,600})$")
_NODE_STATUSES: dict[str, TestStatus] = {"✖": "failed", "✔": "passed", "﹣": "skipped"}
_END = "✖ failing tests:"


@marked("ℹ tests ".encode())
def node_spec(output: CheckOutput) -> Found | None:
    """Skip the verdict at the end of a suite, which only summarises its tests."""
    text = output.out_lines
    end = next((index for index, line in enumerate(text) if line == _END), len(text))
    open_suites: list[tuple[int, str]] = []
    tests: list[TestResult] = []
    for index, line in enumerate(text[:end]):
        if suite := _SUITE.match(line):
            depth = len(suite[1])
            open_suites = [one for one in open_suites if one[0] < depth]
            open_suites.append((depth, suite[2]))
        elif point := _POINT.match(line):
            depth = len(point[1])
            if (depth, point[3]) in open_suites:
                open_suites = [one for one in open_suites if one[0] < depth]
                continue
            titles = [title for at, title in open_suites if at < depth]
            tests.append(_node_result(point, titles, text[index + 1 : min(end, index + 80)]))
    return Found.of(tests)


def _node_result(point: re.Match[str], titles: list[str], below: Sequence[str]) -> TestResult:
    name = plain.name(" > ".join([*titles[-40:], point[3]]))
    status = _NODE_STATUSES[point[2]]
    if status != "failed":
        return TestResult(name, status)
    story = list(
        takewhile(lambda line: not (_POINT.match(line) or _SUITE.match(line) or line.startswith("ℹ ")), below)
    )
    file, number = where(story, "")
    said = [line.strip() for line in story if not line.lstrip().startswith("at ")]
    return TestResult(name, status, file or None, number, plain.message("\n".join(said).strip()) or None)
