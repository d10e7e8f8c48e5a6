"""What a model is told."""

from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import Diagnosis, Diagnostic, Weakening
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals
from cloister.feedback.report import tell


def pytest_check(*tests: Result, exit_code: int = 1, unlisted: int = 0) -> Diagnosis:
    return Diagnosis("pytest -q", exit_code, 1.0, tests=tests, unlisted=unlisted)


def failed(name: str, message: str | None = None) -> Result:
    return Result(name, "failed", "tests/test_a.py", 7, message)


def test_counts_come_first_then_each_failure_with_its_place_and_reason() -> None:
    before = pytest_check(failed("a"), failed("b"), unlisted=1)
    now = pytest_check(failed("a", "assert 1 == 2\n  where"), failed("c", "boom"), unlisted=2)

    assert tell(compare([before], [now]), [now]) == (
        "2 of 4 tests fail: 1 new, 1 failing on the base already.\n"
        "Fixed: b\n"
        "`pytest -q` exited with 1:\n"
        "FAIL c at tests/test_a.py:7 (new)\n"
        "    boom\n"
        "FAIL a at tests/test_a.py:7\n"
        "    assert 1 == 2\n"
        "      where"
    )


def test_progress_is_reported_with_the_old_count() -> None:
    before = pytest_check(failed("a"), failed("b"), failed("c"))
    now = pytest_check(failed("a"), Result("b", "passed"), Result("c", "passed"))

    assert tell(compare([before], [now]), [now]).startswith("1 of 3 tests fail (was 3).\nFixed: b, c\n")


def test_a_green_report_is_one_line_and_the_fixed_tests() -> None:
    before = pytest_check(failed("a"))
    now = pytest_check(Result("a", "passed"), exit_code=0)

    assert tell(compare([before], [now]), [now]) == "All checks are green (was 1). 1 test passes.\nFixed: a"


def test_the_base_is_reported_without_a_comparison() -> None:
    base = pytest_check(failed("a"), unlisted=1)

    assert tell(compare([base], [base]), [base]).startswith("1 of 2 tests fail.\n`pytest -q` exited")


def test_a_missing_test_is_named_with_the_remedy() -> None:
    before = pytest_check(failed("a"), Result("b", "passed"))
    now = pytest_check(Result("b", "passed"), exit_code=0)

    assert tell(compare([before], [now]), [now]) == (
        "1 that ran on the base does not run now; deleting or skipping a test is not a fix; restore: a"
    )


def test_diagnostics_are_reported_with_place_severity_and_code() -> None:
    now = Diagnosis("ruff check", 1, 1.0, diagnostics=(Diagnostic("no", "a.py", 1, 8, "error", "F401"),))

    assert tell(compare([], [now]), [now]) == (
        "1 of 1 check failed (was 0).\n`ruff check` exited with 1:\na.py:1:8: error: no [F401]"
    )


def test_the_tail_of_unknown_output_is_reported() -> None:
    now = Diagnosis("make", 2, 1.0, tail="make: *** no rule")

    assert tell(compare([now], [now]), [now]) == (
        "1 of 1 check failed.\n`make` exited with 2:\nThe output ends with:\nmake: *** no rule"
    )


def test_a_check_that_timed_out_is_reported_as_such() -> None:
    now = Diagnosis("make", None, 600.4, killed="time", tail="…")

    assert "`make` timed out after 600 s:" in tell(compare([now], [now]), [now])


def test_of_many_failures_each_gets_its_share_and_the_rest_is_counted() -> None:
    now = pytest_check(*[failed(f"test_{n}", "x" * 5_000) for n in range(300)])

    text = tell(compare([], [now]), [now])

    assert len(text) <= 6_000
    assert text.startswith("300 of 300 tests fail")
    assert "more omitted" in text
    assert "FAIL test_3" in text


def test_old_failures_are_only_named_and_goals_are_reported_in_detail() -> None:
    base = pytest_check(failed("a", "why a"), failed("b", "why b"))

    assert tell(compare([base], [base], Goals(names=("a",))), [base]) == (
        "2 of 2 tests fail.\n"
        "1 failed on the base already and is not part of the task; leave unchanged: b\n"
        "left red, the caller named others: b\n"
        "`pytest -q` exited with 1:\n"
        "FAIL a at tests/test_a.py:7\n"
        "    why a"
    )


def test_green_beside_old_failures_says_so_and_tells_no_more_of_them() -> None:
    base = pytest_check(failed("b", "why b"))

    assert tell(compare([base], [base], Goals()), [base]) == (
        "Green: no new failures, and the requested tests pass.\n"
        "1 failed on the base already and is not part of the task; leave unchanged: b\n"
        "No test shows the requested change yet. If it changes behaviour, add a test that fails without the change "
        "and passes with it.\n"
        "left red, the caller named others: b"
    )


def test_lost_tests_are_reported_by_kind() -> None:
    base = pytest_check(failed("a"), Result("b", "passed"), Result("c", "passed"))
    weak = (Weakening("a", "base"),)
    now = Diagnosis(
        "pytest -q",
        0,
        1.0,
        tests=(Result("a", "passed"), Result("b", "skipped"), Result("c", "passed")),
        weakened=weak,
    )

    told = tell(compare([base], [now]), [now])

    assert "Weakened, which is not a fix; restore: a (it fails with the tests of the base)" in told
    assert "Ran on the base and skipped now, which is not a fix; restore: b" in told


def test_a_test_that_was_asked_for_and_is_not_there_is_named() -> None:
    now = pytest_check(Result("b", "passed"), exit_code=0)

    told = tell(compare([now], [now], Goals(names=("test_new",), exactly=True)), [now])

    assert told == "Requested, but nothing with that name passes: test_new"


TEXTS = st.text(max_size=200)
RESULTS = st.builds(
    Result, TEXTS, st.sampled_from(["passed", "failed", "error"]), st.none() | TEXTS, st.none(), TEXTS
)
DIAGNOSES = st.lists(
    st.builds(
        Diagnosis,
        TEXTS,
        st.none() | st.integers(0, 2),
        st.just(1.0),
        st.none() | st.just("time"),
        st.lists(RESULTS, max_size=8).map(tuple),
        st.integers(0, 5),
        st.lists(st.builds(Diagnostic, TEXTS), max_size=8).map(tuple),
        TEXTS,
    ),
    max_size=4,
)


@given(DIAGNOSES, DIAGNOSES, st.integers(0, 3_000))
def test_the_bound_holds_for_any_input(before: list[Diagnosis], now: list[Diagnosis], limit: int) -> None:
    assert len(tell(compare(before, now), now, limit)) <= limit
