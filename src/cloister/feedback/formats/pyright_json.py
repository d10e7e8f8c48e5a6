"""`pyright --outputjson`."""

import msgspec

from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.documents import whole


class _Point(msgspec.Struct, frozen=True):
    line: int
    character: int


class _Range(msgspec.Struct, frozen=True):
    start: _Point


class _Complaint(msgspec.Struct, frozen=True):
    message: str
    severity: str
    file: str | None = None
    range: _Range | None = None
    rule: str | None = None


class _Report(msgspec.Struct, frozen=True):
    general: list[_Complaint] = msgspec.field(name="generalDiagnostics")


def pyright_json(output: CheckOutput) -> Found | None:
    """A `Parser`. pyright counts lines and columns from 0."""
    for report in whole(output, b'"generalDiagnostics"', _Report):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "pyright",
                    one.message,
                    one.file,
                    (one.range.start.line + 1, one.range.start.character + 1) if one.range else (None, None),
                    plain.severity(one.severity),
                    one.rule,
                )
                for one in report.general
            )
        )
    return None
