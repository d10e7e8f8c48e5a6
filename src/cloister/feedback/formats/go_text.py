"""What `go test` prints without `-json`."""

import re

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.go_json import account

_VERDICT = re.compile(r"^( {0,80})--- (FAIL|PASS|SKIP): (\S{1,400}) \([\d.]{1,12}s\)$")
_PACKAGE = re.compile(r"^(FAIL|ok  |---|\?   )\t(\S{1,400})(?:\t| \[)")
_STATUSES: dict[str, TestStatus] = {"FAIL": "failed", "PASS": "passed", "SKIP": "skipped"}


def go_text(output: CheckOutput) -> Found | None:
    """A `Parser`. The package is named below its tests; one without any by name stands for them."""
    if b"FAIL\t" not in output.out and b"ok  \t" not in output.out:
        return None
    text = output.out_lines
    tests: list[TestResult] = []
    waiting: list[tuple[int, re.Match[str]]] = []
    for index, line in enumerate(text):
        if verdict := _VERDICT.match(line):
            waiting.append((index, verdict))
        elif package := _PACKAGE.match(line):
            tests.extend(_result(text, at, verdict, package[2]) for at, verdict in waiting)
            if package[1] == "FAIL" and not waiting:
                tests.append(TestResult(plain.name(package[2]), "error", None, None, plain.message(line)))
            if package[1] == "ok  " and not waiting and not line.endswith("[no tests to run]"):
                tests.append(TestResult(plain.name(package[2]), "passed"))
            waiting = []
    return Found(tests=tuple(tests)) if tests else None


def _result(text: list[str], at: int, verdict: re.Match[str], package: str) -> TestResult:
    name, status = plain.name(f"{package}::{verdict[3]}"), _STATUSES[verdict[2]]
    if status == "passed":
        return TestResult(name, status)
    # Verbosely a test's own words stand above its verdict, otherwise below it and deeper.
    depth = len(verdict[1]) + 4
    below: list[str] = []
    for line in text[at + 1 : at + 40]:
        if _VERDICT.match(line) or not line.startswith(" " * depth):
            break
        below.append(line)
    near = text[max(0, at - 40) : at]
    run = next((n for n in reversed(range(len(near))) if near[n].startswith("=== RUN")), len(near))
    file, number, why = account(below or near[run + 1 :])
    return TestResult(name, status, file, number, plain.message(why) or None)
