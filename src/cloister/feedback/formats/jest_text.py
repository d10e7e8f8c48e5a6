"""What jest prints."""

import re
from collections.abc import Sequence
from itertools import pairwise

from cloister.core.diagnosis import TestResult
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.jest_json import title, where

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
