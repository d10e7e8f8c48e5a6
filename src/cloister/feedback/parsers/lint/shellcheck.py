"""shellcheck: `-f json1`, and the text that it prints by default."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import document

_FILE = re.compile(r"^In (\S.{0,300}) line (\d{1,9}):$")
_LINE = re.compile(r"^( *)\^-{1,300}\^? (SC\d{1,6}) \((error|warning|info|style)\): (\S.*)$")


class _Comment(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int
    level: str
    code: int
    message: str


class _Report(msgspec.Struct, frozen=True):
    comments: list[_Comment]


@document(b'"comments"', _Report)
def shellcheck_json(report: _Report) -> Iterator[Diagnostic]:
    for one in report.comments:
        how, at = plain.severity(one.level), (one.line, one.column)
        yield plain.complaint("shellcheck", one.message, one.file, at, how, f"SC{one.code}")


@marked(b"^-- SC", b"^ SC")
def shellcheck_text(output: CheckOutput) -> Found | None:
    return Found.of(diagnostics=_text(output.out_lines))


def _text(text: Sequence[str]) -> Iterator[Diagnostic]:
    file, line = "", None
    for row in text:
        if head := _FILE.match(row):
            file, line = head[1], plain.number(head[2])
        elif file and (found := _LINE.match(row)):
            at = (line, len(found[1]) + 1)
            yield plain.complaint("shellcheck", found[4], file, at, plain.severity(found[3]), found[2])
