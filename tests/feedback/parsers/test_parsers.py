"""Each parser against what the tools really printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.feedback.captures import captured

from cloister.core.diagnosis import Diagnostic
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.diagnose import PARSERS
from cloister.feedback.parsers.crash import tracebacks
from cloister.feedback.parsers.lint.location_text import bare_places, places
from cloister.feedback.parsers.test_runners.junit import junit
from cloister.feedback.parsers.test_runners.python import pytest_text, unittest_text

FAILING = {
    "tests/test_shop.py::test_total_takes_the_discount_off[10-27]": ("failed", "tests/test_shop.py", 17),
    "tests/test_shop.py::test_total_takes_the_discount_off[50-15]": ("failed", "tests/test_shop.py", 17),
    "tests/test_shop.py::test_labels_are_kept[a - b]": ("failed", "tests/test_shop.py", 22),
    "tests/test_shop.py::test_labels_are_kept[x[0]]": ("failed", "tests/test_shop.py", 22),
    "tests/test_shop.py::TestSplit::test_nobody_pays_nothing": ("failed", "shop.py", 7),
    "tests/test_shop.py::test_with_a_database": ("error", "tests/test_shop.py", 8),
}
PASSING = {
    "tests/test_shop.py::test_total_of_nothing_is_zero",
    "tests/test_shop.py::test_total_takes_the_discount_off[0-30]",
    "tests/test_shop.py::TestSplit::test_shares_are_equal",
}
SKIPPED = {
    "tests/test_shop.py::test_prices_from_the_network",
    "tests/test_shop.py::test_negative_discount",
}


def output(
    *, out: bytes = b"", err: bytes = b"", xml: bytes | None = None, exit_code: int | None = 1
) -> CheckOutput:
    return CheckOutput("check", exit_code, None, 1.0, out, err, () if xml is None else (xml,))


def failing(found: Found | None) -> dict[str, tuple[str, str | None, int | None]]:
    assert found is not None
    return {t.name: (t.status, t.file, t.line) for t in found.tests if t.status in ("failed", "error")}


def named(found: Found | None, status: str) -> set[str]:
    assert found is not None
    return {t.name for t in found.tests if t.status == status}


@pytest.mark.parametrize("name", ["pytest_xunit1.xml", "pytest_xunit2.xml"])
def test_junit_names_tests_as_pytest_takes_them_on_its_command_line(name: str) -> None:
    found = junit(output(xml=captured(name)))

    assert failing(found) == FAILING
    assert named(found, "passed") == PASSING
    assert named(found, "skipped") == SKIPPED


def test_a_passing_test_in_junit_keeps_the_line_of_its_definition_counted_from_one() -> None:
    found = junit(output(xml=captured("pytest_xunit1.xml")))

    assert found is not None
    assert found.tests[0] == Result(
        "tests/test_shop.py::test_total_of_nothing_is_zero", "passed", "tests/test_shop.py", 11
    )


def test_verbose_pytest_text_says_the_same_as_its_junit_file() -> None:
    found = pytest_text(output(out=captured("pytest_verbose.txt")))

    assert failing(found) == FAILING
    assert named(found, "passed") == PASSING
    assert named(found, "skipped") == SKIPPED
    assert found is not None
    assert found.unlisted == 0


def test_quiet_pytest_names_failing_tests_and_counts_passing_ones() -> None:
    found = pytest_text(output(out=captured("pytest_quiet.txt")))

    assert failing(found) == FAILING
    assert found is not None
    assert found.unlisted == 3
    reasons = {test.name: test.message for test in found.tests}
    assert reasons["tests/test_shop.py::test_total_takes_the_discount_off[10-27]"] == (
        "assert -270 == 27\n +  where -270 = total([10, 20], 10)"
    )


def test_a_test_of_which_a_part_fails_is_one_that_fails() -> None:
    found = pytest_text(output(out=captured("pytest_subtests.txt")))

    assert named(found, "failed") == {"test_parts.py::PartsTest::test_parts", "test_parts.py::test_more"}
    assert found is not None
    assert found.unlisted == 2


def test_green_pytest_text_is_a_number() -> None:
    assert pytest_text(output(out=captured("pytest_green.txt"), exit_code=0)) == Found(unlisted=2)


def test_pytest_that_ran_nothing_is_not_understood_as_tests() -> None:
    assert pytest_text(output(out=captured("pytest_none.txt"), exit_code=5)) is None


def test_a_module_that_cannot_be_collected_is_an_error_under_its_file_in_both_forms() -> None:
    result = Result(
        "tests/test_more.py",
        "error",
        "tests/test_more.py",
        1,
        "ImportError: cannot import name 'missing' from 'shop' (/work/shop.py)",
    )

    assert junit(output(xml=captured("pytest_collection.xml"))) == Found(tests=(result,))
    assert pytest_text(output(out=captured("pytest_collection.txt"))) == Found(tests=(result,))


def test_tests_of_parallel_workers_are_read() -> None:
    text = b"[gw0] [ 50%] PASSED tests/test_a.py::test_x \n[gw1] [100%] FAILED tests/test_a.py::test_y \n"

    found = pytest_text(output(out=text))

    assert named(found, "passed") == {"tests/test_a.py::test_x"}
    assert named(found, "failed") == {"tests/test_a.py::test_y"}


def test_log_lines_that_look_like_a_summary_are_not_tests() -> None:
    assert pytest_text(output(out=b"ERROR database is down\nFAILED to connect\n3 passed the gate\n")) is None


UNITTEST_FAILING = {
    "tests.test_more": ("error", "tests/test_more.py", 1),
    "tests.test_shop.DatabaseTest::setUpClass": ("error", "tests/test_shop.py", 36),
    "tests.test_shop.SplitTest::test_nobody": ("error", "shop.py", 7),
    "tests.test_shop.TotalTest::test_discount": ("failed", "tests/test_shop.py", 12),
    "tests.test_shop.TotalTest::test_many": ("failed", "tests/test_shop.py", 17),
}


def test_unittest_names_failing_tests_and_counts_passing_ones() -> None:
    found = unittest_text(output(err=captured("unittest.txt")))

    assert failing(found) == UNITTEST_FAILING
    assert found is not None
    assert found.unlisted == 1


def test_verbose_unittest_text_names_everything() -> None:
    found = unittest_text(output(err=captured("unittest_verbose.txt")))

    assert failing(found) == UNITTEST_FAILING
    assert named(found, "passed") == {"tests.test_shop.TotalTest::test_nothing_costs_nothing"}
    assert named(found, "skipped") == {
        "tests.test_shop.TotalTest::test_network",
        "tests.test_shop.TotalTest::test_negative",
    }
    assert found is not None
    assert found.unlisted == 0


def test_a_failing_subtest_has_the_name_of_its_test() -> None:
    found = unittest_text(output(err=captured("unittest_subtest.txt")))

    assert found == Found(
        tests=(
            Result(
                "tests.test_shop.TotalTest::test_many",
                "failed",
                "tests/test_shop.py",
                17,
                "(discount=50) AssertionError: -1470 != 15",
            ),
        ),
        unlisted=1,
    )


def test_a_skipped_unittest_does_not_count_as_one_that_ran() -> None:
    assert unittest_text(output(err=captured("unittest_ok.txt"), exit_code=0)) == Found(unlisted=1)


def test_a_chained_traceback_gives_the_places_in_the_repository_not_in_the_library() -> None:
    found = tracebacks(output(err=captured("chain.txt")))

    assert found is not None
    assert [(d.file, d.line, d.code) for d in found.diagnostics] == [
        ("chain.py", 5, "json.decoder.JSONDecodeError"),
        ("chain.py", 7, "RuntimeError"),
    ]


def test_a_syntax_error_without_a_traceback_is_found() -> None:
    assert tracebacks(output(err=captured("syntax.txt"))) == Found(
        diagnostics=(
            Diagnostic("SyntaxError: invalid syntax", "bad.py", 1, code="SyntaxError", tool="python"),
        )
    )


def test_an_exception_group_is_read_behind_its_margin() -> None:
    text = (
        b"  + Exception Group Traceback (most recent call last):\n"
        b'  |   File "/work/a.py", line 3, in <module>\n'
        b"  |     go()\n"
        b"  | ExceptionGroup: two things (1 sub-exception)\n"
        b"  +-+---------------- 1 ----------------\n"
        b"    | Traceback (most recent call last):\n"
        b'    |   File "/work/b.py", line 7, in go\n'
        b"    |     raise ValueError(1)\n"
        b"    | ValueError: 1\n"
        b"    +------------------------------------\n"
    )

    found = tracebacks(output(err=text))

    assert found is not None
    assert [(d.file, d.line, d.code) for d in found.diagnostics] == [
        ("a.py", 3, "ExceptionGroup"),
        ("b.py", 7, "ValueError"),
    ]


def test_gcc_is_understood_with_severities_and_flags() -> None:
    found = places(output(err=captured("gcc.txt")))

    assert found is not None
    assert [(d.file, d.line, d.column, d.severity, d.code) for d in found.diagnostics] == [
        ("a.c", 2, 37, "error", None),
        ("a.c", 2, 37, "note", None),
        ("a.c", 2, 22, "warning", "-Wunused-variable"),
    ]


@pytest.mark.parametrize("name", ["ruff_full.txt", "ruff_concise.txt"])
def test_ruff_is_understood_in_both_its_shapes(name: str) -> None:
    found = places(output(out=captured(name)))

    assert found == Found(
        diagnostics=(
            Diagnostic("`os` imported but unused", "a.py", 1, 8, "error", "F401"),
            Diagnostic("`sys` imported but unused", "a.py", 2, 8, "error", "F401"),
        )
    )


def test_pyright_is_understood() -> None:
    found = places(output(out=captured("pyright.txt")))

    assert found is not None
    assert [(d.file, d.line, d.column, d.severity) for d in found.diagnostics] == [
        ("a.py", 6, 12, "error"),
        ("a.py", 9, 3, "error"),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a.ts(1,7): error TS2322: No.", Diagnostic("No.", "a.ts", 1, 7, "error", "TS2322")),
        ("src/a.ts:1:7 - error TS2322: No.", Diagnostic("No.", "src/a.ts", 1, 7, "error", "TS2322")),
        ("a.cpp(12): warning C4996: old", Diagnostic("old", "a.cpp", 12, None, "warning", "C4996")),
        ("p/a.py:3: error: No  [arg-type]", Diagnostic("No", "p/a.py", 3, None, "error", "arg-type")),
        ("p/a.py:3: note: See", Diagnostic("See", "p/a.py", 3, None, "note")),
        ("/work/src/x.c:9:1: fatal error: gone", Diagnostic("gone", "src/x.c", 9, 1, "error")),
    ],
)
def test_one_line_shapes_are_understood(line: str, expected: Diagnostic) -> None:
    assert places(output(out=line.encode())) == Found(diagnostics=(expected,))


def test_rust_names_the_place_below_the_sentence() -> None:
    text = b"error[E0308]: mismatched types\n --> src/main.rs:2:5\n  |\n"

    assert places(output(err=text)) == Found(
        diagnostics=(Diagnostic("mismatched types", "src/main.rs", 2, 5, "error", "E0308"),)
    )


def test_a_place_without_a_severity_is_believed_only_of_a_command_that_failed() -> None:
    text = b"./main.go:7:2: undefined: x\n"

    assert places(output(err=text)) is None
    assert bare_places(output(err=text, exit_code=0)) is None
    assert bare_places(output(err=text)) == Found(diagnostics=(Diagnostic("undefined: x", "main.go", 7, 2),))


@pytest.mark.parametrize(
    "line",
    [
        "12:30:45: started",
        "http://example.com:80: error: refused",
        "localhost:8080: error: refused",
        "127.0.0.1:8080: error: refused",
        "a.py:99999999999999999999: error: too far",
        "key: value",
    ],
)
def test_text_that_only_looks_like_a_place_is_ignored(line: str) -> None:
    assert places(output(err=line.encode())) is None
    assert bare_places(output(err=line.encode())) is None


def test_junit_of_other_runners_is_named_by_class_and_test() -> None:
    xml = (
        b'<testsuites><testsuite name="s"><testcase classname="com.Shop" name="adds" file="Shop.java" line="4">'
        b'<failure message="expected 2">at Shop.add</failure></testcase><testcase name="alone"/>'
        b"<testcase classname='c' name='d'><skipped/><system-out>x</system-out></testcase></testsuite></testsuites>"
    )

    assert junit(output(xml=xml)) == Found(
        tests=(
            Result("com.Shop::adds", "failed", "Shop.java", 4, "expected 2"),
            Result("alone", "passed"),
            Result("c::d", "skipped"),
        )
    )


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>{}<testsuite><testcase name="t"/></testsuite>'


@pytest.mark.parametrize(
    "xml",
    [
        BOMB.format("").encode(),
        ("\ufeff" + BOMB.format("")).encode("utf-16-le"),
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite><testcase name="t"/></testsuite>',
        b"<testsuite><testcase name='t'/>",
        b"<?xml version='1.0' encoding='no-such'?><testsuite><testcase name='t'/></testsuite>",
        b"<html><body>no tests</body></html>",
        b"",
        b"\x00\xff",
    ],
)
def test_a_junit_file_that_is_hostile_or_broken_is_not_read(xml: bytes) -> None:
    assert junit(output(xml=xml)) is None


def test_a_deeply_nested_junit_file_is_read_without_recursion() -> None:
    deep = b"<testsuite>" * 50_000 + b"<testcase name='t'/>" + b"</testsuite>" * 50_000

    assert junit(output(xml=deep)) == Found(tests=(Result("t", "passed"),))


FRAGMENTS = st.sampled_from(
    [
        b"Traceback (most recent call last):\n",
        b'  File "a.py", line 3, in f\n',
        b"ValueError: x\n",
        b"=" * 70 + b"\n",
        b"-" * 70 + b"\n",
        b"FAIL: test_x (a.B.test_x)\n",
        b"Ran 3 tests in 0.1s\n",
        b"\nFAILED (failures=1)\n",
        b"=== short test summary info ===\n",
        b"FAILED a.py::b[x - y] - no\n",
        b"a.py::b PASSED [ 1%]\n",
        b"____ b ____\n",
        b"E   no\n",
        b"a.py:3: error: no\n",
        b" --> a.py:1:1\n",
        b"1 failed, 2 passed in 0.1s\n",
        b"<testsuite name='pytest'>",
        b"<testcase classname='a.B' name='c'>",
        b"<failure message='m'>",
        b"</failure></testcase></testsuite>",
        b"\x1b[31m",
        b"\x1b]",
        b"\xff\x00",
        b" ... ok\n",
    ]
)
MESS = st.binary(max_size=200) | st.lists(FRAGMENTS | st.binary(max_size=10), max_size=30).map(b"".join)


@given(MESS, MESS, st.none() | MESS, st.none() | st.integers(-255, 255))
def test_no_parser_raises_whatever_the_bytes(
    out: bytes, err: bytes, xml: bytes | None, exit_code: int | None
) -> None:
    for parser in PARSERS:
        parser(output(out=out, err=err, xml=xml, exit_code=exit_code))
