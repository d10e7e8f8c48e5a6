"""A check that could not run says why, and is told from one that failed."""

import pytest

from cloister.core.computer import Killed
from cloister.feedback.api import CheckOutput
from cloister.feedback.diagnose import diagnose


def not_run(
    command: str, code: int | None, out: str = "", err: str = "", killed: Killed | None = None
) -> str:
    return diagnose(CheckOutput(command, code, killed, 1.0, out.encode(), err.encode())).not_run


@pytest.mark.parametrize(
    ("command", "code", "text", "expected"),
    [
        ("cargo test", 127, "bash: line 1: cargo: command not found", "cargo is not installed"),
        ("pnpm test", 127, "sh: 1: pnpm: not found", "pnpm is not installed"),
        ("python3 -m pytest -q", 1, "/usr/bin/python3: No module named pytest", "pytest is not installed"),
        ("python3 -m mypy .", 1, "/usr/bin/python3: No module named mypy", "mypy is not installed"),
        (
            "go test ./...",
            1,
            "a.go:3:8: no required module provides package example.com/x; to add it:",
            "example.com/x is",
        ),
        ("npx jest", 1, "Error: Cannot find module 'left-pad'", "left-pad is not installed"),
        ("cargo test", 101, "error: no matching package named `serde` found", "serde is not installed"),
        (
            "make test",
            2,
            "a.c:1:10: fatal error: zlib.h: No such file or directory",
            "zlib.h is not installed",
        ),
        ("go test ./...", 0, "?   \texample.com/x\t[no test files]", "no test ran"),
        ("python3 -m pytest -q", 5, "no tests ran in 0.01s", "no test ran"),
        (
            "go test ./...",
            1,
            "# x\n./a_test.go:7:2: undefined: Sum\nFAIL\tx [build failed]",
            "it does not build",
        ),
    ],
)
def test_the_reason_is_named(command: str, code: int, text: str, expected: str) -> None:
    assert expected in not_run(command, code, text)


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("./check.sh", 1, "wrong"),
        ("./check.sh", 0, ""),
        ("ruff check", 1, "a.py:1:1: F401 unused import"),
        ("mypy .", 1, "a.py:1: error: Cannot find implementation or library stub for module named 'x'"),
        (
            "python3 -m pytest -q",
            1,
            "=== short test summary info ===\nFAILED a.py::t - ModuleNotFoundError: No module named 'x'\n=== 1 failed in 0.10s ===",
        ),
    ],
)
def test_a_check_that_ran_has_no_reason(command: str, code: int, text: str) -> None:
    assert not_run(command, code, text) == ""


def test_a_check_that_was_stopped_did_not_run() -> None:
    assert "stopped (time)" in not_run("make test", None, killed="time")
