"""Now against the base."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.feedback.captures import captured

from cloister.core.diagnosis import Comparison, Diagnosis, Diagnostic, TestStatus, Weakening, statement
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.api import CheckOutput
from cloister.feedback.compare import compare as compare_fully
from cloister.feedback.diagnose import diagnose
from cloister.feedback.goals import Goals


def compare(
    baseline: Sequence[Diagnosis], now: Sequence[Diagnosis], asked: Goals | None = None
) -> Comparison:
    """The lists of a comparison; `shown` and `ran` have tests of their own."""
    return msgspec.structs.replace(compare_fully(baseline, now, asked), shown=(), ran=0)


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
        reports = (captured(junit),) if junit else ()
        return diagnose(CheckOutput("pytest", 1, None, 1.0, captured(out), b"", reports))

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


def _one(check: str, *tests: Result, exit_code: int = 0) -> Diagnosis:
    return Diagnosis(check, exit_code, 1.0, tests=tests)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tests/test_a.py::test_x[1]", "tests/unit/test_a.py::test_x[1]"),
        ("test_a.CartTest::test_x", "tests.unit.test_b.CartTest::test_x"),
        ("a.test.js::cart > adds", "src/a.test.js::cart > adds"),
    ],
)
def test_a_test_that_passed_and_lives_in_another_file_now_is_not_missing(old: str, new: str) -> None:
    def now(status: TestStatus) -> Diagnosis:
        return _one("check", Result(new, status), exit_code=int(status == "failed"))

    assert compare([_one("check", Result(old, "passed"))], [now("passed")]).green
    assert compare([_one("check", Result(old, "passed"))], [now("skipped")]).missing == (old,)
    # One that was red is not fixed by moving it.
    red = compare([_one("check", Result(old, "failed"), exit_code=1)], [now("passed")])
    assert (red.green, red.missing, red.fixed) == (False, (old,), ())


def test_two_tests_do_not_live_on_in_one() -> None:
    before = _one(
        "check", Result("tests/test_a.py::test_x", "passed"), Result("tests/test_b.py::test_x", "passed")
    )

    found = compare([before], [_one("check", Result("tests/test_c.py::test_x", "passed"))])

    assert len(found.missing) == 1


def test_a_test_named_after_a_time_or_a_random_number_is_known_again_and_counted() -> None:
    def at(*names: str) -> Diagnosis:
        tests = tuple(Result(f"number {name} is one", "passed") for name in names)
        return msgspec.structs.replace(check(), tests=tests)

    base = at("0.9715062586933689", "1795031348720", "12")
    assert compare([base], [at("0.1234567890123", "1795031399999", "12")]).green
    times = at("2026-11-18T20:04:38.525Z", "20:04:38"), at("2026-11-18T20:05:01.001Z", "20:05:01")
    assert compare([times[0]], [times[1]]).green
    assert compare([base], [at("0.1234567890123", "12")]).missing == ("number 1795031348720 is one",)
    assert compare([base], [at("0.1234567890123", "1795031399999", "13")]).missing == ("number 12 is one",)


def test_an_old_complaint_is_not_new_in_another_line_or_in_a_file_with_another_name() -> None:
    def lint(file: str, line: int, *more: Diagnostic) -> Diagnosis:
        said = f"Redefinition of unused `os` from line {line}"
        first = Diagnostic(said, file=file, line=line + 2, code="F811")
        return Diagnosis("ruff check", 1, 1.0, diagnostics=(first, *more))

    nothing = Goals()
    assert compare([lint("a.py", 1)], [lint("a.py", 9)], nothing).green
    assert compare([lint("a.py", 1)], [lint("b.py", 1)], nothing).green
    another = Diagnostic("Unused `x`", file="b.py", line=4, code="F841")
    assert compare([lint("a.py", 1)], [lint("b.py", 1, another)], nothing).new == ("b.py:4: Unused `x`",)
    same = Diagnostic("Redefinition of unused `os` from line 7", file="b.py", line=9, code="F811")
    assert compare([lint("a.py", 1)], [lint("a.py", 1, same)], nothing).new != ()


def go(exit_code: int, name: str) -> Diagnosis:
    return diagnose(CheckOutput("make test", exit_code, None, 1.0, captured(name), b"", ()))


def test_a_passing_go_package_counts_for_its_unnamed_tests() -> None:
    red, green = go(1, "go_silent.out"), go(0, "go_silent_ok.out")

    found = compare([red], [green])
    broken = compare([green], [red])

    assert (found.green, len(found.fixed), found.missing) == (True, 3, ())
    assert (broken.green, len(broken.new), broken.missing) == (False, 3, ())


def test_a_package_without_tests_counts_for_none() -> None:
    said = b"ok  \texample.com/calc/calc\t0.002s [no tests to run]\nok  \texample.com/calc/other\t0.002s\n"
    none = diagnose(CheckOutput("make test", 0, None, 1.0, said, b"", ()))

    found = compare([go(1, "go_silent.out")], [none])

    assert (found.green, found.fixed, len(found.missing)) == (False, (), 3)


def test_a_file_that_passes_without_its_tests_does_not_stand_for_them() -> None:
    before = Diagnosis("node --test", 1, 1.0, tests=(Result("calc.test.js::adds", "failed"),))
    now = Diagnosis("node --test", 0, 1.0, tests=(Result("calc.test.js", "passed"),))

    assert compare([before], [now]).missing == ("calc.test.js::adds",)


def test_a_fixed_test_shows_the_change() -> None:
    found = compare_fully([check(1, a="failed", b="passed")], [check(0, a="passed", b="passed")])

    assert (found.shown, found.ran, found.verdict) == (("a",), 1, "proven")


EDITED, LIE = Weakening("test_a.py", "base"), Weakening("shop.py", "deceived")


@pytest.mark.parametrize(
    ("now", "weakened", "said"),
    [
        (check(0, a="passed"), EDITED, "only changed or lost tests refuse it"),
        (check(0, b="passed"), None, "only changed or lost tests refuse it"),
        (check(0, a="passed"), LIE, "1 still to fix"),
        (check(1, a="failed"), EDITED, "2 still to fix"),
    ],
)
def test_a_red_end_that_only_changed_tests_explain_says_how_to_permit_them(
    now: Diagnosis, weakened: Weakening | None, said: str
) -> None:
    old = check(1, name="other", c="failed")
    now = msgspec.structs.replace(now, weakened=(weakened,) if weakened else ())
    found = compare_fully([check(0, a="passed"), old], [now, old], Goals(names=("d",)))

    assert found.verdict == "red"
    assert statement(found).startswith(said)
    assert ("--allow-test-changes" in statement(found)) is said.startswith("only")


def test_nothing_red_at_the_start_is_unbroken() -> None:
    found = compare_fully([check(0, a="passed")], [check(0, a="passed")])

    assert (found.green, found.verdict) == (True, "unbroken")


def test_a_linter_that_became_green_shows_only_what_was_asked_of_it() -> None:
    before, now = [Diagnosis("ruff check", 1, 1.0)], [Diagnosis("ruff check", 0, 1.0)]

    assert compare_fully(before, now, Goals(everything=True)).verdict == "unbroken"
    assert compare_fully(before, now, Goals(checks=("ruff check",))).verdict == "proven"


def test_checks_that_can_run_neither_before_nor_now_are_unproven_and_never_green_alone() -> None:
    idle = Diagnosis("cargo test", 127, 1.0, not_run="cargo is not installed")
    found = compare_fully([idle], [idle], Goals(everything=True))

    assert (found.verdict, found.not_run) == ("unproven", ("cargo test: cargo is not installed",))
    assert found.still == found.unrelated == ()


def test_a_check_that_ran_on_the_base_and_cannot_run_now_is_red() -> None:
    now = Diagnosis("pytest", 127, 1.0, not_run="pytest is not installed")
    found = compare_fully([check(0, a="passed")], [now], Goals(everything=True))

    assert (found.verdict, found.new) == ("red", ("pytest",))


def test_a_check_that_could_not_run_and_is_named_must_be_green() -> None:
    idle = Diagnosis("cargo build", 101, 1.0, not_run="it does not build")

    assert compare_fully([idle], [idle], Goals(checks=("cargo build",))).verdict == "red"


def test_a_failure_where_the_base_could_not_run_is_the_change_s_own() -> None:
    before = Diagnosis("go test ./...", 1, 1.0, not_run="it does not build")
    now = Diagnosis("go test ./...", 1, 1.0, tests=(Result("a", "failed"), Result("b", "passed")))

    assert compare_fully([before], [now], Goals(everything=True)).verdict == "red"
