"""Tests of Ruby: minitest and test-unit as text, RSpec as JSON."""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import document

_VERDICT = re.compile(r"^([A-Z][\w:]{0,200}#\S{1,200}) = [\d.]{1,12} s = ([.FES])$")
_STATUS: dict[str, TestStatus] = {".": "passed", "F": "failed", "E": "error", "S": "skipped"}
_FAILED = re.compile(r"^([A-Z][\w:]{0,200}#[^\s\[]{1,200})(?: \[([^\]\s]{1,300}?)(?::(\d{1,9}))?\])?:$")
_KIND = re.compile(r"^ {0,8}\d{1,7}\) (Failure|Error|Skipped):$")
_KINDS: dict[str, TestStatus] = {"Failure": "failed", "Error": "error", "Skipped": "skipped"}
_RUNS = re.compile(
    r"^(\d{1,7}) (?:runs|tests), \d{1,9} assertions, (\d{1,7}) failures, (\d{1,7}) errors, (?:(\d{1,7}) skips|(\d{1,7}) pendings, (\d{1,7}) omissions)"
)
_UNIT_CLASS = re.compile(r"^([A-Z][\w:]{0,200}): $")
_UNIT_VERDICT = re.compile(r"^ {2,40}(test\S{0,200}):\t{1,20}([.FEPON])")
_UNIT_STATUS: dict[str, TestStatus] = {".": "passed", "N": "passed", "F": "failed", "E": "error"}
_UNIT = re.compile(r"^(Failure|Error): (\S{1,200})\(([\w:]{1,200})\)")
_UNIT_PLACE = re.compile(r"^([^\s:]{1,300}\.rb):(\d{1,9}):in ")
_STORY_LINES = 40


@marked(b" assertions, ", where="text")
def minitest_text(output: CheckOutput) -> Found | None:
    """minitest names all tests with `-v`, otherwise only those that fail, as test-unit does."""
    text = output.out_lines
    sums = next((found for line in reversed(text) if (found := _RUNS.match(line))), None)
    if sums is None:
        return None
    stories = {**_stories(text), **_unit_stories(text)}
    named: dict[str, TestStatus] = {
        found[1]: _STATUS[found[2]] for line in text if (found := _VERDICT.match(line))
    }
    named.update(_unit_verdicts(text))
    told = {one.name: one for one in stories.values()}
    tests = [told.pop(name, TestResult(name, status)) for name, status in named.items()]
    tests += told.values()
    ran, bad, skipped = (
        int(sums[1]),
        int(sums[2]) + int(sums[3]),
        sum(map(int, filter(None, sums.groups()[3:]))),
    )
    listed = sum(test.status == "passed" for test in tests)
    return Found.of(tests, unlisted=max(0, ran - bad - skipped - listed))


def _stories(text: Sequence[str]) -> dict[str, TestResult]:
    """The failures of minitest: a name, perhaps with a place, after `1) Failure:`."""
    found: dict[str, TestResult] = {}
    for index, line in enumerate(text[1:], 1):
        kind, named = _KIND.match(text[index - 1]), _FAILED.match(line)
        if kind is None or named is None:
            continue
        said = list(takewhile(str.strip, text[index + 1 : index + _STORY_LINES]))
        place = plain.first_match(_UNIT_PLACE, [one.strip() for one in said])
        file, number = (named[2], named[3]) if named[2] else (place[1], place[2]) if place else (None, None)
        found[named[1]] = TestResult(
            plain.name(named[1]),
            _KINDS[kind[1]],
            plain.path(file) if file else None,
            plain.number(number),
            None if kind[1] == "Skipped" else plain.message("\n".join(said)),
        )
    return found


def _unit_verdicts(text: Sequence[str]) -> dict[str, TestStatus]:
    """What test-unit prints with `-v`: a class, and below it each test with a letter."""
    found: dict[str, TestStatus] = {}
    group = ""
    for line in text:
        if named := _UNIT_CLASS.match(line):
            group = named[1]
        elif group and (verdict := _UNIT_VERDICT.match(line)):
            found[f"{group}#{verdict[1]}"] = _UNIT_STATUS.get(verdict[2], "skipped")
    return found


def _unit_stories(text: Sequence[str]) -> dict[str, TestResult]:
    """The failures of test-unit: `Failure: test_adds(TestSum)`."""
    found: dict[str, TestResult] = {}
    for index, line in enumerate(text):
        if named := _UNIT.match(line):
            said = [
                line,
                *takewhile(lambda one: not one.startswith("====="), text[index + 1 : index + _STORY_LINES]),
            ]
            place = plain.first_match(_UNIT_PLACE, said)
            name = f"{named[3]}#{named[2]}"
            found[name] = TestResult(
                plain.name(name),
                "failed" if named[1] == "Failure" else "error",
                plain.path(place[1]) if place else None,
                plain.number(place[2]) if place else None,
                plain.message("\n".join(said)),
            )
    return found


class _Raised(msgspec.Struct, frozen=True):
    message: str = ""


class _Example(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="full_description")
    status: str
    file: str = msgspec.field(name="file_path", default="")
    line: int | None = msgspec.field(name="line_number", default=None)
    exception: _Raised | None = None


class _Report(msgspec.Struct, frozen=True):
    examples: list[_Example]


_RSPEC: dict[str, TestStatus] = {"passed": "passed", "failed": "failed", "pending": "skipped"}


@document(b'"full_description"', _Report)
def rspec_json(report: _Report) -> Iterator[TestResult]:
    """What `--format json` writes."""
    return (_example(one) for one in report.examples if one.status in _RSPEC)


def _example(one: _Example) -> TestResult:
    file = plain.path(one.file.removeprefix("./")) if one.file else None
    said = one.exception.message if one.exception else ""
    name = plain.name(f"{file}::{one.name}" if file else one.name)
    return TestResult(name, _RSPEC[one.status], file, one.line, plain.message(said) if said else None)
