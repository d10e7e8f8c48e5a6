"""What a check found, as data, and how it compares with the baseline."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]
TestStatus = Literal["passed", "failed", "error", "skipped"]


class Diagnostic(msgspec.Struct, frozen=True):
    """One complaint about one place in the source."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    severity: Severity = "error"
    code: str | None = None
    tool: str | None = None


class TestResult(msgspec.Struct, frozen=True):
    """One test and how it went."""

    name: str
    status: TestStatus
    file: str | None = None
    line: int | None = None
    message: str | None = None
    """Why it failed, bounded."""


class Diagnosis(msgspec.Struct, frozen=True):
    """One run of one check, understood."""

    check: str
    """The command line."""
    exit_code: int | None
    seconds: float
    killed: str | None = None
    """`time`, `output`, … when the check did not end by itself."""
    tests: tuple[TestResult, ...] = ()
    unlisted: int = 0
    """Tests that passed and are known by their number only: the tool named no names, or there were too many."""
    diagnostics: tuple[Diagnostic, ...] = ()
    tail: str = ""
    """The last lines of its output, harmless and bounded: what remains when nothing was understood."""

    @property
    def green(self) -> bool:
        return self.exit_code == 0 and self.killed is None

    @property
    def failing(self) -> tuple[TestResult, ...]:
        return tuple(t for t in self.tests if t.status in ("failed", "error"))


class Comparison(msgspec.Struct, frozen=True):
    """The checks now against the checks on the untouched base. Names of tests, or of whole checks."""

    fixed: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    """Red now, not red before."""
    still: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Ran before and do not run now: deleted or skipped. Never green."""
    passed: int = 0
    green: bool = False
    """Every check is green and nothing is missing."""

    @property
    def red(self) -> int:
        return len(self.new) + len(self.still) + len(self.missing)
