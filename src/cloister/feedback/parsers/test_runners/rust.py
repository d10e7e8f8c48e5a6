"""Rust: `cargo test`, as text."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain

_VERDICT = re.compile(
    r"^test (\S.{0,400}?)(?: - (?:should panic|compile(?: fail)?))? \.\.\. (ok|FAILED|ignored)(?:, .{0,200})?$"
)
_HEAD = re.compile(r"^---- (.{1,400}) stdout ----$")
_PASSED = re.compile(r"^test result: \w{1,10}\. (\d{1,9}) passed; ")
_OLD_PANIC = re.compile(r"^thread '.{0,400}' panicked at '(.{0,2000})', ([^\s:']{1,300}):(\d{1,9}):\d{1,9}$")
_OLD_END = re.compile(r"^(.{0,2000})', ([^\s:']{1,300}\.rs):(\d{1,9}):\d{1,9}$")
"""The format before Rust 1.73. This is the last line of a message that can have several."""
_PANIC = re.compile(r"^thread '.{0,400}' (?:\(\d{1,20}\) )?panicked at ([^\s:]{1,300}):(\d{1,9}):(\d{1,9}):$")
_CALM = re.compile(r"^note: (test did not panic as expected) at ([^\s:]{1,300}):(\d{1,9}):\d{1,9}$")
_IN_DOCUMENTATION = re.compile(r"^(\S{1,300}\.rs)( - .{0,300}|) (?:- )?\(line (\d{1,9})\)$")
_STATUSES: dict[str, TestStatus] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
_ENDS = ("stack backtrace:", "note: run with `RUST_BACKTRACE")
_WHY = "note: panic did not contain expected string"


class _Story(msgspec.Struct, frozen=True):
    """The output of a failing test."""

    file: str | None = None
    line: int | None = None
    why: str | None = None


@marked(b"\ntest result: ")
def cargo_text(output: CheckOutput) -> Found | None:
    """With `-q` cargo names only the failing tests and counts the others."""
    text = output.out_lines
    stories = _stories(text)
    verdicts = [found for line in text if line.startswith("test ") and (found := _VERDICT.match(line))]
    names = _lasting(verdict[1] for verdict in verdicts)
    tests: list[TestResult] = []
    for verdict in verdicts:
        name, status = plain.name(names.get(verdict[1], verdict[1])), _STATUSES[verdict[2]]
        story = stories.get(verdict[1], _Story())
        if status == "failed" and (place := _IN_DOCUMENTATION.match(verdict[1])):
            # The line of the panic is in a generated program; use the line of the example.
            file, number = plain.path(place[1]), plain.number(place[3])
        else:
            file, number = story.file, story.line
        tests.append(TestResult(name, status, file, number, story.why if status == "failed" else None))
    if not tests:
        return _quiet(text, stories)
    return Found.of(tests)


def _quiet(text: Sequence[str], stories: dict[str, _Story]) -> Found | None:
    names = _lasting(stories)
    tests = [
        TestResult(plain.name(names.get(name, name)), "failed", story.file, story.line, story.why)
        for name, story in stories.items()
    ]
    passed = sum(int(found[1]) for line in text if (found := _PASSED.match(line)))
    return Found.of(tests, unlisted=passed)


def _lasting(names: Iterable[str]) -> dict[str, str]:
    """Stable names for tests in documentation: their number instead of their line, which an edit above changes."""
    places: dict[str, dict[int, str]] = {}
    for name in names:
        if found := _IN_DOCUMENTATION.match(name):
            places.setdefault(found[1] + found[2], {})[int(found[3])] = name
    return {
        told[line]: owner if number == 1 else f"{owner} ({number})"
        for owner, told in places.items()
        for number, line in enumerate(sorted(told), 1)
    }


def _stories(text: Sequence[str]) -> dict[str, _Story]:
    """By name."""
    heads = [index for index, line in enumerate(text) if line.startswith("---- ")]
    return {
        head[1]: _story(text[start + 1 : min(stop, start + 100)])
        for start, stop in pairwise([*heads, len(text)])
        if (head := _HEAD.match(text[start]))
    }


def _story(text: Sequence[str]) -> _Story:
    file, number, said, tracing = None, None, list[str](), False
    for line in text:
        if panic := _PANIC.match(line):
            file, number = plain.path(panic[1]), plain.number(panic[2])
        elif (old := _OLD_PANIC.match(line)) or (old := _OLD_END.match(line)):
            file, number = plain.path(old[2]), plain.number(old[3])
            said.append(old[1])
        elif line.startswith("thread '") and " panicked at '" in line:
            said.append(line.partition(" panicked at '")[2])
        elif calm := _CALM.match(line):
            file, number = plain.path(calm[2]), plain.number(calm[3])
            said.append(calm[1])
        elif line == "failures:":
            break
        elif line.startswith(_WHY):
            tracing = False
            said.append(line.removeprefix("note: "))
        elif line.startswith(_ENDS):
            tracing = True
        elif not tracing:
            said.append(line)
    return _Story(file, number, plain.message("\n".join(said).strip()) or None)
