"""What a run was asked to make green."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.compare import compare
from cloister.feedback.goals import Goals, asked, covers
from cloister.feedback.shown import excuse, left_over

SHOP = "tests/test_shop.py::test_discount[10]"
CART = "tests/test_cart.py::TestCart::test_empty"
OLD = (SHOP, CART)


def ran(*red: str, passed: tuple[str, ...] = ("tests/test_shop.py::test_total",)) -> Diagnosis:
    results = [*(Result(name, "failed") for name in red), *(Result(name, "passed") for name in passed)]
    return Diagnosis("python3 -m pytest -q", int(bool(red)), 1.0, tests=tuple(results))


LINT = Diagnosis("ruff check", 1, 1.0)
TYPES = Diagnosis("mypy .", 1, 1.0)
FORMAT = Diagnosis("ruff format --check", 1, 1.0)
BUILD = Diagnosis("make test", 2, 1.0)
LINTERS = ("ruff check", "mypy .")
BASE = (ran(*OLD), LINT, TYPES)
ALL = Goals(names=OLD, everything=True)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        # Without a name: every test that is red, whatever the verb.
        ("Fix the failing test", ALL),
        ("fix the failing tests please", ALL),
        ("The total is wrong when there is a discount.", ALL),
        ("Make the discount work.", ALL),
        ("Add a fix for the crash in the cart", ALL),
        ("Why does it not work?", ALL),
        ("Add feature X", ALL),
        ("Please add a --json flag to the list command.", ALL),
        ("Implement currency conversion", ALL),
        ("Refactor the cart into two modules", ALL),
        ("Rename Cart to Basket everywhere", ALL),
        ("Document the public functions", ALL),
        ("Write tests for the parser", ALL),
        # Named: a test by its name, with its path, by its file. The others count as well.
        ("Fix test_discount", replace(ALL, told=(SHOP,))),
        ("fix `tests/test_cart.py::TestCart::test_empty`.", replace(ALL, told=(CART,))),
        ("Fix what tests/test_cart.py complains about", replace(ALL, told=(CART,))),
        ("Add a guard so that test_empty passes", replace(ALL, told=(CART,))),
        ("see test_cart.py and test_discount", replace(ALL, told=OLD)),
        # Named to be left alone: it counts like any other.
        ("Allow hexadecimal input. Ignore test_discount, it needs the network.", ALL),
        ("Allow hexadecimal input, but do not touch tests/test_cart.py.", ALL),
        ("Add feature X. test_discount and test_empty can be ignored.", ALL),
        ("Fix everything except test_empty", ALL),
        ("Fix test_empty, but leave test_discount alone", replace(ALL, told=(CART,))),
        ("Do not change the API. Fix test_discount.", replace(ALL, told=(SHOP,))),
        # Named: a check by its tool or by what it looks at.
        ("Fix the lint errors", replace(ALL, checks=("ruff check",), told=("ruff check",))),
        ("Make mypy happy", replace(ALL, checks=("mypy .",), told=("mypy .",))),
        ("Clean up the type errors and the lint warnings", replace(ALL, checks=LINTERS, told=LINTERS)),
        ("fix `ruff check`", replace(ALL, checks=("ruff check",), told=("ruff check",))),
        ("Fix the formatting.", replace(ALL, checks=("ruff format --check",), told=("ruff format --check",))),
        # Words of the product name no check.
        ("Support the new date format in parse()", ALL),
        ("Fix the formatting of dates", ALL),
        ("Show warnings in the page, in the style of the list", ALL),
        ("Add a typing indicator, and raise type errors for words", ALL),
        ("Build a cache, and check it in Python", ALL),
        ("Fix parse; ruff is not our problem", ALL),
    ],
)
def test_the_prompt_decides_the_goals(prompt: str, expected: Goals) -> None:
    assert asked(prompt, (*BASE, FORMAT)) == expected


@pytest.mark.parametrize(
    ("prompt", "check", "is_told"),
    [
        ("Fix the eslint errors", "cd web && npx eslint .", True),
        ("Make mypy happy", "cd a && cd b && mypy .", True),
        ("Fix `ruff check`", "cd web && ruff check", True),
        ("The program does not compile", "go build ./...", True),
        ("It doesn't build.", "cargo build", True),
        ("The examples don't compile", "cargo build", True),
        ("The build fails", "cargo build", True),
        ("There are type errors in shop.py", "mypy .", True),
        ("Fix all tsc errors", "npx tsc --noEmit", True),
        ("Fix all lint errors left in src", "ruff check", True),
        ("Don't touch the tests, just make ruff pass", "ruff check", True),
        ("Do not ignore the lint errors", "ruff check", True),
        ("Ignore the tests and make ruff pass", "ruff check", True),
        ("Run black", "black --check .", True),
        ("Do not run black", "black --check .", False),
        ("Run the black-box tests", "black --check .", False),
        ("Do not build a cache. Don't compile the patterns twice.", "cargo build", False),
        ("Tell people when a build fails", "cargo build", False),
        ("Fix test_empty and ignore the lint errors", "ruff check", False),
        ("Add a flag. The mypy errors can be ignored.", "mypy .", False),
        ("Fix everything except the old ruff errors", "ruff check", False),
    ],
)
def test_a_check_is_named_by_its_tool_or_kind_also_beside_a_negation(
    prompt: str, check: str, is_told: bool
) -> None:
    goals = asked(prompt, [Diagnosis(check, 1, 1.0)])

    assert (goals.checks, goals.told) == (((check,),) * 2 if is_told else ((), ()))


@pytest.mark.parametrize("prompt", ["Fix the failing test", "Add feature X", "Anything"])
def test_on_a_green_base_nothing_in_particular_is_asked_for(prompt: str) -> None:
    assert asked(prompt, (ran(), Diagnosis("ruff check", 0, 1.0))) == Goals(everything=True)


def test_checks_that_the_caller_names_must_be_green_in_full() -> None:
    assert asked("Add feature X", BASE, named=("python3 -m pytest -q",)) == Goals(("python3 -m pytest -q",))


def test_tests_that_the_caller_names_are_all_that_is_asked_for() -> None:
    expected = Goals(names=("test_empty",), exactly=True)

    assert asked("Fix everything", BASE, named=("ruff check",), must_pass=("test_empty",)) == expected


def test_a_test_command_with_unknown_output_is_one_goal() -> None:
    assert asked("Fix the failing test", (BUILD,)) == Goals(checks=("make test",), everything=True)


def test_a_word_of_every_day_is_no_name_of_a_test() -> None:
    base = (
        Diagnosis(
            "npm test", 1, 1.0, tests=(Result("cart > adds", "failed"), Result("src/lib.rs::zero", "failed"))
        ),
    )

    assert asked("Add a page that adds zero items", base).everything
    assert asked("Add what `adds` wants", base).told == ("cart > adds",)


def test_a_title_in_words_is_found_in_the_prompt() -> None:
    base = (Diagnosis("npm test", 1, 1.0, tests=(Result("a.test.js::cart > adds two items", "failed"),)),)

    assert asked("Add so that 'adds two items' holds", base).told == ("a.test.js::cart > adds two items",)


@pytest.mark.parametrize(
    ("wish", "name", "expected"),
    [
        ("tests/a.py", "tests/a.py::t", True),
        ("t", "tests/a.py::t", True),
        ("t", "tests/a.py::t[1]", True),
        ("t", "tests/a.py::test", False),
        ("TestA/b", "p::TestA/b", True),
        ("a > b", "f.js::a > b", True),
        ("b", "f.js::a > b", True),
        ("a.py", "tests/a.py::t", True),
        ("a.py", "tests/aa.py::t", False),
        ("make test", "make test", True),
    ],
)
def test_a_goal_covers_what_it_names(wish: str, name: str, expected: bool) -> None:
    assert covers(wish, name) == expected


def test_old_failures_outside_the_task_do_not_prevent_green() -> None:
    base, now = (
        ran(*OLD),
        ran(*OLD, passed=("tests/test_shop.py::test_total", "tests/test_x.py::test_new")),
    )

    wish = asked("Add feature X", [base])
    left = left_over(compare([base], [now], wish), wish)
    found = excuse(compare([base], [now], wish), dict.fromkeys(left, "as on the base"))

    assert (found.unrelated, found.green, found.asked) == (tuple(sorted(OLD)), True, ())
    assert found.notes == (f"left red, as on the base: {', '.join(sorted(OLD))}",)


def test_a_test_that_the_prompt_names_must_be_green_and_no_experiment_excuses_it() -> None:
    base = ran(*OLD)
    wish = asked("Fix test_discount", [base])

    still_red = compare([base], [base], wish)
    fixed = compare([base], [ran(CART, passed=("tests/test_shop.py::test_total", SHOP))], wish)

    assert (set(still_red.asked), left_over(still_red, wish)) == ({*OLD}, ())
    assert (fixed.green, fixed.fixed, left_over(fixed, wish)) == (False, (SHOP,), (CART,))
    assert excuse(fixed, {CART: "as on the base"}).verdict == "proven"


def test_formatting_alone_does_not_show_a_new_format_of_dates() -> None:
    base, formatted = (ran(*OLD), FORMAT), (ran(*OLD), Diagnosis("ruff format --check", 0, 1.0))

    found = compare(base, formatted, asked("Support the new date format in parse()", base))

    assert (found.verdict, found.shown, found.asked) == ("red", (), tuple(sorted(OLD)))


@pytest.mark.parametrize("pattern", ["test_empty", "test_em*", "tests/test_cart.py", "tests/test_c*", CART])
def test_a_person_can_exclude_red_tests_and_the_result_lists_them(pattern: str) -> None:
    base, now = ran(*OLD), ran(CART, passed=("tests/test_shop.py::test_total", SHOP))
    wish = asked("Fix it, also test_empty", [base], excluded=(pattern,))

    found = compare([base], [now], wish)

    assert (found.verdict, found.shown, found.unrelated) == ("proven", (SHOP,), (CART,))
    assert found.notes == (f"left red, excluded by --exclude-test {pattern}: {CART}",)


def test_an_excluded_test_proves_nothing_and_must_not_break() -> None:
    base = ran(CART)
    wish = asked("Add feature X", [base], excluded=("test_empty", "test_total"))
    total = "tests/test_shop.py::test_total"

    assert compare([base], [ran(passed=(total, CART))], wish).verdict == "unbroken"
    assert compare([base], [ran(CART, total, passed=())], wish).new == (total,)


def test_new_failure_is_never_green_for_any_request() -> None:
    base = ran()

    found = compare(
        [base], [ran("tests/test_shop.py::test_total", passed=())], asked("Add feature X", [base])
    )

    assert (found.new, found.green) == (("tests/test_shop.py::test_total",), False)


def test_a_test_that_is_yet_to_be_written_can_be_asked_for() -> None:
    base, wish = ran(), Goals(names=("test_new",), exactly=True)

    without = compare([base], [base], wish)
    written = compare(
        [base], [ran(passed=("tests/test_shop.py::test_total", "tests/test_shop.py::test_new"))], wish
    )

    assert (without.asked, without.green) == (("test_new",), False)
    assert written.green


def test_a_linter_that_was_red_must_not_complain_about_more() -> None:
    from cloister.core.diagnosis import Diagnostic

    def lint(*messages: str) -> Diagnosis:
        found = tuple(Diagnostic(message, "a.py", n + 1, code="F1") for n, message in enumerate(messages))
        return Diagnosis("ruff check", 1, 1.0, diagnostics=found)

    base, wish = lint("old", "old"), Goals()

    assert compare([base], [lint("moved down", "old")], wish).new == ("a.py:1: moved down",)
    assert compare([base], [lint("old")], wish).green
    assert compare([base], [lint("old", "old")], wish).unrelated == ("ruff check",)


def test_a_flaky_test_is_ignored() -> None:
    import msgspec

    now = msgspec.structs.replace(
        ran("tests/test_shop.py::test_total", passed=()), flaky=("tests/test_shop.py::test_total",)
    )

    found = compare([ran()], [now], Goals())

    assert (found.green, found.new, found.flaky) == (True, (), ("tests/test_shop.py::test_total",))


@given(st.text(max_size=200), st.lists(st.text(max_size=30), max_size=5), st.text(max_size=30))
def test_any_prompt_and_any_name_can_be_judged(prompt: str, names: list[str], command: str) -> None:
    base = [Diagnosis(command, 1, 1.0, tests=tuple(Result(name, "failed") for name in names))]

    found = compare(base, base, asked(prompt, base))

    assert sorted([*found.asked, *found.unrelated]) == sorted(found.still)
    assert found.green == (not found.asked)


def test_a_prompt_as_long_as_they_come_is_judged_at_once() -> None:
    started = time.process_time()
    asked("fix " + "test_a b " * 30_000, [ran(*(f"tests/a.py::test_{n}" for n in range(5_000)))])
    assert time.process_time() - started < 2
