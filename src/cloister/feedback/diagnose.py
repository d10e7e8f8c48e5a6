"""One check's output, understood: every parser is asked, and what they found is merged and bounded."""

from collections.abc import Iterable

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Diagnosis, Diagnostic, TestResult, TestStatus
from cloister.core.text import bounded, decode, harmless
from cloister.feedback.api import CheckOutput, Found, Parser
from cloister.feedback.junit import junit
from cloister.feedback.places import bare_places, places
from cloister.feedback.pytest_text import pytest_text
from cloister.feedback.traceback import tracebacks
from cloister.feedback.unittest_text import unittest_text

PARSERS: tuple[Parser, ...] = (junit, pytest_text, unittest_text, places, tracebacks, bare_places)
"""In order of trust: the first that understands tests is believed about tests."""

TELLS_OF_TESTS: tuple[Parser, ...] = (tracebacks, bare_places)
"""What these find in the output of failing tests is those failures over again."""

_TAIL_LINES = 40
_TAIL_CHARS = 4_000
_TAIL_BYTES = 65_536
_RANK: dict[TestStatus, int] = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}
_SEVERITIES = ("error", "warning", "note")


def diagnose(output: CheckOutput) -> Diagnosis:
    """What `output` says. Never raises: what nobody understands is still an exit status and a tail."""
    tested = Found()
    diagnostics: list[Diagnostic] = []
    for parser in PARSERS:
        if parser in TELLS_OF_TESTS and any(test.status in ("failed", "error") for test in tested.tests):
            continue
        found = parser(output)
        if found is None:
            continue
        if not tested.tests and not tested.unlisted:
            tested = found
        diagnostics.extend(found.diagnostics)
    tests, unlisted = _bounded_tests(_once_each(tested.tests))
    return Diagnosis(
        check=output.command,
        exit_code=output.exit_code,
        seconds=output.seconds,
        killed=output.killed,
        tests=tests,
        unlisted=tested.unlisted + unlisted,
        diagnostics=_bounded_diagnostics(diagnostics),
        tail=_tail(output),
    )


def _once_each(tests: Iterable[TestResult]) -> list[TestResult]:
    """One result per name, the worst: a test that failed in its teardown is reported twice."""
    worst: dict[str, TestResult] = {}
    for test in tests:
        before = worst.get(test.name)
        if before is None or _RANK[test.status] > _RANK[before.status]:
            worst[test.name] = test
    return list(worst.values())


def _bounded_tests(tests: list[TestResult]) -> tuple[tuple[TestResult, ...], int]:
    """As many as an event can hold, failing ones first, and how many passing ones only count."""
    kept: list[TestResult] = []
    unlisted = 0
    room = limits.DIAGNOSIS_BYTES * 4 // 5
    for test in sorted(tests, key=lambda test: -_RANK[test.status]):
        size = len(msgspec.json.encode(test)) + 1
        if test.message is not None and size > room:
            test = msgspec.structs.replace(test, message=None)
            size = len(msgspec.json.encode(test)) + 1
        if len(kept) < limits.TESTS_KEPT and size <= room:
            kept.append(test)
            room -= size
        else:
            unlisted += test.status == "passed"
    return tuple(kept), unlisted


def _bounded_diagnostics(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each complaint once, errors first."""
    once: dict[object, Diagnostic] = {}
    for diagnostic in found:
        once.setdefault((diagnostic.file, diagnostic.line, diagnostic.column, diagnostic.message), diagnostic)
    kept: list[Diagnostic] = []
    room = limits.DIAGNOSIS_BYTES // 5
    for diagnostic in sorted(once.values(), key=lambda d: _SEVERITIES.index(d.severity)):
        room -= len(msgspec.json.encode(diagnostic)) + 1
        if room < 0 or len(kept) == limits.DIAGNOSTICS_KEPT:
            break
        kept.append(diagnostic)
    return tuple(kept)


def _tail(output: CheckOutput) -> str:
    streams = [stream for stream in (output.out, output.err) if stream.strip()]
    parts: list[str] = []
    for stream in streams:
        text = harmless(decode(stream[-_TAIL_BYTES:])).strip("\n").split("\n")
        last = "\n".join(text[-_TAIL_LINES // len(streams) :])
        parts.append(bounded(last, _TAIL_CHARS // len(streams)))
    return "\n".join(parts)
