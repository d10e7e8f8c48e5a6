"""Now against the base."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cloister.core.diagnosis import Comparison, Diagnosis, TestStatus
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.api import CheckOutput
from cloister.feedback.compare import compare
from cloister.feedback.diagnose import diagnose

CAPTURED = Path(__file__).parent / "captured"


def check(
    exit_code: int | None = 0,
    *,
    name: str = "pytest",
    killed: str | None = None,
    unlisted: int = 0,
    **tests: TestStatus,
) -> Diagnosis:
    results = tuple(Result(test, status) for test, status in tests.items())
    return Diagnosis(name, exit_code, 1.0, killed, tests=results, unlisted=unlisted)


def test_a_test_that_was_red_and_passes_is_fixed() -> None:
    before = check(1, a="failed", b="passed")
    now = check(0, a="passed", b="passed")

    assert compare([before], [now]) == Comparison(fixed=("a",), passed=2, green=True)


def test_a_test_that_turned_red_is_new_and_one_that_stayed_red_is_still() -> None:
    before = check(1, a="failed", b="passed")
    now = check(1, a="error", b="failed", c="failed")

    assert compare([before], [now]) == Comparison(new=("b", "c"), still=("a",), asked=("a",))


def test_a_deleted_or_newly_skipped_test_is_missing_and_never_green() -> None:
    before = check(1, a="failed", b="passed", c="skipped")
    now = check(0, b="skipped", d="passed")

    assert compare([before], [now]) == Comparison(missing=("a",), skipped=("b",), passed=1, green=False)


def test_a_check_without_tests_is_one_item_under_its_command() -> None:
    lint, types = check(1, name="ruff check"), check(0, name="mypy .")
    lint_now, types_now = check(0, name="ruff check"), check(2, name="mypy .")

    assert compare([lint, types], [lint_now, types_now]) == Comparison(
        fixed=("ruff check",), new=("mypy .",), passed=1
    )


def test_a_check_that_can_no_longer_collect_is_itself_new_and_its_tests_are_not_missing() -> None:
    before = check(1, a="failed", b="passed")

    assert compare([before], [check(2)]) == Comparison(new=("pytest",))


def test_a_module_that_can_no_longer_be_imported_is_new_and_hides_no_other_test() -> None:
    before = check(1, a="failed", b="passed")
    now = Diagnosis("pytest", 2, 1.0, tests=(Result("tests/test_a.py", "error"),))

    assert compare([before], [now]) == Comparison(new=("tests/test_a.py",))


def test_when_the_base_could_not_collect_its_red_tests_are_still_red_not_new() -> None:
    before = Diagnosis("pytest", 2, 1.0, tests=(Result("tests/test_a.py", "error"),))
    now = Diagnosis(
        "pytest",
        1,
        1.0,
        tests=(Result("tests/test_a.py::test_x", "failed"), Result("tests/test_a.py::test_y", "passed")),
    )

    assert compare([before], [now]) == Comparison(
        fixed=("tests/test_a.py",),
        still=("tests/test_a.py::test_x",),
        asked=("tests/test_a.py::test_x",),
        passed=1,
    )


def test_a_class_fixture_that_was_broken_is_fixed_when_the_tests_of_its_class_run() -> None:
    before = Diagnosis(
        "unittest", 1, 1.0, tests=(Result("m.T::setUpClass", "error"), Result("m.U::t", "passed"))
    )
    now = Diagnosis("unittest", 0, 1.0, tests=(Result("m.T::t", "passed"), Result("m.U::t", "passed")))

    assert compare([before], [now]) == Comparison(fixed=("m.T::setUpClass",), passed=2, green=True)


def test_a_check_that_was_killed_is_red_and_loses_no_tests() -> None:
    before = check(0, a="passed", b="passed")
    now = check(None, killed="time", a="passed")

    assert compare([before], [now]) == Comparison(new=("pytest",), passed=1)


def test_a_red_check_whose_tests_all_pass_is_itself_red() -> None:
    assert compare([check(0, a="passed")], [check(1, a="passed")]) == Comparison(new=("pytest",), passed=1)


def test_a_check_that_is_not_run_any_more_is_missing() -> None:
    assert compare([check(0, a="passed"), check(0, name="lint")], [check(0, a="passed")]) == Comparison(
        missing=("lint",), passed=1
    )


def test_without_a_baseline_everything_red_is_new() -> None:
    assert compare([], [check(1, a="failed", b="passed")]) == Comparison(new=("a",), passed=1)


def test_no_checks_at_all_are_not_green() -> None:
    assert compare([], []) == Comparison()


def test_a_test_known_only_by_number_counts_as_fixed_when_no_fewer_ran() -> None:
    before = check(1, unlisted=3, a="failed")

    assert compare([before], [check(0, unlisted=4)]) == Comparison(fixed=("a",), passed=4, green=True)


def test_fewer_numbered_tests_than_before_are_missing() -> None:
    before = check(1, unlisted=3, a="failed")

    assert compare([before], [check(0, unlisted=3)]) == Comparison(missing=("a",), passed=3)
    assert compare([check(0, unlisted=4)], [check(0, unlisted=2)]) == Comparison(
        missing=("2 tests of pytest",), passed=2
    )


def test_the_same_name_in_two_checks_is_two_items() -> None:
    before = [check(1, name="x", t="failed"), check(0, name="y", t="passed")]
    now = [check(0, name="x", t="passed"), check(1, name="y", t="failed")]

    assert compare(before, now) == Comparison(fixed=("t",), new=("t",), passed=1)


def test_text_and_junit_of_one_pytest_run_compare_as_the_same() -> None:
    def run(out: str, junit: str | None) -> Diagnosis:
        reports = ((CAPTURED / junit).read_bytes(),) if junit else ()
        return diagnose(CheckOutput("pytest", 1, None, 1.0, (CAPTURED / out).read_bytes(), b"", reports))

    found = compare([run("pytest_quiet.txt", "pytest_xunit1.xml")], [run("pytest_quiet.txt", None)])

    assert (found.fixed, found.new, found.missing) == ((), (), ())
    assert (len(found.still), found.passed) == (6, 3)


STATUSES: st.SearchStrategy[TestStatus] = st.sampled_from(["passed", "failed", "error", "skipped"])


def built(exit_code: int, tests: dict[str, TestStatus], unlisted: int) -> Diagnosis:
    return check(exit_code, unlisted=unlisted, **tests)


CHECKS = st.builds(
    built,
    st.sampled_from([0, 1]),
    st.dictionaries(st.sampled_from("abcdef"), STATUSES, max_size=6),
    st.integers(0, 3),
)


@given(CHECKS, CHECKS)
def test_green_means_every_check_is_green_and_nothing_that_was_named_red_or_ran_is_lost(
    before: Diagnosis, now: Diagnosis
) -> None:
    found = compare([before], [now])

    assert found.green == (not found.new and not found.still and not found.missing and not found.skipped)
    if now.exit_code != 0:
        assert not found.green
    assert not set(found.fixed) & {*found.new, *found.still, *found.missing, *found.skipped}
    assert not set(found.new) & set(found.still)
    assert {test.name for test in now.failing} <= {*found.new, *found.still}
    if now.exit_code != 0:
        assert found.red > 0


@given(CHECKS)
def test_a_diagnosis_against_itself_has_nothing_new_fixed_or_missing(diagnosis: Diagnosis) -> None:
    found = compare([diagnosis], [diagnosis])

    assert (found.new, found.fixed, found.missing) == ((), (), ())
