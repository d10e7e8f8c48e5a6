"""Stack traces of Java, node and Python, and programs that are not installed."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from cloister.core.diagnosis import Diagnostic
from cloister.feedback.api import CheckOutput, Found, marked
from cloister.feedback.parsers import plain

_RAISED = re.compile(
    r"^(?:Exception in thread \"[^\"]{0,200}\" |Caused by: |Uncaught )?"
    r"((?:[A-Za-z_$][\w$]{0,100}\.){0,20}(?:[A-Z][\w$]{0,100})?(?:Error|Exception))(?: \[\w{1,60}\])?(?:: (.*))?$"
)
_FRAME = re.compile(r"^\s{1,16}at (.{1,600})$")
_JAVA = re.compile(r"^([\w$.]{1,400})\.[\w$<>]{1,200}\(([\w$]{1,200}\.(?:java|kt|scala|groovy)):(\d{1,9})\)$")


@marked(b"at ", where="text")
def stacks(output: CheckOutput) -> Found | None:
    """Stack traces of Java and node, whose innermost frame comes first."""
    return Found.of(diagnostics=(one for text in output.texts for one in _stacks(text)))


def _stacks(text: Sequence[str]) -> Iterator[Diagnostic]:
    for index, line in enumerate(text):
        if index == 0 or not _FRAME.match(line) or _FRAME.match(text[index - 1]):
            continue
        raised = plain.first_match(_RAISED, text[max(0, index - 12) : index][::-1])
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
    """The first frame outside the platform; the path follows from its package."""
    for frame in frames:
        found = _JAVA.match(frame)
        if found and not found[1].startswith(("java.", "javax.", "jdk.", "sun.", "org.junit.", "kotlin.")):
            package = found[1].rpartition(".")[0].replace(".", "/")
            return (f"{package}/{found[2]}" if package else found[2]), plain.number(found[3])
    return None


# Python

_PYTHON_FRAME = re.compile(r'^ *File "([^"]{1,400})", line (\d{1,9})')
_PYTHON_RAISED = re.compile(r"^([A-Za-z_][\w.]{0,200})(?:: (.*))?$")
_START = "Traceback (most recent call last):"


class Trace(msgspec.Struct, frozen=True):
    """One exception, with its innermost place in the repository."""

    file: str
    line: int | None
    kind: str
    message: str
    ends: int
    """Index of the line that names the exception."""


def traces(text: Sequence[str]) -> list[Trace]:
    """Every exception in `text`, in order, including a `SyntaxError` without a traceback."""
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
    """Remove the tree that exception groups draw to the left of a traceback."""
    bare = line.lstrip(" ")
    return bare[2:] if bare.startswith(("| ", "+ ")) else line


@marked(b'File "', where="text")
def tracebacks(output: CheckOutput) -> Found | None:
    """Tracebacks of Python, whose innermost frame comes last: one diagnostic for each uncaught exception."""
    return Found.of(
        diagnostics=(
            Diagnostic(trace.message, file=trace.file, line=trace.line, code=trace.kind, tool="python")
            for text in output.texts
            for trace in traces(text)
        )
    )


# Programs that are not installed

_ABSENT = (
    re.compile(
        r"^(?:\S{0,100}/)?(?:ba|da|k|z)?sh: (?:line )?(?:\d{1,9}: )?([\w./+-]{1,100}): (?:command )?not found$"
    ),
    re.compile(
        r"^(?:\S{0,100}/)?env: [^\w\s]{0,3}([\w./+-]{1,100}?)[^\w\s]{0,3}: No such file or directory$"
    ),
    re.compile(r"^make(?:\[\d{1,4}\])?: ([\w./+-]{1,100}): No such file or directory$"),
    re.compile(r"^(?:\S{0,100}/)?python[\d.]{0,6}: No module named ([\w.]{1,100})$"),
)
_LAST = 40


@marked(b"not found", b"No such file or directory", b"No module named", where="text")
def absent_programs(output: CheckOutput) -> Found | None:
    """What a check needs and the sandbox lacks, and what would help."""
    if output.exit_code == 0:
        return None
    lines = [line for text in output.texts for line in text[-_LAST:]]
    names = [found[1] for line in lines for regex in _ABSENT if (found := regex.match(line))]
    return Found.of(diagnostics=(_absent(name, output.command) for name in dict.fromkeys(names)))


def _absent(name: str, command: str) -> Diagnostic:
    if name in command.split():
        advice = "Add it to the template, or choose another check with --check."
    else:
        advice = "Install the dependencies of the repository in the template or in its setup."
    return plain.complaint("sandbox", f"{name} is not installed in the sandbox. {advice}", None)
