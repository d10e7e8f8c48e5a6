"""Which checks run between two turns, and in which order."""

import pytest

from cloister.core.diagnosis import Check
from cloister.feedback.affected import batches, plan
from cloister.feedback.flags import specify

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
def test_only_what_the_changed_files_can_touch_runs(
    changed: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert planned(*changed) == expected


def test_a_check_that_nobody_knows_always_runs() -> None:
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
