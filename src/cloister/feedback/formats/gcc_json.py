"""`gcc -fdiagnostics-format=json`: one list a line for every file that is compiled."""

from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import rows


class _Point(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int | None = None


class _Location(msgspec.Struct, frozen=True):
    caret: _Point


class _Note(msgspec.Struct, frozen=True):
    kind: str
    message: str
    locations: list[_Location] = []


class _Complaint(_Note, frozen=True):
    origin: int = msgspec.field(name="column-origin", default=1)
    option: str | None = None
    children: list[_Note] = []


def gcc_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    found = tuple(
        diagnostic for row in rows(output, b'"caret"', list[_Complaint]) for diagnostic in _read(row)
    )
    return Found(diagnostics=found) if found else None


def _read(row: list[_Complaint]) -> Iterator[Diagnostic]:
    for one in row:
        yield _diagnostic(one, one.option)
        for child in one.children:
            yield _diagnostic(child, None)


def _diagnostic(one: _Note, code: str | None) -> Diagnostic:
    caret = one.locations[0].caret if one.locations else None
    at = (caret.line, caret.column) if caret else (None, None)
    file = caret.file if caret else None
    return plain.complaint("gcc", one.message, file, at, plain.severity(one.kind), code)
