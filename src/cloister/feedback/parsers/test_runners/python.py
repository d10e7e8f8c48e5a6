"""Python test runners, as text: pytest (used if it wrote no JUnit file) and unittest."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from textwrap import dedent

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.crash import traces

_END = re.compile(
    r"^(?:=+ )?((?:\d{1,9} (?:subtests )?[a-z]{1,20}(?:, )?){1,12}) in \d[\d.]{0,15}s(?: \([\w:, ]{1,40}\))?(?: =+)?$"
)
_COUNT = re.compile(r"(\d{1,9}) ([a-z]+)")
_SUMMARY = re.compile(r"^=+ short test summary info =+$")
_WORD = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?= |$)")
_AFTER_WORD = re.compile(r"^(?: \(.*\))? *(?:\[ *\d{1,3}%\])?$")
_WORKER = re.compile(r"^\[gw\d{1,4}\] (?:\[ *\d{1,3}%\] )?([A-Z]+) (\S.*)$")
_PART = re.compile(r"^SUBFAILED(?:[\[(].{0,900}?[\])])? (?=\S{1,300}::)")
_PLACE = re.compile(r"^([^\s:]{1,300}):(\d{1,9}):(?: |$)")
_AT = re.compile(r"^ERROR (?:at (?:setup|teardown) of|collecting) ")
_WORDS = 8
"""Words of a line that may be its verdict."""
_STATUSES: dict[str, TestStatus] = {
    "PASSED": "passed",
    "XPASS": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "skipped",
}


class _Section(msgspec.Struct):
    """The detailed report of one failure."""

    title: str
    is_error: bool
    file: str | None = None
    line: int | None = None
    reasons: list[str] = []


def pytest_text(output: CheckOutput) -> Found | None:
    """Failing tests by name; passing ones by name if pytest was verbose, else as a count."""
    text = output.out_lines
    counts = _counts(text)
    sections = _sections(text)
    tests: dict[str, TestResult] = {}
    for status, name, said in [*_verbose(text), *_summary(text)]:
        if status in ("failed", "error"):
            section = _section_of(name, sections)
            tests[name] = _failing(status, name, said, section)
        else:
            tests.setdefault(name, TestResult(name, status))
    if counts and not any(test.status in ("failed", "error") for test in tests.values()):
        for section in sections:
            name = plain.name(section.title)
            tests[name] = _failing("error" if section.is_error else "failed", name, "", section)
    named = sum(test.status == "passed" for test in tests.values())
    unlisted = max(0, counts.get("passed", 0) + counts.get("xpassed", 0) - named)
    return Found.of(tests.values(), unlisted=unlisted)


def _counts(text: Sequence[str]) -> Counter[str]:
    """The counts in the last lines of all sessions."""
    counts: Counter[str] = Counter()
    for line in text:
        if end := _END.match(line):
            counts.update({word: int(number) for number, word in _COUNT.findall(end[1])})
    return counts


def with_other_sessions(output: CheckOutput, report: Found) -> Found:
    """`report` and the other sessions of pytest in the same check: each session replaces the report of the one before."""
    if sum(_END.match(line) is not None for line in output.out_lines) < 2:
        return report
    told = pytest_text(output) or Found()
    known = {test.name for test in report.tests}
    tests = (*report.tests, *(test for test in told.tests if test.name not in known))
    named = sum(test.status == "passed" for test in tests)
    passed = told.unlisted + sum(test.status == "passed" for test in told.tests)
    return Found(tests, unlisted=max(report.unlisted, passed - named), diagnostics=report.diagnostics)


def _verbose(text: Sequence[str]) -> Iterator[tuple[TestStatus, str, str]]:
    """Lines such as `tests/test_x.py::test_y PASSED [ 50%]`."""
    for line in text:
        if "::" not in line:
            continue
        worker = _WORKER.match(line) if line.startswith("[gw") else None
        if worker and worker[1] in _STATUSES and _is_node(worker[2]):
            yield _STATUSES[worker[1]], plain.name(worker[2]), ""
            continue
        for word in islice(_WORD.finditer(line), _WORDS):
            if _AFTER_WORD.match(line[word.end() :]) and _is_node(line[: word.start()]):
                yield _STATUSES[word[1]], plain.name(line[: word.start()]), ""
                break


def _verdict(line: str) -> tuple[str, str]:
    """The first word and the rest. A failed subtest counts as its test."""
    if part := _PART.match(line):
        return "FAILED", line[part.end() :]
    word, _, rest = line.partition(" ")
    return word, rest


def _summary(text: Sequence[str]) -> Iterator[tuple[TestStatus, str, str]]:
    """Lines such as `FAILED tests/test_x.py::test_y - reason` below their headline."""
    below = False
    for line in text:
        if _SUMMARY.match(line):
            below = True
        elif below and (line.startswith("===") or _END.match(line)):
            below = False
        elif below:
            word, rest = _verdict(line)
            if word in _STATUSES and word != "SKIPPED" and rest:
                name, said = _split(rest)
                yield _STATUSES[word], plain.name(name), said


def _is_node(text: str) -> bool:
    file, colons, rest = text.partition("::")
    return bool(colons and rest) and " " not in file and ("." in file or "/" in file)


def _split(text: str) -> tuple[str, str]:
    """Node id and reason. A parameter in brackets can contain ` - `."""
    at = text.find(" - ")
    while at >= 0:
        name = text[:at]
        if "[" not in name or name.endswith("]"):
            return name, text[at + 3 :]
        at = text.find("] - ", at + 1)
        at = at + 1 if at >= 0 else -1
    return text, ""


def _sections(text: Sequence[str]) -> list[_Section]:
    found: list[_Section] = []
    current: _Section | None = None
    for line in text:
        if title := _title(line):
            is_error = _AT.match(title) is not None
            current = _Section(_AT.sub("", title), is_error, reasons=[])
            found.append(current)
        elif line.startswith("===") and line.endswith("==="):
            current = None
        elif current is not None:
            _read(line, current)
    return found


def _title(line: str) -> str:
    """`____ title ____` → title; empty for the dashed rule between frames."""
    if not (line.startswith("_") and line.endswith("_")):
        return ""
    left, _, rest = line.partition(" ")
    middle, _, right = rest.rpartition(" ")
    if not middle.strip("_ ") or left.strip("_") or right.strip("_"):
        return ""
    return middle


def _read(line: str, section: _Section) -> None:
    if line.startswith("E  "):
        section.reasons.append(line[1:].rstrip())
    elif (place := _PLACE.match(line)) and not plain.is_foreign(place[1]):
        section.file, section.line = plain.path(place[1]), plain.number(place[2])


def _section_of(name: str, sections: Sequence[_Section]) -> _Section | None:
    file, _, inner = name.partition("::")
    title = inner.replace("::", ".") if inner else file
    same = [section for section in sections if section.title == title]
    in_file = [section for section in same if section.file == file]
    return next(iter(in_file or same), None)


def _failing(status: TestStatus, name: str, said: str, section: _Section | None) -> TestResult:
    file = name.partition("::")[0] if "::" in name or name.endswith(".py") else None
    if section is None:
        return TestResult(name, status, file, None, plain.message(said) or None)
    why = plain.message(dedent("\n".join(section.reasons))) or plain.message(said) or None
    return TestResult(name, status, section.file or file, section.line, why)


# unittest, and runners built on it

_RAN = re.compile(r"^Ran (\d{1,9}) tests? in \d[\d.]{0,15}s$")
_NAMED = re.compile(r"^([^\s()]{1,300}) \(([\w.<>]{1,600})\)(.*)$")
_RULE = "=" * 70
_THIN_RULE = "-" * 70
_HEADLINES: dict[str, TestStatus] = {"FAIL": "failed", "ERROR": "error", "UNEXPECTED SUCCESS": "failed"}
_COUNTS = re.compile(r"(skipped|expected failures)=(\d{1,9})")
_FIXTURES = ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule")


@marked(b"Ran ", where="text")
def unittest_text(output: CheckOutput) -> Found | None:
    """Failing tests by name; the others by name if the runner was verbose, else as a count."""
    for text in (output.err_lines, output.out_lines):
        ends = [index for index, line in enumerate(text) if _RAN.match(line)]
        if ends:
            return _found(text, ends[-1])
    return None


def _found(text: Sequence[str], end: int) -> Found | None:
    ran = _RAN.match(text[end])
    total = int(ran[1]) if ran else 0
    left_out = sum(int(count) for line in text[end + 1 : end + 4] for _, count in _COUNTS.findall(line))
    tests = {test.name: test for test in _unittest_verbose(text[:end])}
    for test in _unittest_failing(text[:end]):
        if test.name not in tests or tests[test.name].status not in ("failed", "error") or test.message:
            tests[test.name] = test
    counted = [test for test in tests.values() if not test.name.endswith(_FIXTURES)]
    named = sum(test.status != "skipped" for test in counted)
    unlisted = max(0, total - left_out - named)
    return Found.of(tests.values(), unlisted=unlisted)


def _name(text: str) -> tuple[str, str] | None:
    """The name of the test in `test_x (pkg.Class.test_x) (i=1)`, and the text after it."""
    named = _NAMED.match(text)
    if named is None:
        return None
    short, owner = named[1], named[2].removesuffix("." + named[1])
    if owner.endswith("_FailedTest"):
        return plain.name(short), named[3]
    return plain.name(f"{owner}::{short}"), named[3]


def _unittest_verbose(text: Sequence[str]) -> Iterator[TestResult]:
    """Lines such as `test_x (pkg.Class.test_x) ... ok`; a docstring moves the verdict one line down."""
    for index, line in enumerate(text):
        said, dots, verdict = line.rpartition(" ... ")
        status = _unittest_verdict(verdict)
        if not dots or status is None or said.startswith(" "):
            continue
        named = _name(said) or (_name(text[index - 1]) if index else None)
        if named:
            yield TestResult(named[0], status)


def _unittest_verdict(word: str) -> TestStatus | None:
    if word == "ok":
        return "passed"
    if word in ("FAIL", "ERROR", "unexpected success"):
        return "error" if word == "ERROR" else "failed"
    return "skipped" if word.startswith("skipped") or word == "expected failure" else None


def _unittest_failing(text: Sequence[str]) -> Iterator[TestResult]:
    """The detailed report of each failure; only the first of several failed subtests."""
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
