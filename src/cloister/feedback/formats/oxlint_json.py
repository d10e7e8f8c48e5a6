"""`oxlint -f json`."""

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole


class _Span(msgspec.Struct, frozen=True):
    line: int | None = None
    column: int | None = None


class _Label(msgspec.Struct, frozen=True):
    span: _Span


class _Complaint(msgspec.Struct, frozen=True):
    message: str
    severity: str
    filename: str
    labels: list[_Label]
    code: str | None = None
    help: str | None = None


class _Report(msgspec.Struct, frozen=True):
    diagnostics: list[_Complaint]
    files: int = msgspec.field(name="number_of_files")


def oxlint_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for report in whole(output, b'"number_of_rules"', _Report):
        return Found(diagnostics=tuple(_read(one) for one in report.diagnostics))
    return None


def _read(one: _Complaint) -> Diagnostic:
    at = (one.labels[0].span.line, one.labels[0].span.column) if one.labels else (None, None)
    said = f"{one.message}\n{one.help}" if one.help else one.message
    return plain.complaint("oxlint", said, one.filename, at, plain.severity(one.severity), one.code)
