"""Linters and type checkers of Python that write JSON: ruff, mypy, pyright, pylint."""

from collections.abc import Iterator

import msgspec

from cloister.core.diagnosis import Diagnostic, Severity
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import document, each_row

# `ruff check --output-format json`


class _RuffLocation(msgspec.Struct, frozen=True):
    row: int
    column: int


class _RuffComplaint(msgspec.Struct, frozen=True):
    filename: str
    message: str
    location: _RuffLocation | None = None
    code: str | None = None
    severity: str = "error"


@document(b'"noqa_row"', list[_RuffComplaint])
def ruff_json(report: list[_RuffComplaint]) -> Iterator[Diagnostic]:
    for one in report:
        at = (one.location.row, one.location.column) if one.location else (None, None)
        yield plain.complaint("ruff", one.message, one.filename, at, plain.severity(one.severity), one.code)


# `mypy --output json`: one object per line, columns from 0


class _MypyComplaint(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int
    message: str
    severity: str
    hint: str | None = None
    code: str | None = None


@each_row(b'"severity": ', _MypyComplaint)
def mypy_json(one: _MypyComplaint) -> Iterator[Diagnostic]:
    said = f"{one.message}\n{one.hint}" if one.hint else one.message
    at = (one.line, one.column + 1)
    yield plain.complaint("mypy", said, one.file, at, plain.severity(one.severity), one.code)


# `pyright --outputjson`: lines and columns from 0


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


class _PyrightReport(msgspec.Struct, frozen=True):
    general: list[_PyrightComplaint] = msgspec.field(name="generalDiagnostics")


@document(b'"generalDiagnostics"', _PyrightReport)
def pyright_json(report: _PyrightReport) -> Iterator[Diagnostic]:
    for one in report.general:
        start = one.range.start if one.range else None
        at = (start.line + 1, start.character + 1) if start else (None, None)
        yield plain.complaint("pyright", one.message, one.file, at, plain.severity(one.severity), one.rule)


# `pylint --output-format=json2`: columns from 0


_PYLINT: dict[str, Severity] = {"fatal": "error", "error": "error", "warning": "warning"}


class _PylintMessage(msgspec.Struct, frozen=True):
    type: str
    symbol: str
    message: str
    path: str
    line: int
    column: int
    id: str = msgspec.field(name="messageId")


class _PylintReport(msgspec.Struct, frozen=True):
    messages: list[_PylintMessage]


@document(b'"messageId"', _PylintReport)
def pylint_json(report: _PylintReport) -> Iterator[Diagnostic]:
    for one in report.messages:
        how, code = _PYLINT.get(one.type, "note"), f"{one.id} {one.symbol}"
        yield plain.complaint("pylint", one.message, one.path, (one.line, one.column + 1), how, code)
