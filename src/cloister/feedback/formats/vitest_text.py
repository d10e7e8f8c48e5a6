"""What vitest prints."""

import re
from collections.abc import Sequence
from itertools import pairwise

from cloister.core.diagnosis import TestResult
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.jest_json import title, where

_COUNTS = re.compile(r"^ {2,8}Tests {2}(.{1,200}?)(?: \(\d{1,9}\))?$")
_COUNT = re.compile(r"(\d{1,9}) (failed|passed|skipped|todo)")
_HEAD = re.compile(r"^ FAIL {2}(?:\|[^|]{1,60}\| )?([^\s>\[]{1,300})(?: > (.{1,600})| \[ .{1,300} \])?$")
_RULE = "⎯⎯⎯⎯"


def vitest_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by name, the others by number."""
    if b" Test Files " not in output.out:
        return None
    counted = [found for line in output.out_lines if (found := _COUNTS.match(line))]
    numbers = _COUNT.findall(counted[-1][1]) if counted else []
    passed = sum(int(number) for number, word in numbers if word == "passed")
    tests: dict[str, TestResult] = {}
    for text in (output.err_lines, output.out_lines):
        starts = [index for index, line in enumerate(text) if line.startswith(" FAIL  ")]
        for start, stop in pairwise([*starts, len(text)]):
            if head := _HEAD.match(text[start]):
                test = _failing(head[1], head[2], text[start + 1 : min(stop, start + 200)])
                tests.setdefault(test.name, test)
    return Found(tests=tuple(tests.values()), unlisted=passed) if tests or passed else None


def _failing(file: str, titles: str | None, text: Sequence[str]) -> TestResult:
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
