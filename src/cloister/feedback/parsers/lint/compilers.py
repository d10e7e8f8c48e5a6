"""`gcc -fdiagnostics-format=json`: one list a line for every file that is compiled."""

from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import rows


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


# `cargo … --message-format=json` and `rustc --error-format=json`: one object a line.


class _Span(msgspec.Struct, frozen=True):
    file_name: str
    line_start: int
    column_start: int
    is_primary: bool
    label: str | None = None


class _Code(msgspec.Struct, frozen=True):
    code: str


class _RustComplaint(msgspec.Struct, frozen=True):
    message: str
    level: str
    spans: list[_Span]
    code: _Code | None = None
    type: str | None = msgspec.field(name="$message_type", default=None)


class _Message(msgspec.Struct, frozen=True):
    reason: str
    message: _RustComplaint


def rust_json(output: CheckOutput) -> Found | None:
    """A `Parser`. Complaints without a place only sum up those above them."""
    found = tuple(_rust_read(one) for one in _complaints(output) if one.spans)
    return Found(diagnostics=found) if found else None


def _complaints(output: CheckOutput) -> Iterator[_RustComplaint]:
    for message in rows(output, b'"compiler-message"', _Message):
        yield message.message
    yield from rows(output, b'"$message_type"', _RustComplaint)


def _rust_read(one: _RustComplaint) -> Diagnostic:
    span = next((span for span in one.spans if span.is_primary), one.spans[0])
    said = f"{one.message}: {span.label}" if span.label else one.message
    at = (span.line_start, span.column_start)
    code = one.code.code if one.code else None
    return plain.complaint("rustc", said, span.file_name, at, plain.severity(one.level), code)
