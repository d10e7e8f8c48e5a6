"""`cargo … --message-format=json` and `rustc --error-format=json`: one object a line."""

from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import rows


class _Span(msgspec.Struct, frozen=True):
    file_name: str
    line_start: int
    column_start: int
    is_primary: bool
    label: str | None = None


class _Code(msgspec.Struct, frozen=True):
    code: str


class _Complaint(msgspec.Struct, frozen=True):
    message: str
    level: str
    spans: list[_Span]
    code: _Code | None = None
    type: str | None = msgspec.field(name="$message_type", default=None)


class _Message(msgspec.Struct, frozen=True):
    reason: str
    message: _Complaint


def rust_json(output: CheckOutput) -> Found | None:
    """A `Parser`. Complaints without a place only sum up those above them."""
    found = tuple(_read(one) for one in _complaints(output) if one.spans)
    return Found(diagnostics=found) if found else None


def _complaints(output: CheckOutput) -> Iterator[_Complaint]:
    for message in rows(output, b'"compiler-message"', _Message):
        yield message.message
    yield from rows(output, b'"$message_type"', _Complaint)


def _read(one: _Complaint) -> Diagnostic:
    span = next((span for span in one.spans if span.is_primary), one.spans[0])
    said = f"{one.message}: {span.label}" if span.label else one.message
    at = (span.line_start, span.column_start)
    code = one.code.code if one.code else None
    return plain.complaint("rustc", said, span.file_name, at, plain.severity(one.level), code)
