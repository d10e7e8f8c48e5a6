"""Text of any compiler, linter or type checker: `file:line:column: severity: message` and similar."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from cloister.core.diagnosis import Diagnostic, Severity
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain

_COMPLAINTS = 20_000
_COLONS = re.compile(r"^ *([^\s:()\"'<>|]{1,300}):(\d{1,9})(?::(\d{1,9}))?(?::| -) +(\S.*)$")
_PARENS = re.compile(r"^ *([^\s:()\"'<>|]{1,300})\((\d{1,9})(?:,(\d{1,9}))?\) ?: +(\S.*)$")
_ARROW = re.compile(r"^ *--> ([^\s:()\"'<>|]{1,300}):(\d{1,9}):(\d{1,9})$")
_WORD = re.compile(
    r"^(fatal error|internal compiler error|error|warning|note|info(?:rmation)?|remark|hint|help|unformatted)"
    r"(?:\[([A-Za-z]{0,10}\d{1,6})\]| ([A-Z]{1,10}\d{1,6}))?: *(.*)",
    re.IGNORECASE,
)
_LEADING_CODE = re.compile(r"^([A-Z]{1,10}\d{2,6})(?: \[\*\])?(:?) +(\S.*)$")
_LEADING_NAME = re.compile(r"^\[([a-z][\w-]{0,60})\] +(\S.*)$")
_PYLINT: dict[str, Severity] = {"C": "note", "R": "note", "I": "note", "W": "warning"}
_TRAILING_CODE = re.compile(
    r" [\[(](-W[\w=+-]{1,60}|[A-Z]{1,6}\d{2,6}|report[A-Za-z]{1,60}|[a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30})*)[\])]$"
)
_FILE = re.compile(r"(?:^|/)[^/]*\.[A-Za-z_][\w+-]{0,15}$|/[^/]+$|^(?:GNU)?[Mm]akefile$|^Dockerfile$")


def places(output: CheckOutput) -> Found | None:
    """Complaints with a severity or a code, whatever the exit status."""
    return _found(output, with_word=True)


def bare_places(output: CheckOutput) -> Found | None:
    """`file:line: message` without a severity; only if the command failed."""
    return None if output.exit_code == 0 else _found(output, with_word=False)


def _found(output: CheckOutput, *, with_word: bool) -> Found | None:
    return Found.of(
        diagnostics=(
            diagnostic
            for text in (output.out_lines, output.err_lines)
            for marked, diagnostic in islice(_diagnostics(text), _COMPLAINTS)
            if marked == with_word
        )
    )


def _diagnostics(text: Sequence[str]) -> Iterator[tuple[bool, Diagnostic]]:
    """Each complaint, and whether it has a severity or a code."""
    for index, line in enumerate(text):
        if ":" not in line:
            continue
        if arrow := _ARROW.match(line):
            above = text[index - 1] if index else ""
            yield from _complaint(arrow[1], arrow[2], arrow[3], above, needs_word=True)
        elif place := _COLONS.match(line) or _PARENS.match(line):
            yield from _complaint(place[1], place[2], place[3], place[4])


def _complaint(
    file: str, line: str, column: str | None, said: str, *, needs_word: bool = False
) -> Iterator[tuple[bool, Diagnostic]]:
    if not _FILE.search(file) or "//" in file or (needs_word and plain.is_foreign(file)):
        return
    severity, code, message = _read(said.strip())
    if severity is None and (needs_word or plain.is_foreign(file) or message.startswith("***")):
        return
    diagnostic = Diagnostic(
        plain.message(message),
        file=plain.path(file),
        line=plain.number(line),
        column=plain.number(column),
        severity=severity or "error",
        code=code,
    )
    yield severity is not None, diagnostic


def _read(said: str) -> tuple[Severity | None, str | None, str]:
    """Severity (None if there is none), code and message."""
    if word := _WORD.match(said):
        severity, code, message = _severity(word[1].lower()), word[2] or word[3], word[4]
    elif coded := _LEADING_CODE.match(said):
        # Only pylint writes a colon after its code; the letter of the code is the severity.
        severity = _PYLINT.get(coded[1][0], "error") if coded[2] and len(coded[1]) == 5 else "error"
        code, message = coded[1], coded[3]
    else:
        return None, None, said
    if code is None and (named := _LEADING_NAME.match(message)):
        code, message = named[1], named[2]
    elif code is None and (trailing := _TRAILING_CODE.search(message)):
        code, message = trailing[1], message[: trailing.start()].rstrip()
    return severity, code, message


def _severity(word: str) -> Severity:
    if "error" in word or word == "unformatted":
        return "error"
    return "warning" if word == "warning" else "note"


_BREAKS = str.maketrans(dict.fromkeys("()[]{}<>\"'`,;=", " "))
_MENTIONS = 50


def mentions(output: CheckOutput) -> Found | None:
    """Every `file:line` anywhere in the output of a failed command. Tried last."""
    if output.exit_code == 0:
        return None
    found: dict[tuple[str, int | None], Diagnostic] = {}
    for text in (output.err_lines, output.out_lines):
        for line in text:
            if ":" in line and len(found) < _MENTIONS:
                for file, number, column in _mentioned(line):
                    said = plain.message(line.strip())
                    found.setdefault((file, number), Diagnostic(said, file, number, column, "note"))
    return Found.of(diagnostics=list(found.values())[:_MENTIONS])


def _mentioned(line: str) -> Iterator[tuple[str, int | None, int | None]]:
    for word in line.translate(_BREAKS).split():
        file, *rest = word.strip(".:").split(":")
        numbers = [plain.number(part) for part in rest]
        if len(numbers) not in (1, 2) or None in numbers or not _FILE.search(file) or "//" in file:
            continue
        if not plain.is_foreign(file) and not file.replace(".", "").isdigit():
            yield plain.path(file), numbers[0], numbers[1] if len(numbers) > 1 else None
