"""What a parser of tool output is: one pure function."""

from functools import cached_property
from typing import Protocol

import msgspec

from cloister.core.computer import Killed
from cloister.core.diagnosis import Diagnostic, TestResult
from cloister.feedback.parsers import plain


class CheckOutput(msgspec.Struct, frozen=True, dict=True):
    """Everything a check left behind. All of it is untrusted."""

    command: str
    exit_code: int | None
    killed: Killed | None
    seconds: float
    out: bytes
    err: bytes
    reports: tuple[bytes, ...] = ()
    """Files that the tool wrote because it was asked to; what they hold is found out by reading them."""
    matchers: tuple[bytes, ...] = ()
    """Problem-matcher files of the repository, as they were on the base."""

    @cached_property
    def out_lines(self) -> list[str]:
        return plain.lines(self.out)

    @cached_property
    def err_lines(self) -> list[str]:
        return plain.lines(self.err)

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Where a document may be, best first."""
        return (*self.reports, self.out, self.err)


class Found(msgspec.Struct, frozen=True):
    """What one parser understood."""

    tests: tuple[TestResult, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    unlisted: int = 0
    """Tests that passed and were counted but not named."""


class Parser(Protocol):
    """Understands one format.

    Never raises, whatever the bytes; takes linear time; returns None when the output is not in its format.
    """

    def __call__(self, output: CheckOutput) -> Found | None: ...
