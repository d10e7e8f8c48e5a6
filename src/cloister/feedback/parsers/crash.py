"""What make, CMake and the linker say when a build stops."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.parsers import plain

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


# Stack traces of Java and of node: where the repository's code was when it failed, and with what.


_RAISED = re.compile(
    r"^(?:Exception in thread \"[^\"]{0,200}\" |Caused by: |Uncaught )?"
    r"((?:[A-Za-z_$][\w$]{0,100}\.){0,20}(?:[A-Z][\w$]{0,100})?(?:Error|Exception))(?: \[\w{1,60}\])?(?:: (.*))?$"
)
_FRAME = re.compile(r"^\s{1,16}at (.{1,600})$")
_JAVA = re.compile(r"^([\w$.]{1,400})\.[\w$<>]{1,200}\(([\w$]{1,200}\.(?:java|kt|scala|groovy)):(\d{1,9})\)$")


def stacks(output: CheckOutput) -> Found | None:
    """A `Parser`. Python's own are in `traceback`, whose order is the other way round."""
    found = tuple(
        one
        for data, text in ((output.out, "out"), (output.err, "err"))
        if b"at " in data
        for one in _stacks_read(output.out_lines if text == "out" else output.err_lines)
    )
    return Found(diagnostics=found) if found else None


def _stacks_read(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        if index == 0 or not _FRAME.match(line) or _FRAME.match(text[index - 1]):
            continue
        raised = next(
            (
                found
                for above in reversed(text[max(0, index - 12) : index])
                if (found := _RAISED.match(above))
            ),
            None,
        )
        if raised is None:
            continue
        frames: list[str] = []
        for below in text[index : index + 60]:
            if not (frame := _FRAME.match(below)):
                break
            frames.append(frame[1])
        place = _java(frames) or plain.place_in_stack([f"at {frame}" for frame in frames])
        if place is not None:
            said = f"{raised[1]}: {raised[2]}" if raised[2] else raised[1]
            yield plain.complaint("stack", said, place[0], (place[1], None), "error", raised[1])


def _java(frames: Sequence[str]) -> tuple[str, int | None] | None:
    """The first frame outside the platform, as the path its package gives it."""
    for frame in frames:
        found = _JAVA.match(frame)
        if found and not found[1].startswith(("java.", "javax.", "jdk.", "sun.", "org.junit.", "kotlin.")):
            package = found[1].rpartition(".")[0].replace(".", "/")
            return (f"{package}/{found[2]}" if package else found[2]), plain.number(found[3])
    return None


# Python's own tracebacks: where the repository's code was when it failed, and with what.


_PYTHON_FRAME = re.compile(r'^ *File "([^"]{1,400})", line (\d{1,9})')
_PYTHON_RAISED = re.compile(r"^([A-Za-z_][\w.]{0,200})(?:: (.*))?$")
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
        elif frame := _PYTHON_FRAME.match(line):
            frames.append((plain.path(frame[1]), plain.number(frame[2])))
        elif frames and (raised := _PYTHON_RAISED.match(line)):
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
