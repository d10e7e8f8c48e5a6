"""What a parser of tool output is: one pure function from a check's output to what it found."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Protocol

import msgspec

from cloister.core.computer import Killed
from cloister.core.diagnosis import Diagnostic, TestResult
from cloister.feedback.parsers import plain


class CheckOutput(msgspec.Struct, frozen=True, dict=True):
    """The output of one check. All of it is untrusted."""

    command: str
    exit_code: int | None
    killed: Killed | None
    seconds: float
    out: bytes
    err: bytes
    reports: tuple[bytes, ...] = ()
    """Report files that the tool wrote. Parsers detect their formats."""
    matchers: tuple[bytes, ...] = ()
    """Problem-matcher files of the repository, from the base."""

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

    def lines_with(self, *needles: bytes) -> Iterator[list[str]]:
        """The lines of stdout, then of stderr, each only if it contains one of `needles`."""
        if any(needle in self.out for needle in needles):
            yield self.out_lines
        if any(needle in self.err for needle in needles):
            yield self.err_lines


class Found(msgspec.Struct, frozen=True):
    """The result of one parser."""

    tests: tuple[TestResult, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    unlisted: int = 0
    """Tests that passed and that the output counts without naming them."""

    @classmethod
    def of(
        cls, tests: Iterable[TestResult] = (), diagnostics: Iterable[Diagnostic] = (), unlisted: int = 0
    ) -> "Found | None":
        """None if it would be empty."""
        result = cls(tuple(tests), tuple(diagnostics), unlisted)
        return result if result.tests or result.diagnostics or unlisted else None


class Parser(Protocol):
    """Parses one format.

    Never raises, whatever the bytes; takes linear time; returns None if the output is not in its format.
    """

    def __call__(self, output: CheckOutput) -> Found | None: ...
