"""Tests of C and C++, as text: CTest and Unity."""

import re
from collections.abc import Sequence
from itertools import takewhile

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain

_LINE = re.compile(r"^ *\d{1,9}/\d{1,9} Test +#\d{1,9}: (\S.*) [\d.]{1,12} sec *$")
_ENDS = re.compile(rf"{_LINE.pattern}|^\s*Start |.*% tests passed")
_STORY_LINES = 400
_PLACE = re.compile(r"^ *([^\s:()]{1,300}):(\d{1,9}):")


@marked(b" sec")
def ctest_text(output: CheckOutput) -> Found | None:
    """With `--output-on-failure` the output of a test follows its verdict."""
    text = output.out_lines
    return Found.of(
        _result(verdict, text[index + 1 : index + _STORY_LINES])
        for index, line in enumerate(text)
        if (verdict := _LINE.match(line))
    )


def _result(verdict: re.Match[str], below: Sequence[str]) -> TestResult:
    name, word, status = _read(verdict[1])
    if status in ("passed", "skipped"):
        return TestResult(name, status)
    story = list(takewhile(lambda line: not _ENDS.match(line), below))
    place = plain.first_match(_PLACE, story)
    file, number = (plain.path(place[1]), plain.number(place[2])) if place else (None, None)
    said = "\n".join([word, *story]).strip()
    return TestResult(name, status, file, number, plain.message(said))


def _read(said: str) -> tuple[str, str, TestStatus]:
    """Name, verdict and status from `name ......***Failed` or `name ......   Passed`."""
    left, stars, word = said.rpartition("***")
    if not stars:
        left, _, word = said.rstrip().rpartition(" ")
    name, word = plain.name(left.rstrip(" .")), word.strip()
    if not stars:
        return name, word, "passed" if word == "Passed" else "skipped"
    if "Disabled" in word or word.startswith("Skipped"):
        return name, word, "skipped"
    return name, word, "error" if word.startswith(("Not Run", "Exception", "Timeout")) else "failed"


# Unity: `file:line:test:VERDICT`

_VERDICT = re.compile(
    r"^([^\s:]{1,300}):(\d{1,9}):([A-Za-z_]\w{0,300}(?:\([^)]{0,200}\))?):(PASS|FAIL|IGNORE)(?:: (.*))?$"
)
_STATUSES: dict[str, TestStatus] = {"PASS": "passed", "FAIL": "failed", "IGNORE": "skipped"}


@marked(b":PASS", b":FAIL", b":IGNORE")
def unity_text(output: CheckOutput) -> Found | None:
    """Do not rely on the totals at the end: a test that crashes ends the whole process."""
    tests: list[TestResult] = []
    for line in output.out_lines:
        if verdict := _VERDICT.match(line):
            file, status = plain.path(verdict[1]), _STATUSES[verdict[4]]
            at = plain.number(verdict[2]) if status == "failed" else None
            why = plain.message(verdict[5] or "") if status == "failed" else None
            tests.append(TestResult(plain.name(f"{file}::{verdict[3]}"), status, file, at, why or None))
    return Found.of(tests)
