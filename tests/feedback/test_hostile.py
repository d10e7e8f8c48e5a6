"""Output that somebody wrote to hurt: no parser hangs, raises or takes more than linear time."""

import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.feedback.captures import files

from cloister.feedback.api import CheckOutput, Parser
from cloister.feedback.diagnose import PARSERS, diagnose

SIZE = 100_000
LARGE = 10_000_000
SECONDS = 3.0
"""Processor time for one hostile output of `SIZE`; what is quadratic takes minutes."""

# Every needle that makes some parser look closer, and what would make a careless expression backtrack.
SEEDS: tuple[bytes, ...] = (
    b"a" * 50,
    b" " * 50,
    b"\n",
    b"\xff\xfe\x00\n",
    b"\x1b]0;\x1b[31m",
    b"a.c:1:1: error: e [-Wx]\n",
    b" --> a.rs:1:1\n",
    b"1/1 Test #1: a . . . .***Failed 0.1 sec\n",
    b"1/1 Test #1: " + b". " * 40,
    b"  1:1  error  a" + b"  " * 40 + b"\n\xe2\x9c\x96 1 problem (",
    b"--- FAIL: T (0.0s)\n    a_test.go:1: x\nFAIL\tp\t0.1s\nok  \tp\t1s\n",
    b"=== RUN   T\n",
    b"test a ... FAILED\n\ntest result: \n---- a stdout ----\nthread 'a' panicked at a.rs:1:1:\n",
    b"test a.rs - b (line 1) ... FAILED\n\ntest result: \n---- a.rs - b (line 1) stdout ----\n",
    b"Tests: 1 failed, 1 passed, 2 total\nFAIL a.js\n  \xe2\x97\x8f a \xe2\x80\xba b\n    at x (a.js:1:1)\n",
    b" Test Files \n      Tests  1 failed (1)\n FAIL  a.js > b\n \xe2\x9d\xaf a.js:1:1\n",
    b"  1 passing (1ms)\n  1) a\n       b:\n     at x (a.js:1:1)\n",
    b"TAP version 13\n1..1\n# Subtest: a\n    not ok 1 - a\n      ---\n      error: |-\n        x\n",
    b"\xe2\x96\xb6 a\n  \xe2\x9c\x96 b (1ms)\n\xe2\x84\xb9 tests 1\n",
    b"Error: x\n    at f (a.js:1:1)\n",
    b"java.lang.IllegalStateException: x\n\tat a.b.C.d(C.java:1)\n",
    b"make: *** [Makefile:1: a] Error 1\nCMake Error at a:1 (b):\n  x\na:(.text+1): undefined reference to x\n",
    b"[ERROR] Tests run: 1, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 1 s <<< FAILURE! - in a.B\n",
    b"[ERROR] c(a.B)  Time elapsed: 0 s  <<< FAILURE!\nE: x\n\n\tat a.B.c(B.java:1)\n",
    b"[ERROR] " + b"a  Time elapsed: " * 20 + b" <<< ",
    b"[ERROR] a.java:[1,1] x\n  y\n[FATAL] z @ line 1, column 1\n[ERROR] Failed to execute goal on project a: b -> [Help 1]\n",
    b"[ERROR] Failed to execute goal on project a: " + b" -> [Help " * 40 + b" @ ",
    b"a.B > c FAILED\n    E at B.java:1\n2 tests completed, 1 failed\n1 actionable task: \n:a:test UP-TO-DATE\n",
    b"1 actionable task\na > " + b"b FAILED " * 40,
    b"* Where:\nBuild file 'a' line: 1\n\n* What went wrong:\nx\n",
    b"In a line 1:\n  ^-- SC1 (error): x\n",
    b"a.js:1:1 lint/a \xe2\x94\x81\xe2\x94\x81\n  \xc3\x97 x\n",
    b"  \xc3\x97 a(b): c\n   \xe2\x95\xad\xe2\x94\x80[a.js:1:1]\n",
    b'Traceback (most recent call last):\n  File "a.py", line 1\nE: x\n',
    b"=" * 70 + b"\nFAIL: t (a.B.t)\n" + b"-" * 70 + b"\nRan 1 test in 0.1s\n",
    b"=== short test summary info ===\nFAILED a.py::b[x - y] - z\n1 failed in 1s\n",
    b"a.py::b PASSED [ 1%] FAILED ERROR SKIPPED ",
    b"{",
    b"[",
    b'{"a":',
    b'[{"noqa_row":1,"filename":"a","message":"b"},',
    b'{"Action":"output","Package":"p","Test":"t","Output":"a.go:1: x"}\n',
    b'{"Action":"fail","Package":"p","Test":"t"}\n',
    b'{"posn":"a:1:1"}\n}\n',
    b'[{"kind":"error","message":"m","locations":[{"caret":{"file":"a","line":1}}]}]\n',
    b'{"reason":"compiler-message","message":{"message":"m","level":"error","spans":[]}}\n',
    b'{"severity": "error","file":"a","line":99999999999999999999999,"column":1,"message":"m"}\n',
    b'{"runs":[{"results":[{"message":{}}]}]}\n',
    b"<testsuite><testcase name='a'>",
    b"<!DOCTYPE a [<!ENTITY b '&b;'>]>",
    b'"generalDiagnostics" "messageId" "filePath" "category" "number_of_rules" "comments" "fullTitle" "results" ',
)

BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>'
MATCHER = rb"""{"problemMatcher":[
    {"owner":"a","pattern":[{"regexp":"^(a+)+$","message":1}]},
    {"owner":"b","pattern":[{"regexp":"^(.*):(.*):(.*)$","file":1},{"regexp":"^(.*)$","message":1,"loop":true}]},
    {"owner":"c","pattern":[{"regexp":"(?=look)","message":1}]}]}"""


def everywhere(data: bytes) -> CheckOutput:
    return CheckOutput("check", 1, None, 1.0, data, data, (data,), (MATCHER,))


def nested() -> list[bytes]:
    deep = 50_000
    return [
        b"[" * deep,
        b'{"runs":' * deep,
        b'{"runs":[' + b"[" * deep + b"]" * deep + b"]}",
        b"<testsuite>" * deep + b"<testcase name='t'/>" + b"</testsuite>" * deep,
        b'{"results":{"tests":' + b"[" * deep,
        BOMB,
    ]


@cache
def hostile() -> list[CheckOutput]:
    """Made once: their lines are shared by all parsers, as they are in earnest."""
    halves = [path.read_bytes()[: path.stat().st_size // 2] for path in files()]
    repeated = [seed * (SIZE // len(seed)) for seed in SEEDS]
    in_one_line = [data.replace(b"\n", b" ") for data in repeated]
    made = [everywhere(data) for data in [*halves, *repeated, *in_one_line, *nested()]]
    assert all(output.out_lines and output.err_lines for output in made)
    return made


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: getattr(parser, "__name__", ""))
def test_no_parser_hangs_or_raises_on_output_made_to_hurt(parser: Parser) -> None:
    for output in hostile():
        started = time.process_time()
        parser(output)
        assert time.process_time() - started < SECONDS, output.out[:60]


MAVEN = b"[ERROR] c(a.B)  Time elapsed: 0 s  <<< FAILURE!\nx\n"


@pytest.mark.parametrize(
    "seed", [b"a", b"a.c:1:1: error: e\n", b"\n", b"\xff", b'{"runs":[', MAVEN], ids=repr
)
def test_ten_megabytes_of_it_are_understood_in_seconds(seed: bytes) -> None:
    started = time.process_time()
    diagnose(CheckOutput("check", 1, None, 1.0, seed * (LARGE // len(seed)), b"", ()))
    assert time.process_time() - started < 5


PIECES = st.sampled_from(SEEDS) | st.binary(max_size=12)
MESS = st.lists(PIECES, max_size=12).map(b"".join)


@settings(max_examples=40, deadline=None)
@given(MESS)
def test_no_parser_raises_whatever_the_pieces(data: bytes) -> None:
    output = everywhere(data)
    for parser in PARSERS:
        parser(output)
    diagnose(output)


MUTANTS = st.tuples(
    st.sampled_from(files()),
    st.lists(st.tuples(st.integers(0, 8_000), st.integers(0, 300), PIECES), min_size=1, max_size=5),
)


@settings(max_examples=60, deadline=None)
@given(MUTANTS)
def test_no_parser_raises_on_mutated_real_output(
    mutant: tuple[Path, list[tuple[int, int, bytes]]],
) -> None:
    path, cuts = mutant
    data = path.read_bytes()[:20_000]
    for start, length, instead in cuts:
        start %= len(data) + 1
        data = data[:start] + instead + data[start + length :]
    output = everywhere(data)
    for parser in PARSERS:
        parser(output)
    diagnose(output)
