"""A whole check, understood, merged and bounded."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.feedback.captures import captured

from cloister.core import limits
from cloister.core.diagnosis import Diagnosis
from cloister.feedback.api import CheckOutput
from cloister.feedback.diagnose import diagnose


def check(out: bytes = b"", err: bytes = b"", junit: bytes | None = None, exit_code: int = 1) -> Diagnosis:
    return diagnose(CheckOutput("check", exit_code, None, 1.0, out, err, () if junit is None else (junit,)))


def test_the_junit_file_is_believed_before_the_text() -> None:
    found = check(out=captured("pytest_quiet.txt"), junit=captured("pytest_xunit1.xml"))

    assert len(found.tests) == 11
    assert found.unlisted == 0


def test_the_text_is_read_when_the_junit_file_is_broken() -> None:
    found = check(out=captured("pytest_quiet.txt"), junit=b"<testsuite>")

    assert len(found.failing) == 6
    assert found.unlisted == 3


def test_several_sessions_of_pytest_in_one_check_are_counted_together() -> None:
    report = b'<testsuite><testcase classname="tests.test_till" name="test_due"/></testsuite>'

    green = check(
        out=b"..  [100%]\n2 passed in 0.01s\n.  [100%]\n1 passed in 0.01s\n", junit=report, exit_code=0
    )
    red = check(
        out=b"=== short test summary info ===\nFAILED tests/test_a.py::test_up - assert\n1 failed, 1 passed in 0.01s\n"
        b"1 passed in 0.01s\n",
        junit=report,
    )

    assert ([test.status for test in green.tests], green.unlisted) == (["passed"], 2)
    assert ([test.name for test in red.failing], red.unlisted) == (["tests/test_a.py::test_up"], 1)


def test_failing_tests_come_first_and_their_places_are_not_repeated() -> None:
    found = check(out=captured("pytest_verbose.txt"))

    assert [test.status for test in found.tests[:6]] == ["error"] + ["failed"] * 5
    assert found.diagnostics == ()


def test_tracebacks_of_failing_unittests_are_not_repeated() -> None:
    assert check(err=captured("unittest.txt")).diagnostics == ()


def test_a_crash_beside_passing_tests_is_reported() -> None:
    found = check(out=captured("pytest_green.txt"), err=captured("chain.txt"))

    assert [diagnostic.file for diagnostic in found.diagnostics] == ["chain.py", "chain.py"]


def test_equal_complaints_are_merged_and_errors_come_first() -> None:
    text = b"a.c:2:1: warning: w\na.c:1:1: error: e\na.c:1:1: error: e\n"

    assert [d.message for d in check(out=text, err=text).diagnostics] == ["e", "w"]


def test_unknown_output_leaves_a_tail_without_escapes() -> None:
    found = check(out=b"".join(b"line %d\n" % n for n in range(100)) + b"\x1b[31mred\x07\xff")

    assert (found.tests, found.diagnostics) == ((), ())
    assert found.tail.splitlines()[0] == "line 61"
    assert found.tail.splitlines()[-1] == "red\\x07\ufffd"


def test_every_place_in_unknown_output_is_reported() -> None:
    text = b"it broke in (src/a.zig:12) after lib/b.zig:3:7, at 12:30:45 on localhost:80\nsee http://x.org:80 a.b:9\n"

    found = check(err=text)

    assert [(d.file, d.line, d.column, d.severity) for d in found.diagnostics] == [
        ("src/a.zig", 12, None, "note"),
        ("lib/b.zig", 3, 7, "note"),
        ("a.b", 9, None, "note"),
    ]
    assert check(err=text, exit_code=0).diagnostics == ()


def test_both_streams_are_in_the_tail() -> None:
    assert check(out=b"out\n", err=b"err\n").tail == "out\nerr"


def test_too_many_tests_are_kept_failing_first_and_counted_exactly() -> None:
    cases = "".join(f'<testcase classname="c" name="t{n}"/>' for n in range(limits.TESTS_KEPT + 500))
    xml = f'<testsuite>{cases}<testcase classname="c" name="bad"><failure/></testcase></testsuite>'

    found = check(junit=xml.encode())

    assert found.tests[0].name == "c::bad"
    assert len(found.tests) <= limits.TESTS_KEPT
    assert len(found.tests) + found.unlisted == limits.TESTS_KEPT + 501


def test_a_diagnosis_of_thousands_of_long_failures_fits_into_an_event() -> None:
    case = '<testcase classname="c" name="{}"><failure message="{}"/></testcase>'
    cases = "".join(case.format(f"t{n}" * 50, "\u20ac" * 5_000) for n in range(2_000))

    found = check(out=b"a.c:1:1: error: e" * 50_000, junit=f"<testsuite>{cases}</testsuite>".encode())

    assert len(msgspec.json.encode(found)) < limits.EVENT_BYTES // 2


def test_a_test_reported_twice_counts_with_its_worst_verdict() -> None:
    xml = (
        b'<testsuite><testcase classname="c" name="t"/>'
        b'<testcase classname="c" name="t"><error message="teardown"/></testcase></testsuite>'
    )

    assert [(t.name, t.status) for t in check(junit=xml).tests] == [("c::t", "error")]


def test_a_line_of_five_megabytes_is_survived() -> None:
    for data in (b"x", b"a.py:1: error: ", b"\x1b[", b"a::b PASSED ", b"_ _", b"[[", b"9 ", b"E  "):
        check(out=data * (5_000_000 // len(data)))


@given(st.binary(max_size=300), st.binary(max_size=300), st.none() | st.binary(max_size=300))
def test_diagnosing_never_raises(out: bytes, err: bytes, junit: bytes | None) -> None:
    check(out=out, err=err, junit=junit)


@pytest.mark.parametrize(
    ("command", "said", "told"),
    [
        (
            "pnpm test",
            "/bin/bash: line 1: pnpm: command not found",
            "pnpm is not installed in the sandbox. Add it to",
        ),
        ("cargo test", "sh: 1: cargo: not found", "cargo is not installed in the sandbox. Add it to"),
        ("vendor/bin/phpunit", "sh: vendor/bin/phpunit: not found", "vendor/bin/phpunit is not installed"),
        (
            "python3 -m pytest -q",
            "/usr/bin/python3: No module named pytest",
            "pytest is not installed in the sandbox. Add",
        ),
        (
            "npm test",
            "> jest\n\nsh: 1: jest: not found",
            "jest is not installed in the sandbox. Install the dep",
        ),
        (
            "make test",
            "make: go: No such file or directory\nmake: *** [Makefile:2: test] Error 127",
            "go is not inst",
        ),
        (
            "./run",
            "/usr/bin/env: ‘node’: No such file or directory",
            "node is not installed in the sandbox. Install",
        ),
    ],
)
def test_a_missing_program_is_named_with_what_would_help(command: str, said: str, told: str) -> None:
    found = diagnose(CheckOutput(command, 127, None, 1.0, b"", said.encode()))

    (absent,) = [one for one in found.diagnostics if one.tool == "sandbox"]
    assert absent.message.startswith(told)
    green = diagnose(CheckOutput(command, 0, None, 1.0, b"", said.encode()))
    assert "sandbox" not in [one.tool for one in green.diagnostics]


def test_a_missing_program_in_the_output_of_failing_tests_is_theirs() -> None:
    found = check(out=captured("pytest_quiet.txt"), err=b"sh: 1: nothing: not found\n")

    assert [one for one in found.diagnostics if one.tool == "sandbox"] == []


def test_places_are_those_of_the_repository_when_the_check_runs_in_a_directory() -> None:
    out = b"a.c:1:1: error: e\n/work/app/b.c:2:1: error: f\n"
    found = diagnose(CheckOutput("cd app && make", 2, None, 1.0, out, b""))
    assert sorted(one.file or "" for one in found.diagnostics) == ["app/a.c", "app/b.c"]

    report = captured("pytest_xunit1.xml")
    plain = diagnose(CheckOutput("pytest", 1, None, 1.0, b"", b"", (report,)))
    moved = diagnose(CheckOutput("cd app && pytest", 1, None, 1.0, b"", b"", (report,)))
    assert [test.name for test in moved.tests] == [f"app/{test.name}" for test in plain.tests]
    assert [test.file for test in moved.tests] == [test.file and f"app/{test.file}" for test in plain.tests]
