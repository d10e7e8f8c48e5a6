"""What CTest prints."""

import re
from collections.abc import Sequence

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain

_LINE = re.compile(r"^ *\d{1,9}/\d{1,9} Test +#\d{1,9}: (\S.*) [\d.]{1,12} sec *$")
_PLACE = re.compile(r"^ *([^\s:()]{1,300}):(\d{1,9}):")


def ctest_text(output: CheckOutput) -> Found | None:
    """A `Parser`. With `--output-on-failure` what a test printed stands below it."""
    if b" Test " not in output.out or b" sec" not in output.out:
        return None
    text = output.out_lines
    tests: list[TestResult] = []
    for index, line in enumerate(text):
        if verdict := _LINE.match(line):
            tests.append(_result(verdict, text[index + 1 : index + 60]))
    return Found(tests=tuple(tests)) if tests else None


def _result(verdict: re.Match[str], below: Sequence[str]) -> TestResult:
    name, word, status = _read(verdict[1])
    if status in ("passed", "skipped"):
        return TestResult(name, status)
    story: list[str] = []
    for line in below:
        if _LINE.match(line) or line.lstrip().startswith("Start ") or "% tests passed" in line:
            break
        story.append(line)
    place = next((found for line in story if (found := _PLACE.match(line))), None)
    file, number = (plain.path(place[1]), plain.number(place[2])) if place else (None, None)
    said = "\n".join([word, *story]).strip()
    return TestResult(name, status, file, number, plain.message(said))


def _read(said: str) -> tuple[str, str, TestStatus]:
    """Name, verdict and status out of `name ......***Failed` and `name ......   Passed`."""
    left, stars, word = said.rpartition("***")
    if not stars:
        left, _, word = said.rstrip().rpartition(" ")
    name, word = plain.name(left.rstrip(" .")), word.strip()
    if not stars:
        return name, word, "passed" if word == "Passed" else "skipped"
    if "Disabled" in word or word.startswith("Skipped"):
        return name, word, "skipped"
    return name, word, "error" if word.startswith(("Not Run", "Exception", "Timeout")) else "failed"


# What tests in C print that use Unity: `file:line:test:VERDICT`, and a sum at the end.


_VERDICT = re.compile(
    r"^([^\s:]{1,300}):(\d{1,9}):([A-Za-z_]\w{0,300}(?:\([^)]{0,200}\))?):(PASS|FAIL|IGNORE)(?:: (.*))?$"
)
_STATUSES: dict[str, TestStatus] = {"PASS": "passed", "FAIL": "failed", "IGNORE": "skipped"}


def unity_text(output: CheckOutput) -> Found | None:
    """A `Parser`. The sum may be missing: a test that crashes takes its process with it."""
    if not any(word in output.out for word in (b":PASS", b":FAIL", b":IGNORE")):
        return None
    tests: list[TestResult] = []
    for line in output.out_lines:
        if verdict := _VERDICT.match(line):
            file, status = plain.path(verdict[1]), _STATUSES[verdict[4]]
            at = plain.number(verdict[2]) if status == "failed" else None
            why = plain.message(verdict[5] or "") if status == "failed" else None
            tests.append(TestResult(plain.name(f"{file}::{verdict[3]}"), status, file, at, why or None))
    return Found(tests=tuple(tests)) if tests else None
