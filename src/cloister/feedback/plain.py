"""Untrusted bytes as bounded, harmless pieces of text: what every parser starts from."""

import re

from cloister.core.commands import WORK_DIR
from cloister.core.text import bounded, decode, harmless, one_line

_HEAD_BYTES = 1_048_576
_TAIL_BYTES = 3_145_728
_LINE_CHARS = 2_000
_NAME_CHARS = 400
_MESSAGE_CHARS = 2_000
_FOREIGN = re.compile(r"^<|site-packages/|dist-packages/|/lib/python\d|^/usr/|^/nix/|node_modules/")


def lines(data: bytes) -> list[str]:
    """`data` in lines, without terminal escapes. Of too long a text or line, the ends that matter are kept."""
    if len(data) > _HEAD_BYTES + _TAIL_BYTES:
        data = data[:_HEAD_BYTES] + b"\n" + data[-_TAIL_BYTES:]
    return [line[:_LINE_CHARS] for line in harmless(decode(data)).split("\n")]


def name(text: str) -> str:
    """The name of a test."""
    return one_line(text, _NAME_CHARS)


def message(text: str) -> str:
    """Why something failed, without blank lines at its ends."""
    return bounded(harmless(text[: _MESSAGE_CHARS * 8]).strip("\n"), _MESSAGE_CHARS).strip("\n")


def path(text: str) -> str:
    """A path as the repository knows it."""
    clean = one_line(text, _NAME_CHARS).removeprefix(WORK_DIR + "/")
    return clean.removeprefix("./")


def is_foreign(file: str) -> bool:
    """Whether `file` belongs to a tool or a library and not to the repository."""
    return _FOREIGN.search(file) is not None


def number(text: str | None) -> int | None:
    """A line or column number; None when it is none that a file could have."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return int(text)
