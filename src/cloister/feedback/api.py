"""What a parser of tool output is: one pure function from a check's output to what it found."""

from collections.abc import Callable, Iterable
from functools import cached_property, wraps
from typing import Literal, Protocol

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

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The lines of stdout and of stderr."""
        return self.out_lines, self.err_lines

    def has(self, needles: Iterable[bytes], where: "Where") -> bool:
        """True if one of `needles` is there."""
        places = {
            "out": (self.out,),
            "text": (self.out, self.err),
            "any": self.sources,
            "matchers": self.matchers,
        }
        return any(needle in place for place in places[where] for needle in needles)


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


Where = Literal["out", "text", "any", "matchers"]
"""stdout; both streams; the streams and the reports; the problem-matcher files."""


def marked(
    *needles: bytes, where: Where = "out"
) -> Callable[[Callable[[CheckOutput], Found | None]], Parser]:
    """Call the parser only for output that contains one of `needles`, a text of every output in its format."""

    def decorate(parse: Callable[[CheckOutput], Found | None]) -> Parser:
        @wraps(parse)
        def parser(output: CheckOutput) -> Found | None:
            return parse(output) if output.has(needles, where) else None

        return parser

    return decorate
