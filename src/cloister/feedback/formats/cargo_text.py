"""What `cargo test` prints: the test harness of Rust."""

import re
from itertools import pairwise

from cloister.core.diagnosis import TestResult, TestStatus
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found

_VERDICT = re.compile(r"^test (\S.{0,400}?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:, .{0,200})?$")
_HEAD = re.compile(r"^---- (.{1,400}) stdout ----$")
_PANIC = re.compile(r"^thread '.{0,400}' (?:\(\d{1,20}\) )?panicked at ([^\s:]{1,300}):(\d{1,9}):(\d{1,9}):$")
_STATUSES: dict[str, TestStatus] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
_ENDS = ("stack backtrace:", "note: run with `RUST_BACKTRACE", "note: Some details are omitted")


def cargo_text(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    if b"\ntest result: " not in output.out:
        return None
    text = output.out_lines
    stories = _stories(text)
    tests: list[TestResult] = []
    for line in text:
        verdict = _VERDICT.match(line)
        if verdict is None:
            continue
        name, status = plain.name(verdict[1]), _STATUSES[verdict[2]]
        file, number, why = stories.get(name, (None, None, None))
        tests.append(TestResult(name, status, file, number, why if status == "failed" else None))
    return Found(tests=tuple(tests)) if tests else None


def _stories(text: list[str]) -> dict[str, tuple[str | None, int | None, str | None]]:
    """What each failing test printed, by name."""
    found: dict[str, tuple[str | None, int | None, str | None]] = {}
    heads = [index for index, line in enumerate(text) if line.startswith("---- ")]
    for start, stop in pairwise([*heads, len(text)]):
        head = _HEAD.match(text[start])
        if head is None:
            continue
        file, number, said = None, None, list[str]()
        for line in text[start + 1 : min(stop, start + 100)]:
            if panic := _PANIC.match(line):
                file, number = plain.path(panic[1]), plain.number(panic[2])
            elif line.startswith(_ENDS) or line == "failures:":
                break
            else:
                said.append(line)
        found[plain.name(head[1])] = (file, number, plain.message("\n".join(said).strip()) or None)
    return found
