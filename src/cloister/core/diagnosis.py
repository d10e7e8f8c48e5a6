"""What a check found, as data, and how it compares with the baseline."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]
TestStatus = Literal["passed", "failed", "error", "skipped"]
CheckKind = Literal["format", "lint", "types", "build", "test", "other"]
"""What a check looks at, the quickest to answer first."""

HowWeakened = Literal[
    "changed", "skipped", "deleted", "data", "configuration", "base", "deceived", "silenced"
]
"""`base`: red with the tests as the base has them; `deceived`: the code looks for tests or stands in for their tools;
`silenced`: a complaint was hushed up, not mended."""


class Check(msgspec.Struct, frozen=True):
    """One command that must be green, and how it is run."""

    command: str
    """The command line, by which the check is known everywhere."""
    kind: CheckKind = "other"
    seconds: float = 600.0
    run: str = ""
    """The command line that is really run, when it is another: the same thing, asked for a report as well."""
    languages: tuple[str, ...] = ()
    """Whose files it looks at; empty means: any file may matter to it."""


class Weakening(msgspec.Struct, frozen=True):
    """A test, or what decides which tests run, is less than it was on the base."""

    file: str
    how: HowWeakened
    test: str | None = None
    """The name inside the file; None for the whole file."""
    detail: str = ""


class Diagnostic(msgspec.Struct, frozen=True):
    """One complaint about one place in the source."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    severity: Severity = "error"
    code: str | None = None
    tool: str | None = None
    source: str | None = None
    """The lines around the place, numbered, bounded."""


class TestResult(msgspec.Struct, frozen=True):
    """One test and how it went."""

    name: str
    status: TestStatus
    file: str | None = None
    line: int | None = None
    message: str | None = None
    """Why it failed, bounded."""
    source: str | None = None
    """The lines around the place, numbered, bounded."""


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
    flaky: tuple[str, ...] = ()
    """Tests that failed and passed on the same files."""
    weakened: tuple[Weakening, ...] = ()
    """What the working tree did to tests and their configuration, as it was when the check ran."""
    log: str | None = None
    """Where in the sandbox the whole output is, when it is more than the tail."""

    @property
    def green(self) -> bool:
        return self.exit_code == 0 and self.killed is None

    @property
    def failing(self) -> tuple[TestResult, ...]:
        return tuple(t for t in self.tests if t.status in ("failed", "error"))


class Comparison(msgspec.Struct, frozen=True):
    """The checks now against the checks on the untouched base. Names of tests, or of whole checks."""

    fixed: tuple[str, ...] = ()
    """Red before, green now: the proof."""
    new: tuple[str, ...] = ()
    """Red now, not red before."""
    still: tuple[str, ...] = ()
    """Red before and now, asked for or not."""
    missing: tuple[str, ...] = ()
    """Ran before and are not there now. Never green."""
    passed: int = 0
    green: bool = False
    """Nothing new is red, what was asked for is green, and no test was lost on the way."""
    asked: tuple[str, ...] = ()
    """Asked for, and not green yet."""
    unrelated: tuple[str, ...] = ()
    """The part of `still` that nobody asked for: it does not stand in the way."""
    skipped: tuple[str, ...] = ()
    """Ran before and are skipped now. Never green."""
    weakened: tuple[str, ...] = ()
    """Red before, and the test itself was made easier; or what decides which tests run was. Never green."""
    flaky: tuple[str, ...] = ()
    """Failed and passed on the same files: nobody's."""

    @property
    def red(self) -> int:
        return len(self.new) + len(self.still) + len(self.missing) + len(self.skipped)

    @property
    def open(self) -> int:
        """How many things stand between this and green."""
        lost = len(self.missing) + len(self.skipped) + len(self.weakened)
        return len(self.new) + len(self.asked) + lost
