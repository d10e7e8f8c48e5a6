"""The result of a check as data, and its comparison with the baseline."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]
TestStatus = Literal["passed", "failed", "error", "skipped"]
CheckKind = Literal["format", "lint", "types", "build", "test", "other"]
"""What a check examines, the fastest kind first."""

HowWeakened = Literal[
    "changed", "skipped", "deleted", "data", "configuration", "base", "deceived", "silenced", "moved"
]
"""`base`: red with the tests as the base has them; `deceived`: the code looks for tests or stands in for their tools;
`silenced`: a complaint was suppressed instead of fixed; `moved`: the same test has another name or file, which is fine."""


class Check(msgspec.Struct, frozen=True):
    """One command that must pass, and how it is run."""

    command: str
    """The command line; it identifies the check everywhere."""
    kind: CheckKind = "other"
    seconds: float = 600.0
    run: str = ""
    """The command line that is run if it differs: the same command with a report option."""
    languages: tuple[str, ...] = ()
    """Languages whose files it examines; empty: any file may matter."""


class Weakening(msgspec.Struct, frozen=True):
    """A test, or the configuration that selects tests, was weakened since the base."""

    file: str
    how: HowWeakened
    test: str | None = None
    """The name inside the file; None for the whole file."""
    detail: str = ""


class Diagnostic(msgspec.Struct, frozen=True):
    """One message about one place in the source."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    severity: Severity = "error"
    code: str | None = None
    tool: str | None = None
    source: str | None = None
    """The numbered lines around the place, bounded."""


class TestResult(msgspec.Struct, frozen=True):
    """One test and how it went."""

    name: str
    status: TestStatus
    file: str | None = None
    line: int | None = None
    message: str | None = None
    """Why it failed, bounded."""
    source: str | None = None
    """The numbered lines around the place, bounded."""


class Diagnosis(msgspec.Struct, frozen=True):
    """One run of one check, parsed."""

    check: str
    """The command line."""
    exit_code: int | None
    seconds: float
    killed: str | None = None
    """`time`, `output`, … if the check was killed."""
    tests: tuple[TestResult, ...] = ()
    unlisted: int = 0
    """Passed tests that are only counted: the tool printed no names, or there were too many."""
    diagnostics: tuple[Diagnostic, ...] = ()
    tail: str = ""
    """The last lines of its output, harmless and bounded."""
    flaky: tuple[str, ...] = ()
    """Tests that failed and passed on the same files."""
    weakened: tuple[Weakening, ...] = ()
    """Weakened tests and configuration in the working tree when the check ran."""
    log: str | None = None
    """Path of the whole output in the sandbox, if it is longer than the tail."""

    @property
    def green(self) -> bool:
        return self.exit_code == 0 and self.killed is None

    @property
    def failing(self) -> tuple[TestResult, ...]:
        return tuple(t for t in self.tests if t.status in ("failed", "error"))


class Comparison(msgspec.Struct, frozen=True):
    """The checks now against the checks on the untouched base, by name of test or check."""

    fixed: tuple[str, ...] = ()
    """Red before, green now: the proof."""
    new: tuple[str, ...] = ()
    """Red now, not red before."""
    still: tuple[str, ...] = ()
    """Red before and now, requested or not."""
    missing: tuple[str, ...] = ()
    """Ran before and missing now. Never green."""
    passed: int = 0
    green: bool = False
    """Nothing new is red, everything requested is green, and no test was lost."""
    asked: tuple[str, ...] = ()
    """Requested, and not green yet."""
    unrelated: tuple[str, ...] = ()
    """The part of `still` that was not requested: it does not block green."""
    skipped: tuple[str, ...] = ()
    """Ran before and skipped now. Never green."""
    weakened: tuple[str, ...] = ()
    """Red before, and the test or the selection of tests was weakened. Never green."""
    flaky: tuple[str, ...] = ()
    """Failed and passed on the same files: not counted as red."""

    @property
    def red(self) -> int:
        return len(self.new) + len(self.still) + len(self.missing) + len(self.skipped)

    @property
    def open(self) -> int:
        """Return how many items block green."""
        lost = len(self.missing) + len(self.skipped) + len(self.weakened)
        return len(self.new) + len(self.asked) + lost
