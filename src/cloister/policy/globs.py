"""Matches text and paths against globs, in linear time for text and at most quadratic time for paths."""

import posixpath
from functools import lru_cache

from cloister.core.computer import WORK_DIR
from cloister.policy.api import HOLE


def text_matches(pattern: str, text: str) -> bool:
    """True if all of `text` matches; `*` stands for any characters."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def could_match(pattern: str, text: str) -> bool:
    """True if `text` could match with some text in place of each `HOLE`. In doubt True."""
    known, hole, _ = text.partition(HOLE)
    if not hole:
        return text_matches(pattern, text)
    first, star, _ = pattern.partition("*")
    return first.startswith(known) or (bool(star) and known.startswith(first))


def path_matches(pattern: list[str], path: list[str]) -> bool:
    """True if all segments of `path` match; `**` stands for any number of segments, `*` for part of one."""
    at = here = back_path = 0
    back_pattern = -1
    while here < len(path):
        if at < len(pattern) and pattern[at] == "**":
            back_pattern, back_path = at, here
            at += 1
        elif at < len(pattern) and text_matches(pattern[at], path[here]):
            at += 1
            here += 1
        elif back_pattern >= 0:
            back_path += 1
            at, here = back_pattern + 1, back_path
        else:
            return False
    return all(part == "**" for part in pattern[at:])


def normal_path(path: str) -> str:
    """Return `path` as an absolute path inside the sandbox, without following links."""
    return posixpath.normpath("/" + posixpath.join(WORK_DIR, path).lstrip("/"))


def path_glob(glob: str) -> str:
    """Return a glob in absolute form. One that begins with `**` matches everywhere, not only in the work directory."""
    return normal_path("/" + glob if glob.startswith("**") else glob)


@lru_cache(maxsize=4_096)
def path_segments(glob: str) -> list[str]:
    """The segments of a glob in absolute form, for `path_matches`."""
    return path_glob(glob).split("/")


def literal(glob: str) -> str:
    """Return the longest text that every match of a glob, path or text, contains."""
    pieces = (piece for part in glob.split("/") for piece in part.split("*"))
    return max(pieces, key=len)
