"""Python's own tracebacks: where the repository's code was when it failed, and with what."""

import re
from collections.abc import Sequence

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found

_FRAME = re.compile(r'^ *File "([^"]{1,400})", line (\d{1,9})')
_RAISED = re.compile(r"^([A-Za-z_][\w.]{0,200})(?:: (.*))?$")
_START = "Traceback (most recent call last):"


class Trace(msgspec.Struct, frozen=True):
    """One exception: the innermost place in the repository, and what was raised there."""

    file: str
    line: int | None
    kind: str
    message: str
    ends: int
    """Index of the line that names the exception."""


def traces(text: Sequence[str]) -> list[Trace]:
    """Every exception in `text`, in order; also the bare form of a `SyntaxError`."""
    found: list[Trace] = []
    frames: list[tuple[str, int | None]] = []
    for index, line in enumerate(text):
        line = _without_margin(line)
        if line.endswith(_START):
            frames = []
        elif frame := _FRAME.match(line):
            frames.append((plain.path(frame[1]), plain.number(frame[2])))
        elif frames and (raised := _RAISED.match(line)):
            ours = [frame for frame in frames if not plain.is_foreign(frame[0])]
            file, number = (ours or frames)[-1]
            found.append(Trace(file, number, raised[1], plain.message(line), index))
            frames = []
        elif line and not line.startswith(" "):
            frames = []
    return found


def _without_margin(line: str) -> str:
    """Exception groups draw a tree on the left; the traceback stands to its right."""
    bare = line.lstrip(" ")
    return bare[2:] if bare.startswith(("| ", "+ ")) else line


def tracebacks(output: CheckOutput) -> Found | None:
    """A `Parser`: each exception that reached the top is one diagnostic."""
    found = [
        Diagnostic(trace.message, file=trace.file, line=trace.line, code=trace.kind, tool="python")
        for data, text in ((output.out, "out"), (output.err, "err"))
        if b'File "' in data
        for trace in traces(output.out_lines if text == "out" else output.err_lines)
    ]
    return Found(diagnostics=tuple(found)) if found else None
