"""Linters of JavaScript and TypeScript, JSON and text: eslint, biome, oxlint."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import document

_ESLINT_LINE = re.compile(r"^ {2,8}(\d{1,9}):(\d{1,9}) {2,10}(error|warning) {2,10}(\S.*)$")
_ESLINT_RULE = re.compile(r"^[@\w][\w@/-]{0,99}$")
_BIOME_HEAD = re.compile(r"^([^\s:]{1,300}):(\d{1,9}):(\d{1,9}) ([\w/]{1,100}) .{0,80}━{2}")
_BIOME_SAID = re.compile(r"^ {2}([×!i]) (\S.*)$")
_OXLINT_SAID = re.compile(r"^ {2}([×⚠]) (?:([a-z-]{1,40}\([\w-]{1,60}\)): )?(\S.*)$")
_OXLINT_PLACE = re.compile(r"^ {1,8}╭─\[([^\s:]{1,300}):(\d{1,9}):(\d{1,9})\]$")

# `eslint -f json`


class _EslintMessage(msgspec.Struct, frozen=True):
    severity: int
    message: str
    rule: str | None = msgspec.field(name="ruleId", default=None)
    line: int | None = None
    column: int | None = None


class _EslintFile(msgspec.Struct, frozen=True):
    messages: list[_EslintMessage]
    path: str = msgspec.field(name="filePath")


@document(b'"filePath"', list[_EslintFile])
def eslint_json(files: list[_EslintFile]) -> Iterator[Diagnostic]:
    for file in files:
        for one in file.messages:
            how = "error" if one.severity > 1 else "warning"
            yield plain.complaint("eslint", one.message, file.path, (one.line, one.column), how, one.rule)


@marked("✖".encode())
def eslint_text(output: CheckOutput) -> Found | None:
    """A file name, and below it its complaints."""
    return Found.of(diagnostics=_eslint_text(output.out_lines))


def _eslint_text(text: Sequence[str]) -> Iterator[Diagnostic]:
    file = ""
    for line in text:
        if line and not line.startswith(" "):
            file = line
        elif file and (found := _ESLINT_LINE.match(line)):
            said, gap, rule = found[4].rpartition("  ")
            if not gap or not _ESLINT_RULE.match(rule):
                said, rule = found[4], ""
            at = (plain.number(found[1]), plain.number(found[2]))
            yield plain.complaint("eslint", said.rstrip(), file, at, plain.severity(found[3]), rule or None)


# `biome … --reporter=json`


class _BiomePoint(msgspec.Struct, frozen=True):
    line: int
    column: int


class _BiomeLocation(msgspec.Struct, frozen=True):
    path: str | None = None
    start: _BiomePoint | None = None


class _BiomeComplaint(msgspec.Struct, frozen=True):
    severity: str
    message: str
    category: str | None = None
    location: _BiomeLocation | None = None


class _BiomeReport(msgspec.Struct, frozen=True):
    summary: msgspec.Raw
    diagnostics: list[_BiomeComplaint]


@document(b'"category"', _BiomeReport)
def biome_json(report: _BiomeReport) -> Iterator[Diagnostic]:
    for one in report.diagnostics:
        where = one.location or _BiomeLocation()
        at = (where.start.line, where.start.column) if where.start else (None, None)
        yield plain.complaint(
            "biome", one.message, where.path, at, plain.severity(one.severity), one.category
        )


@marked("━━".encode(), where="text")
def biome_text(output: CheckOutput) -> Found | None:
    """A headline with the place, and below it the message."""
    return Found.of(diagnostics=(one for text in output.texts for one in _biome_text(text)))


def _biome_text(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        if "━━" not in line or not (head := _BIOME_HEAD.match(line)):
            continue
        if said := plain.first_match(_BIOME_SAID, text[index + 1 : index + 5]):
            at = (plain.number(head[2]), plain.number(head[3]))
            how = {"×": "error", "!": "warning"}.get(said[1], "note")
            yield plain.complaint("biome", said[2], head[1], at, plain.severity(how), head[4])


# `oxlint -f json`


class _OxlintSpan(msgspec.Struct, frozen=True):
    line: int | None = None
    column: int | None = None


class _OxlintLabel(msgspec.Struct, frozen=True):
    span: _OxlintSpan


class _OxlintComplaint(msgspec.Struct, frozen=True):
    message: str
    severity: str
    filename: str
    labels: list[_OxlintLabel]
    code: str | None = None
    help: str | None = None


class _OxlintReport(msgspec.Struct, frozen=True):
    diagnostics: list[_OxlintComplaint]
    files: int = msgspec.field(name="number_of_files")


@document(b'"number_of_rules"', _OxlintReport)
def oxlint_json(report: _OxlintReport) -> Iterator[Diagnostic]:
    for one in report.diagnostics:
        at = (one.labels[0].span.line, one.labels[0].span.column) if one.labels else (None, None)
        said = f"{one.message}\n{one.help}" if one.help else one.message
        yield plain.complaint("oxlint", said, one.filename, at, plain.severity(one.severity), one.code)


@marked("╭─".encode())
def oxlint_text(output: CheckOutput) -> Found | None:
    """A message, and below it a frame with the place."""
    return Found.of(diagnostics=_oxlint_text(output.out_lines))


def _oxlint_text(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        if not (place := _OXLINT_PLACE.match(line)):
            continue
        if said := plain.first_match(_OXLINT_SAID, text[max(0, index - 4) : index][::-1]):
            at = (plain.number(place[2]), plain.number(place[3]))
            how = "error" if said[1] == "×" else "warning"
            yield plain.complaint("oxlint", said[3], place[1], at, how, said[2])
