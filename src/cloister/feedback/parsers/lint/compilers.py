"""Compilers and build tools: gcc and rustc as JSON; make, CMake and the linker as text."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain
from cloister.feedback.parsers.json import each_row, rows

_RECIPE = re.compile(
    r"^g?make(?:\[\d{1,4}\])?: \*\*\* \[([^\s:\]]{1,300}):(\d{1,9}): ([^\]]{1,300})\] (\S.*)$"
)
_STOP = re.compile(r"^g?make(?:\[\d{1,4}\])?: \*\*\* (\S.*?) {1,4}Stop\.$")
_SYNTAX = re.compile(r"^([^\s:]{1,300}):(\d{1,9}): \*\*\* (\S.*?) {1,4}Stop\.$")
_CMAKE = re.compile(
    r"^CMake (Error|Warning)(?: \(dev\))?(?: at ([^\s:]{1,300}):(\d{1,9}))?(?: \((\w{1,100})\))?:$"
)
_LINKER = re.compile(
    r"^(?:\S{0,300}: )?([^\s:()]{1,300}):\(\.[\w.+-]{1,100}\): (undefined reference to .{1,400})$"
)

# `gcc -fdiagnostics-format=json`: one list per line for each compiled file


class _Point(msgspec.Struct, frozen=True):
    file: str
    line: int
    column: int | None = None


class _Location(msgspec.Struct, frozen=True):
    caret: _Point


class _Note(msgspec.Struct, frozen=True):
    kind: str
    message: str
    locations: list[_Location] = []


class _Complaint(_Note, frozen=True):
    origin: int = msgspec.field(name="column-origin", default=1)
    option: str | None = None
    children: list[_Note] = []


@each_row(b'"caret"', list[_Complaint])
def gcc_json(row: list[_Complaint]) -> Iterator[Diagnostic]:
    for one in row:
        yield _diagnostic(one, one.option)
        yield from (_diagnostic(child, None) for child in one.children)


def _diagnostic(one: _Note, code: str | None) -> Diagnostic:
    caret = one.locations[0].caret if one.locations else None
    at = (caret.line, caret.column) if caret else (None, None)
    file = caret.file if caret else None
    return plain.complaint("gcc", one.message, file, at, plain.severity(one.kind), code)


# `cargo … --message-format=json` and `rustc --error-format=json`: one object per line


class _Span(msgspec.Struct, frozen=True):
    file_name: str
    line_start: int
    column_start: int
    is_primary: bool
    label: str | None = None


class _Code(msgspec.Struct, frozen=True):
    code: str


class _RustComplaint(msgspec.Struct, frozen=True):
    message: str
    level: str
    spans: list[_Span]
    code: _Code | None = None
    type: str | None = msgspec.field(name="$message_type", default=None)


class _Message(msgspec.Struct, frozen=True):
    reason: str
    message: _RustComplaint


@marked(b'"compiler-message"', b'"$message_type"', where="any")
def rust_json(output: CheckOutput) -> Found | None:
    """Skip complaints without a place: they summarise the ones above them."""
    by_cargo = (row.message for row in rows(output, b'"compiler-message"', _Message))
    by_rustc = rows(output, b'"$message_type"', _RustComplaint)
    return Found.of(diagnostics=(_rust(one) for one in chain(by_cargo, by_rustc) if one.spans))


def _rust(one: _RustComplaint) -> Diagnostic:
    span = next((span for span in one.spans if span.is_primary), one.spans[0])
    said = f"{one.message}: {span.label}" if span.label else one.message
    at = (span.line_start, span.column_start)
    code = one.code.code if one.code else None
    return plain.complaint("rustc", said, span.file_name, at, plain.severity(one.level), code)


# make, CMake, ld


@marked(b" *** ", b"CMake ", b"undefined reference to ", where="text")
def builds(output: CheckOutput) -> Found | None:
    """make, CMake and the linker. A failed recipe is only a note: the recipe itself printed the reason."""
    return Found.of(diagnostics=(one for text in reversed(output.texts) for one in _builds(text)))


def _builds(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        if " *** " in line:
            yield from _make(line)
        elif line.startswith("CMake ") and (head := _CMAKE.match(line)):
            said = " ".join(below.strip() for below in text[index + 1 : index + 6] if below.startswith("  "))
            at = (plain.number(head[3]), None)
            yield plain.complaint("cmake", said, head[2], at, plain.severity(head[1]), head[4])
        elif "undefined reference to " in line and (found := _LINKER.match(line)):
            yield plain.complaint("ld", found[2], found[1])


def _make(line: str) -> Iterator[Diagnostic]:
    if found := _RECIPE.match(line):
        said = f"the recipe for {found[3]} failed: {found[4]}"
        yield plain.complaint("make", said, found[1], (plain.number(found[2]), None), "note")
    elif found := _SYNTAX.match(line):
        yield plain.complaint("make", found[3], found[1], (plain.number(found[2]), None))
    elif found := _STOP.match(line):
        yield plain.complaint("make", found[1], None)
