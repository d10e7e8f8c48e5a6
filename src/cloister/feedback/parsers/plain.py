"""Helpers that every parser uses: turn untrusted bytes into bounded text without terminal escapes."""

import re
from collections.abc import Sequence

from cloister.core.computer import WORK_DIR
from cloister.core.diagnosis import Diagnostic, Severity
from cloister.core.text import bounded, decode, harmless, one_line

_HEAD_BYTES = 1_048_576
_TAIL_BYTES = 3_145_728
_LINE_CHARS = 2_000
_NAME_CHARS = 400
_MESSAGE_CHARS = 2_000
_FOREIGN = re.compile(r"^<|site-packages/|dist-packages/|/lib/python\d|^/usr/|^/nix/|node_modules/|^/rustc/")
_LIBRARY = re.compile(
    r"^\s*at (?:java|javax|jdk|sun|kotlin|scala|org\.junit|org\.opentest4j|org\.hamcrest|org\.gradle|org\.apache\.maven)\."
)
"""Stack frames of Java's libraries and build tools, which name a file without its directory."""


def lines(data: bytes) -> list[str]:
    """Split `data` into lines. Cut the middle of a long text and the end of a long line."""
    if len(data) > _HEAD_BYTES + _TAIL_BYTES:
        data = data[:_HEAD_BYTES] + b"\n" + data[-_TAIL_BYTES:]
    return [line[:_LINE_CHARS] for line in harmless(decode(data)).split("\n")]


def name(text: str) -> str:
    """The name of a test."""
    if len(text) < _NAME_CHARS and text.isascii() and text.isprintable() and " " not in text:
        return text  # the usual case, fast
    return one_line(text, _NAME_CHARS)


def message(text: str) -> str:
    """The reason of a failure, without blank lines at its ends."""
    return bounded(harmless(text[: _MESSAGE_CHARS * 8]).strip("\n"), _MESSAGE_CHARS).strip("\n")


def path(text: str) -> str:
    """A path relative to the repository, if it is inside."""
    clean = one_line(text, _NAME_CHARS).removeprefix("file://").removeprefix(WORK_DIR + "/")
    return clean.removeprefix("./")


def is_foreign(file: str) -> bool:
    """True if `file` belongs to a tool or a library, not to the repository."""
    return _FOREIGN.search(file) is not None


def number(text: str | None) -> int | None:
    """A line or column number; None if `text` is not a plausible one."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return int(text)


def count(value: int | None) -> int | None:
    """A line or column number from a document; None if it is not plausible."""
    return value if value is not None and 0 < value < 1_000_000_000 else None


def severity(word: str) -> Severity:
    """Map the severity of a tool to one of ours."""
    word = word.lower()
    if "error" in word or word in ("fatal", "failure", "critical"):
        return "error"
    return "warning" if word.startswith("warn") else "note"


def complaint(
    tool: str,
    said: str,
    file: str | None,
    at: tuple[int | None, int | None] = (None, None),
    how: Severity = "error",
    code: str | None = None,
) -> Diagnostic:
    """Build a diagnostic; every part is bounded and free of terminal escapes."""
    return Diagnostic(
        message(said),
        file=path(file) if file else None,
        line=count(at[0]),
        column=count(at[1]),
        severity=how,
        code=one_line(code, 100) if code else None,
        tool=tool,
    )


def first_match(regex: re.Pattern[str], texts: Sequence[str]) -> re.Match[str] | None:
    return next((found for text in texts if (found := regex.match(text))), None)


def place_in_stack(text: Sequence[str]) -> tuple[str, int | None] | None:
    """The first stack frame in the repository, e.g. `at f (file:line:column)`."""
    for line in text[:200]:
        place = _frame(line)
        if place is None or _LIBRARY.match(line):
            continue
        if not is_foreign(place[0]) and "." in place[0]:
            return path(place[0]), place[1]
    return None


def _frame(line: str) -> tuple[str, int] | None:
    """The last word of a frame: `file:line` or `file:line:column`, with or without brackets."""
    last = line.strip()[-400:].removesuffix(")").replace("(", " ").rpartition(" ")[2]
    parts = last.removeprefix("file://").split(":")
    numbers = [found for part in parts[1:] if (found := number(part)) is not None]
    if parts[0] in ("", "node") or len(parts) not in (2, 3) or len(numbers) != len(parts) - 1:
        return None
    return parts[0], numbers[0]
