"""What `node --test` prints for people."""

import re
from collections.abc import Sequence

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.tests.jest import where

_POINT = re.compile(r"^( {0,80})([✖✔﹣]) (.{1,600}?) \(\d[\d.]{0,20}ms\)(?: # .{0,200})?$")
_SUITE = re.compile(r"^( {0,80})▶ (.{1,600})$")
_STATUSES: dict[str, TestStatus] = {"✖": "failed", "✔": "passed", "﹣": "skipped"}
_END = "✖ failing tests:"


def node_spec(output: CheckOutput) -> Found | None:
    """A `Parser`. A suite ends with a verdict of its own that only sums up its tests."""
    if "ℹ tests ".encode() not in output.out:
        return None
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
            tests.append(_result(point, titles, text[index + 1 : min(end, index + 80)]))
    return Found(tests=tuple(tests)) if tests else None


def _result(point: re.Match[str], titles: list[str], below: Sequence[str]) -> TestResult:
    name = plain.name(" > ".join([*titles[-40:], point[3]]))
    status = _STATUSES[point[2]]
    if status != "failed":
        return TestResult(name, status)
    story: list[str] = []
    for line in below:
        if _POINT.match(line) or _SUITE.match(line) or line.startswith("ℹ "):
            break
        story.append(line)
    file, number = where(story, "")
    said = [line.strip() for line in story if not line.lstrip().startswith("at ")]
    return TestResult(name, status, file or None, number, plain.message("\n".join(said).strip()) or None)
