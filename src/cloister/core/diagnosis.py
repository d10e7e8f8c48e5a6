"""The result of a check as data, and its comparison with the baseline."""

from typing import Literal

import msgspec

from cloister.core.text import one_line

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
    not_run: str = ""
    """Why the check says nothing, and what would help: a missing tool, a failed build, no test at all; empty if it ran."""

    @property
    def green(self) -> bool:
        return self.exit_code == 0 and self.killed is None and not self.not_run

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
    """Nothing new is red, everything requested is green, and no test was lost. What this shows is the `verdict`."""
    asked: tuple[str, ...] = ()
    """Requested, and not green yet."""
    unrelated: tuple[str, ...] = ()
    """The part of `still` that was not requested: it does not block green."""
    skipped: tuple[str, ...] = ()
    """Ran before and skipped now. Never green."""
    weakened: tuple[str, ...] = ()
    """The test or the selection of tests was weakened. Never green."""
    flaky: tuple[str, ...] = ()
    """Failed and passed on the same files: not counted as red."""
    not_run: tuple[str, ...] = ()
    """Checks that could run neither on the base nor now, with the reason. Never green."""
    ran: int = 0
    """Checks that ran now."""
    shown: tuple[str, ...] = ()
    """What shows the requested change: red on the base, green now, and no experiment refuted it."""
    notes: tuple[str, ...] = ()
    """Sentences for the reviewer, e.g. that a literal of a test is in the change."""

    @property
    def verdict(self) -> Literal["proven", "unbroken", "unproven", "red"]:
        """The outcome of a finished attempt with these results."""
        if not self.green:
            return "red"
        if not self.ran:
            return "unproven"
        return "proven" if self.shown else "unbroken"

    @property
    def red(self) -> int:
        return len(self.new) + len(self.still) + len(self.missing) + len(self.skipped)

    @property
    def open(self) -> int:
        """Return how many items block green."""
        lost = len(self.missing) + len(self.skipped) + len(self.weakened)
        return len(self.new) + len(self.asked) + lost


AS_ON_THE_BASE = "it fails with the tests of the base"
"""How a test was weakened that passes only as the change has it."""
REWRITTEN = "it was rewritten while the checks ran"
"""What is said of a tracked file that a check changed."""
FOR_A_PERSON = "a person must allow it"
"""The first words on product code that is made for tests, which no experiment can judge."""


def statement(found: Comparison) -> str:
    """What the checks show about the requested change and what they do not, in one line."""
    match found.verdict:
        case "proven":
            first = one_line(found.shown[0], 120)
            more = f" and {len(found.shown) - 1} more" if len(found.shown) > 1 else ""
            said = f"shown by {first}{more}: red on the base, green now"
        case "unbroken":
            said = "nothing new is red; no test shows the requested change"
        case "unproven":
            why = f": {found.not_run[0]}" if found.not_run else ""
            return one_line(f"no check could run{why}", 300)
        case "red":
            said = f"{found.open:,} still to fix" if found.open else "not green"
            if (
                found.open
                and not (found.new or found.asked)
                and all(AS_ON_THE_BASE in one or FOR_A_PERSON in one for one in found.weakened)
            ):
                odd = any(FOR_A_PERSON in one for one in found.weakened)
                said = (
                    f"only {'code that is made for' if odd else 'changed or lost'} tests refuse{'s' if odd else ''} it; "
                    "if that is meant, run it with --ask-test-changes, or name their files with --allow-test-changes"
                )
    parts = ((found.unrelated, "old and unrelated"), (found.not_run, "not run"))
    rest = "".join(f"; {word}: {_few(names)}" for names, word in parts if names)
    return one_line(said + rest, 400)


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(one_line(name, 120) for name in names[:2]) + more
