"""Which checks run between two turns, and in which order."""

import msgspec
import pytest

from cloister.core.diagnosis import Check, Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.affected import batches, first, merged, nearest, plan
from cloister.feedback.check_commands import specify
from cloister.feedback.compare import compare
from cloister.feedback.goals import mentioned

COMMANDS = (
    "python3 -m pytest -q",
    "mypy .",
    "ruff check",
    "ruff format --check",
    "npm test",
    "go vet ./...",
    "make test",
)
CHECKS = tuple(specify(command, {"test": "jest"}) for command in COMMANDS)


def planned(*changed: str) -> tuple[str, ...]:
    return tuple(check.command for check in plan(changed, CHECKS))


def test_the_quick_ones_come_first() -> None:
    assert [check.command for check in plan(None, CHECKS)] == [
        "ruff format --check",
        "ruff check",
        "go vet ./...",
        "mypy .",
        "python3 -m pytest -q",
        "npm test",
        "make test",
    ]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (("src/a.py",), ("ruff format --check", "ruff check", "mypy .", "python3 -m pytest -q", "make test")),
        (("web/a.ts",), ("npm test", "make test")),
        (("main.go",), ("go vet ./...", "make test")),
        (("README.md",), ("make test",)),
        (("Makefile",), tuple(check.command for check in plan(None, CHECKS))),
        # What has no known ending may be read by a test, never by a linter.
        (("tests/data/sample",), ("python3 -m pytest -q", "npm test", "make test")),
    ],
)
def test_only_checks_that_the_changed_files_affect_run(
    changed: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert planned(*changed) == expected


def test_an_unknown_check_always_runs() -> None:
    assert plan(["README.md"], [Check("./verify")]) == (Check("./verify"),)


def test_checks_that_only_read_run_side_by_side_and_others_alone() -> None:
    groups = batches(plan(None, CHECKS), 2)

    assert [[check.command for check in group] for group in groups] == [
        ["ruff format --check", "ruff check"],
        ["go vet ./...", "mypy ."],
        ["python3 -m pytest -q"],
        ["npm test"],
        ["make test"],
    ]
    assert all(len(group) == 1 for group in batches(CHECKS, 1))


FILES = ("src/cart.py", "tests/test_cart.py", "tests/test_shop.py", "web/cart.test.ts", "tests/cart_test.py")
KNOWN = Diagnosis(
    "python3 -m pytest -q",
    0,
    30.0,
    tests=(Result("tests/test_cart.py::test_a", "passed"), Result("tests/test_shop.py::test_b", "passed")),
)


LONG = Diagnosis(
    "python3 -m pytest -q",
    1,
    100.0,
    tests=(
        *KNOWN.tests,
        Result("tests/test_till.py::test_c", "failed"),
        *(Result(f"tests/test_{name}.py::test_x", "passed") for name in "defg"),
    ),
)
ALL = frozenset((*FILES, "src/d.py", *(f"tests/test_{name}.py" for name in ("till", *"defg"))))


def sampled(prompt: str = "", *changed: str, before: Diagnosis = LONG) -> tuple[str, ...]:
    names = [test.name for test in before.tests]
    return first(before, mentioned(prompt, names), changed, ALL)


def test_of_a_long_suite_what_the_task_means_what_failed_and_what_changed_runs_first() -> None:
    red = "tests/test_till.py"
    assert sampled() == (red,)
    assert sampled("Repair src/cart.py, please.") == ("tests/test_cart.py", red)
    assert sampled("Why is test_b slow?") == ("tests/test_shop.py", red)
    assert sampled("See tests/test_e.py::test_x.") == ("tests/test_e.py", red)
    assert sampled("", "src/d.py") == ("tests/test_d.py", red)
    assert mentioned("", ["a.py::test_x", "b.py::test_y"], ["test_y"]) == ("b.py::test_y",)


def test_a_short_suite_and_one_that_is_meant_as_a_whole_have_no_sample() -> None:
    assert sampled(before=msgspec.structs.replace(LONG, seconds=20.0)) == ()
    assert sampled(before=msgspec.structs.replace(LONG, killed="time")) == ()
    assert sampled(before=msgspec.structs.replace(LONG, tests=LONG.tests[:2])) == (), "none failed"
    assert sampled(" ".join(test.name for test in LONG.tests)) == ()


def near(*changed: str, command: str = "python3 -m pytest -q", known: Diagnosis = KNOWN) -> tuple[str, ...]:
    found = nearest(specify(command), known, changed, FILES)
    return found.files if found else ()


def test_of_a_long_check_the_tests_named_after_the_change_come_first() -> None:
    assert near("src/cart.py") == ("tests/cart_test.py", "tests/test_cart.py")
    assert near("tests/test_shop.py") == ("tests/test_shop.py",)
    assert near("web/cart.ts", command="npx vitest run") == ("web/cart.test.ts",)
    line = nearest(specify("python3 -m pytest -q"), KNOWN, ("tests/test_shop.py",), FILES)
    assert line is not None
    assert line.line == "python3 -m pytest -q tests/test_shop.py"


@pytest.mark.parametrize(
    ("changed", "command", "known"),
    [
        ("src/other.py", "python3 -m pytest -q", KNOWN),
        ("src/cart.py", "python3 -m pytest -q", msgspec.structs.replace(KNOWN, seconds=1.0)),
        ("src/cart.py", "python3 -m pytest -q", msgspec.structs.replace(KNOWN, unlisted=3)),
        ("src/cart.py", "python3 -m pytest -q tests/", KNOWN),
        ("src/cart.py", "make test", KNOWN),
        ("src/cart.py", "mypy .", KNOWN),
    ],
)
def test_a_check_is_run_whole_where_a_part_would_save_nothing(
    changed: str, command: str, known: Diagnosis
) -> None:
    assert near(changed, command=command, known=known) == ()


def test_after_a_red_part_the_rest_of_the_check_stands_as_it_was() -> None:
    part = Diagnosis("python3 -m pytest -q", 1, 0.5, tests=(Result("tests/test_cart.py::test_a", "failed"),))

    found = compare([KNOWN], [merged(KNOWN, part, ("tests/test_cart.py",))])

    assert (found.new, found.missing, found.passed) == (("tests/test_cart.py::test_a",), (), 1)


def test_a_test_that_is_gone_from_the_part_that_ran_is_missing() -> None:
    part = Diagnosis("python3 -m pytest -q", 1, 0.5, tests=(Result("tests/test_cart.py::test_z", "failed"),))

    found = compare([KNOWN], [merged(KNOWN, part, ("tests/test_cart.py",))])

    assert found.missing == ("tests/test_cart.py::test_a",)
