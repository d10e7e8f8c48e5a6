"""Stack traces of Java and of node: where the repository's code was when it failed, and with what."""

import re
from collections.abc import Iterator, Sequence

from cloister.core.diagnosis import Diagnostic
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found

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
        for one in _read(output.out_lines if text == "out" else output.err_lines)
    )
    return Found(diagnostics=found) if found else None


def _read(text: Sequence[str]) -> Iterator[Diagnostic]:
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
