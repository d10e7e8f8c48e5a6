"""`biome … --reporter=json`."""

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole


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
