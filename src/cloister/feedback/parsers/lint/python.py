"""`ruff check --output-format json`."""

import msgspec

from cloister.core.diagnosis import Severity
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import rows, whole


class _Location(msgspec.Struct, frozen=True):
    row: int
    column: int


class _Complaint(msgspec.Struct, frozen=True):
    filename: str
    message: str
    location: _Location | None = None
    code: str | None = None
    severity: str = "error"


def ruff_json(output: CheckOutput) -> Found | None:
    """A `Parser`."""
    for found in whole(output, b'"noqa_row"', list[_Complaint]):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "ruff",
                    one.message,
                    one.filename,
                    (one.location.row, one.location.column) if one.location else (None, None),
                    plain.severity(one.severity),
                    one.code,
                )
                for one in found
            )
        )
    return None


# `mypy --output json`: one object a line.


class _MypyComplaint(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int
    message: str
    severity: str
    hint: str | None = None
    code: str | None = None


def mypy_json(output: CheckOutput) -> Found | None:
    """A `Parser`. mypy counts columns from 0."""
    found = tuple(
        plain.complaint(
            "mypy",
            f"{one.message}\n{one.hint}" if one.hint else one.message,
            one.file,
            (one.line, one.column + 1),
            plain.severity(one.severity),
            one.code,
        )
        for one in rows(output, b'"severity": ', _MypyComplaint)
    )
    return Found(diagnostics=found) if found else None


# `pyright --outputjson`.


class _Point(msgspec.Struct, frozen=True):
    line: int
    character: int


class _Range(msgspec.Struct, frozen=True):
    start: _Point


class _PyrightComplaint(msgspec.Struct, frozen=True):
    message: str
    severity: str
    file: str | None = None
    range: _Range | None = None
    rule: str | None = None


class _Report(msgspec.Struct, frozen=True):
    general: list[_PyrightComplaint] = msgspec.field(name="generalDiagnostics")


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


# `pylint --output-format=json2`.


_SEVERITIES: dict[str, Severity] = {"fatal": "error", "error": "error", "warning": "warning"}


class _Message(msgspec.Struct, frozen=True):
    type: str
    symbol: str
    message: str
    path: str
    line: int
    column: int
    id: str = msgspec.field(name="messageId")


class _PylintReport(msgspec.Struct, frozen=True):
    messages: list[_Message]


def pylint_json(output: CheckOutput) -> Found | None:
    """A `Parser`. pylint counts columns from 0."""
    for report in whole(output, b'"messageId"', _PylintReport):
        return Found(
            diagnostics=tuple(
                plain.complaint(
                    "pylint",
                    one.message,
                    one.path,
                    (one.line, one.column + 1),
                    _SEVERITIES.get(one.type, "note"),
                    f"{one.id} {one.symbol}",
                )
                for one in report.messages
            )
        )
    return None
