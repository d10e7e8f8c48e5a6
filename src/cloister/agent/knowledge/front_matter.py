"""The front matter of a Markdown file: simple `key: value` lines between two lines of three dashes. Pure.

It is YAML, of which files of this kind use plain texts, quoted ones, lists and folded blocks. Anything else is left out.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,63}):(?:[ \t]+(\S.*)?)?")
_LINES = 200
_VALUE_CHARS = 4_000

Value = str | tuple[str, ...]


class Document(NamedTuple):
    """A file in its two parts."""

    head: dict[str, Value]
    """Key → a text, or a list of texts."""
    body: str


def split(text: str) -> Document:
    """The front matter and the rest of `text`; without front matter, all of it is the rest."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return Document({}, text)
    end = next((at for at in range(1, min(len(lines), _LINES)) if lines[at].rstrip() == "---"), None)
    if end is None:
        return Document({}, text)
    return Document(_pairs(lines[1:end]), "\n".join(lines[end + 1 :]).strip("\n"))


def words_of(value: Value) -> tuple[str, ...]:
    """A value as a list: its entries, or its parts between commas outside braces."""
    if isinstance(value, tuple):
        return value
    found, depth, start = [""], 0, 0
    for at, char in enumerate(value):
        depth += (char == "{") - (char == "}")
        if char == "," and depth <= 0:
            found.append("")
            start = at + 1
        else:
            found[-1] = value[start : at + 1]
    return tuple(one for each in found if (one := _plain(each)))


def text_of(value: Value | None) -> str:
    """A value as one text."""
    return "" if value is None else value if isinstance(value, str) else ", ".join(value)


def _pairs(lines: Sequence[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    at = 0
    while at < len(lines):
        match = _KEY.fullmatch(lines[at].rstrip())
        at += 1
        if match is None:
            continue
        below: list[str] = []
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t-"):
            below.append(lines[at])
            at += 1
        found[match[1]] = _value((match[2] or "").strip(), below)
    return found


def _value(said: str, below: Sequence[str]) -> Value:
    told = [line.strip() for line in below if line.strip()]
    if said[:1] in (">", "|"):
        return ("\n" if said[0] == "|" else " ").join(told)[:_VALUE_CHARS]
    if not said and told and all(line.startswith("-") for line in told):
        return tuple(_plain(line[1:])[:_VALUE_CHARS] for line in told)
    if said.startswith("[") and said.endswith("]"):
        return words_of(said[1:-1][:_VALUE_CHARS])
    return _plain(" ".join((said, *told)))[:_VALUE_CHARS]


def _plain(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text.split(" #", 1)[0].rstrip()
