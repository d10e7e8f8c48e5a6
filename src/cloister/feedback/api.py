"""What a parser of tool output is: one pure function."""

from typing import Protocol

import msgspec

from cloister.core.commands import Killed
from cloister.core.diagnosis import Diagnostic, TestResult


class CheckOutput(msgspec.Struct, frozen=True):
    """Everything a check left behind. All of it is untrusted."""

    command: str
    exit_code: int | None
    killed: Killed | None
    seconds: float
    out: bytes
    err: bytes
    junit: bytes | None = None
    """A JUnit XML file, where the tool wrote one."""


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
