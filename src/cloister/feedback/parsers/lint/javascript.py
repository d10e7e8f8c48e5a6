"""`eslint -f json`."""

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import whole


class _Message(msgspec.Struct, frozen=True):
    severity: int
    message: str
    rule: str | None = msgspec.field(name="ruleId", default=None)
    line: int | None = None
    column: int | None = None


class _File(msgspec.Struct, frozen=True):
    messages: list[_Message]
    path: str = msgspec.field(name="filePath")


def eslint_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for files in whole(output, b'"filePath"', list[_File]):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "eslint",
                    one.message,
                    file.path,
                    (one.line, one.column),
                    "error" if one.severity > 1 else "warning",
                    one.rule,
                )
                for file in files
                for one in file.messages
            )
        )
    return None


# `biome … --reporter=json`.


class _Point(msgspec.Struct, frozen=True):
    line: int
    column: int


class _Location(msgspec.Struct, frozen=True):
    path: str | None = None
    start: _Point | None = None


class _Complaint(msgspec.Struct, frozen=True):
    severity: str
    message: str
    category: str | None = None
    location: _Location | None = None


class _Report(msgspec.Struct, frozen=True):
    summary: msgspec.Raw
    diagnostics: list[_Complaint]


def biome_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for report in whole(output, b'"category"', _Report):
        return Found(diagnostics=tuple(_read(one) for one in report.diagnostics))
    return None


def _read(one: _Complaint) -> Diagnostic:
    where = one.location or _Location()
    at = (where.start.line, where.start.column) if where.start else (None, None)
    return plain.complaint("biome", one.message, where.path, at, plain.severity(one.severity), one.category)


# `oxlint -f json`.


class _Span(msgspec.Struct, frozen=True):
    line: int | None = None
    column: int | None = None


class _Label(msgspec.Struct, frozen=True):
    span: _Span


class _OxlintComplaint(msgspec.Struct, frozen=True):
    message: str
    severity: str
    filename: str
    labels: list[_Label]
    code: str | None = None
    help: str | None = None


class _OxlintReport(msgspec.Struct, frozen=True):
    diagnostics: list[_OxlintComplaint]
    files: int = msgspec.field(name="number_of_files")


def oxlint_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for report in whole(output, b'"number_of_rules"', _OxlintReport):
        return Found(diagnostics=tuple(_oxlint_read(one) for one in report.diagnostics))
    return None


def _oxlint_read(one: _OxlintComplaint) -> Diagnostic:
    at = (one.labels[0].span.line, one.labels[0].span.column) if one.labels else (None, None)
    said = f"{one.message}\n{one.help}" if one.help else one.message
    return plain.complaint("oxlint", said, one.filename, at, plain.severity(one.severity), one.code)
