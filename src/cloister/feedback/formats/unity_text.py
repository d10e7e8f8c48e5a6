"""What tests in C print that use Unity: `file:line:test:VERDICT`, and a sum at the end."""

import re

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found

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
