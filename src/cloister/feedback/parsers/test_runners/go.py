"""Go: `go test`, `go build` and `go vet`, with `-json` and as text."""

import re
from itertools import takewhile

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Diagnostic, TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import decoded, rows

_VERDICTS: dict[str, TestStatus] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_LINE = re.compile(r"^\s*([^\s:]{1,300}\.go):(\d{1,9})(?::(\d{1,9}))?:? *(.*)")
_SAID_CHARS = 8_000


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    action: str
    package: str = ""
    test: str = ""
    output: str = ""
    import_path: str = ""


class _Complaint(msgspec.Struct, frozen=True):
    posn: str
    message: str


class _Story:
    """The output of one test or package, bounded."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.size = 0

    def add(self, text: str) -> None:
        if self.size < _SAID_CHARS:
            self.said.append(text)
            self.size += len(text)


@marked(b'"Action"', b'"posn"', where="any")
def go_json(output: CheckOutput) -> Found | None:
    stories: dict[tuple[str, str], _Story] = {}
    tests: list[TestResult] = []
    diagnostics: list[Diagnostic] = []
    failed: set[str] = set()
    for event in rows(output, b'"Action"', _Event):
        key = (event.package, event.test)
        if event.action == "build-output":
            diagnostics.extend(_complaint(event.output))
        elif event.action == "output":
            stories.setdefault(key, _Story()).add(event.output)
        elif event.action in _VERDICTS and event.test:
            story = stories.pop(key, _Story())
            tests.append(_result(event, _VERDICTS[event.action], story))
            if event.action == "fail":
                failed.add(event.package)
        elif event.action == "fail" and event.package and event.package not in failed:
            tests.append(_package(event.package, stories.pop(key, _Story())))
    diagnostics.extend(_vet(output))
    return Found.of(tests, diagnostics)


def _result(event: _Event, status: TestStatus, story: _Story) -> TestResult:
    name = plain.name(f"{event.package}::{event.test}")
    if status == "passed":
        return TestResult(name, status)
    file, line, why = account("".join(story.said).split("\n"))
    return TestResult(name, status, file, line, plain.message(why) or None)


def _package(package: str, story: _Story) -> TestResult:
    """A package that failed without a failing test: it did not build, or crashed before its tests."""
    file, line, why = account("".join(story.said).split("\n"))
    return TestResult(plain.name(package), "error", file, line, plain.message(why) or None)


def account(text: list[str]) -> tuple[str | None, int | None, str]:
    """Where a test failed and why, from its output."""
    kept = [line for line in text if line.strip() and not line.lstrip().startswith(("=== ", "--- "))]
    file, number = None, None
    for line in kept:
        place = _LINE.match(line)
        if place and not plain.is_foreign(place[1]) and "/go/src/" not in place[1]:
            file, number = plain.path(place[1]), plain.number(place[2])
            break
    return file, number, "\n".join(line.strip() for line in kept[:40])


def _complaint(text: str) -> list[Diagnostic]:
    place = _LINE.match(text)
    if place is None:
        return []
    at = (plain.number(place[2]), plain.number(place[3]))
    return [plain.complaint("go", place[4], place[1], at)]


def _vet(output: CheckOutput) -> list[Diagnostic]:
    """One object for each package: package → analyser → complaints."""
    found: list[Diagnostic] = []
    for source in output.sources:
        if b'"posn"' not in source or len(source) > limits.JUNIT_BYTES:
            continue
        for piece in source.split(b"\n}"):
            start = piece.find(b"{")
            packages = decoded(piece[start:] + b"\n}", dict[str, dict[str, list[_Complaint]]])
            for analyser, complaints in ((a, c) for by in (packages or {}).values() for a, c in by.items()):
                for one in complaints:
                    file, line, column = _position(one.posn)
                    found.append(
                        plain.complaint("vet", one.message, file, (line, column), "warning", analyser)
                    )
    return found


def _position(posn: str) -> tuple[str, int | None, int | None]:
    rest, _, column = posn.rpartition(":")
    file, _, line = rest.rpartition(":")
    return (file, plain.number(line), plain.number(column)) if file else (posn, None, None)


# `go test` as text

_VERDICT = re.compile(r"^( {0,80})--- (FAIL|PASS|SKIP): (\S{1,400}) \([\d.]{1,12}s\)$")
_PACKAGE = re.compile(r"^(FAIL|ok  |---|\?   )\t(\S{1,400})(?:\t| \[)")
_STATUSES: dict[str, TestStatus] = {"FAIL": "failed", "PASS": "passed", "SKIP": "skipped"}


@marked(b"FAIL\t", b"ok  \t")
def go_text(output: CheckOutput) -> Found | None:
    """The package name follows its tests. A package without named tests is one result itself."""
    text = output.out_lines
    tests: list[TestResult] = []
    waiting: list[tuple[int, re.Match[str]]] = []
    for index, line in enumerate(text):
        if verdict := _VERDICT.match(line):
            waiting.append((index, verdict))
        elif package := _PACKAGE.match(line):
            tests.extend(_go_result(text, at, verdict, package[2]) for at, verdict in waiting)
            if package[1] == "FAIL" and not waiting:
                tests.append(TestResult(plain.name(package[2]), "error", None, None, plain.message(line)))
            if package[1] == "ok  " and not waiting and not line.endswith("[no tests to run]"):
                tests.append(TestResult(plain.name(package[2]), "passed"))
            waiting = []
    return Found.of(tests)


def _go_result(text: list[str], at: int, verdict: re.Match[str], package: str) -> TestResult:
    name, status = plain.name(f"{package}::{verdict[3]}"), _STATUSES[verdict[2]]
    if status == "passed":
        return TestResult(name, status)
    # With -v the output of a test precedes its verdict; otherwise it follows, indented deeper.
    indent = " " * (len(verdict[1]) + 4)
    below = list(
        takewhile(lambda line: line.startswith(indent) and not _VERDICT.match(line), text[at + 1 : at + 40])
    )
    near = text[max(0, at - 40) : at]
    run = next((n for n in reversed(range(len(near))) if near[n].startswith("=== RUN")), len(near))
    file, number, why = account(below or near[run + 1 :])
    return TestResult(name, status, file, number, plain.message(why) or None)
