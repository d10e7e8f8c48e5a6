"""What make, CMake and the linker say when a build stops."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found

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


def builds(output: CheckOutput) -> Found | None:
    """A `Parser`. That a recipe failed is a note: why is what the recipe itself printed."""
    data = output.err + b"\n" + output.out if len(output.err) + len(output.out) < 1_000_000 else output.err
    if not any(needle in data for needle in (b" *** ", b"CMake ", b"undefined reference to ")):
        return None
    found = tuple(one for text in (output.err_lines, output.out_lines) for one in _read(text))
    return Found(diagnostics=found) if found else None


def _read(text: Sequence[str]) -> Iterator[Diagnostic]:
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
