"""Runs every parser on the output of one check, and merges and bounds the results."""

from collections.abc import Iterable

import msgspec

from cloister.core import limits
from cloister.core.diagnosis import Diagnosis, Diagnostic, TestResult, TestStatus
from cloister.core.text import bounded, decode, harmless
from cloister.feedback.api import CheckOutput, Found, Parser
from cloister.feedback.check_commands import directory_of, is_source
from cloister.feedback.not_run import why_not_run
from cloister.feedback.parsers.crash import absent_programs, stacks, tracebacks
from cloister.feedback.parsers.lint.compilers import builds, gcc_json, rust_json
from cloister.feedback.parsers.lint.javascript import (
    biome_json,
    biome_text,
    eslint_json,
    eslint_text,
    oxlint_json,
    oxlint_text,
)
from cloister.feedback.parsers.lint.location_text import bare_places, mentions, places
from cloister.feedback.parsers.lint.problem_matcher import matchers
from cloister.feedback.parsers.lint.python import mypy_json, pylint_json, pyright_json, ruff_json
from cloister.feedback.parsers.lint.sarif import sarif
from cloister.feedback.parsers.lint.shellcheck import shellcheck_json, shellcheck_text
from cloister.feedback.parsers.test_runners.c import ctest_text, unity_text
from cloister.feedback.parsers.test_runners.ctrf import ctrf
from cloister.feedback.parsers.test_runners.go import go_json, go_text
from cloister.feedback.parsers.test_runners.java import (
    console_text,
    gradle_errors,
    gradle_text,
    maven_errors,
    maven_text,
)
from cloister.feedback.parsers.test_runners.javascript import (
    jest_json,
    jest_text,
    mocha_json,
    mocha_text,
    node_spec,
    vitest_text,
)
from cloister.feedback.parsers.test_runners.junit import junit
from cloister.feedback.parsers.test_runners.python import pytest_text, unittest_text, with_other_sessions
from cloister.feedback.parsers.test_runners.ruby import minitest_text, rspec_json
from cloister.feedback.parsers.test_runners.rust import cargo_text
from cloister.feedback.parsers.test_runners.tap import tap

_TESTS: tuple[Parser, ...] = (
    junit,
    jest_json,
    mocha_json,
    ctrf,
    rspec_json,
    go_json,
    tap,
    node_spec,
    pytest_text,
    unittest_text,
    jest_text,
    vitest_text,
    mocha_text,
    go_text,
    cargo_text,
    ctest_text,
    minitest_text,
    maven_text,
    gradle_text,
    console_text,
    unity_text,
)
_DIAGNOSTICS: tuple[Parser, ...] = (
    sarif,
    ruff_json,
    mypy_json,
    pyright_json,
    pylint_json,
    eslint_json,
    biome_json,
    oxlint_json,
    shellcheck_json,
    gcc_json,
    rust_json,
    eslint_text,
    biome_text,
    oxlint_text,
    shellcheck_text,
    matchers,
    places,
    builds,
    maven_errors,
    gradle_errors,
    absent_programs,
    tracebacks,
    stacks,
    bare_places,
    mentions,
)
PARSERS: tuple[Parser, ...] = _TESTS + _DIAGNOSTICS
"""In order of trust: the first parser that finds tests decides about tests."""

REPEATS_TESTS: tuple[Parser, ...] = (absent_programs, tracebacks, stacks, bare_places, mentions)
"""In the output of failing tests, these parsers only find the same failures again."""

_TAIL_LINES = 40
_TAIL_CHARS = 4_000
_TAIL_BYTES = 65_536
_RANK: dict[TestStatus, int] = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}
_SEVERITIES = ("error", "warning", "note")


def diagnose(output: CheckOutput) -> Diagnosis:
    """Diagnose `output`. Never raises: output that no parser understands still has an exit status and a tail."""
    tested = Found()
    diagnostics: list[Diagnostic] = []
    some_fail = False
    directory = directory_of(output.command)
    for parser in PARSERS:
        if parser in REPEATS_TESTS and some_fail:
            continue
        if parser in _TESTS and (tested.tests or tested.unlisted):
            continue
        found = None if parser is mentions and diagnostics else parser(output)
        if found is None:
            continue
        if directory:
            found = _below(directory, found)
        if not tested.tests and not tested.unlisted:
            tested = with_other_sessions(output, found) if parser is junit else found
            some_fail = any(test.status in ("failed", "error") for test in found.tests)
        diagnostics.extend(found.diagnostics)
    tests, unlisted = _bounded_tests(_once_each(tested.tests))
    kept = _bounded_diagnostics(diagnostics)
    return Diagnosis(
        check=output.command,
        exit_code=output.exit_code,
        seconds=output.seconds,
        killed=output.killed,
        tests=tests,
        unlisted=tested.unlisted + unlisted,
        diagnostics=kept,
        tail=_tail(output),
        not_run=why_not_run(output, tests, tested.unlisted + unlisted, kept),
    )


def _below(directory: str, found: Found) -> Found:
    """`found` with files, and tests named after files, relative to the repository: the check ran in `directory`."""

    def path(file: str | None) -> str | None:
        inside = file and not file.startswith(("/", "<", f"{directory}/"))
        return f"{directory}/{file}" if inside else file

    def name(old: str) -> str:
        first = old.partition("::")[0].partition(" > ")[0]
        return f"{path(first)}{old[len(first) :]}" if is_source(first) else old

    change = msgspec.structs.replace
    tests = (change(test, file=path(test.file), name=name(test.name)) for test in found.tests)
    return change(
        found,
        tests=tuple(tests),
        diagnostics=tuple(change(one, file=path(one.file)) for one in found.diagnostics),
    )


def _once_each(tests: Iterable[TestResult]) -> list[TestResult]:
    """Keep the worst result of each name: a test that failed in its teardown is reported twice."""
    worst: dict[str, TestResult] = {}
    for test in tests:
        before = worst.get(test.name)
        if before is None or _RANK[test.status] > _RANK[before.status]:
            worst[test.name] = test
    return list(worst.values())


def _bounded_tests(tests: list[TestResult]) -> tuple[tuple[TestResult, ...], int]:
    """As many tests as an event can hold, failing ones first, and the number of passing ones left out."""
    kept: list[TestResult] = []
    unlisted = 0
    room = limits.DIAGNOSIS_BYTES * 4 // 5
    for test in sorted(tests, key=lambda test: -_RANK[test.status]):
        if len(kept) == limits.TESTS_KEPT:
            unlisted += test.status == "passed"
            continue
        size = len(msgspec.json.encode(test)) + 1
        if test.message is not None and size > room:
            test = msgspec.structs.replace(test, message=None)
            size = len(msgspec.json.encode(test)) + 1
        if size <= room:
            kept.append(test)
            room -= size
        else:
            unlisted += test.status == "passed"
    return tuple(kept), unlisted


def _bounded_diagnostics(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each diagnostic once, errors first, as many as an event can hold."""
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
