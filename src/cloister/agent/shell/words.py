"""Words of a syntax tree as text, with a hole wherever the shell would put something that is not written there."""

import re
from typing import Any, cast

from cloister.policy.api import HOLE

Node = dict[str, Any]

_GLOB = re.compile(r"[*?]|\[[^\]]*\]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_QUOTED = re.compile(r'\\([$`"\\\n])')
_ANSI = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9A-Fa-f]{1,2})|u(?P<four>[0-9A-Fa-f]{1,4})"
    r"|U(?P<eight>[0-9A-Fa-f]{1,8})|c(?P<control>.)|(?P<plain>.))",
    re.DOTALL,
)
_ANSI_PLAIN = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


def word_text(word: Node) -> str:
    """The word after quotes are removed; a `HOLE` stands for any text."""
    return "".join(_part(part, quoted=False) for part in _nodes(word.get("Parts")))


def _part(part: Node, *, quoted: bool) -> str:
    value = str(part.get("Value", ""))
    match part.get("Type"):
        case "Lit" if quoted:
            return _ESCAPED_QUOTED.sub(lambda found: found[1].replace("\n", ""), value)
        case "Lit":
            return _unquoted(value)
        case "SglQuoted":
            return _ansi(value) if part.get("Dollar") else value
        case "DblQuoted" if not part.get("Dollar"):
            return "".join(_part(inner, quoted=True) for inner in _nodes(part.get("Parts")))
        case _:
            return HOLE


def _unquoted(value: str) -> str:
    """Outside of quotes a backslash makes the next character plain, and patterns become names of files."""
    pieces: list[str] = []
    at = 0
    for found in _ESCAPED.finditer(value):
        pieces.append(_GLOB.sub(HOLE, value[at : found.start()]))
        pieces.append("" if found[1] == "\n" else found[1])
        at = found.end()
    pieces.append(_GLOB.sub(HOLE, value[at:]))
    # A pattern that is written around an escaped character is one all the same.
    text = "".join(pieces)
    return HOLE if _GLOB.search(_ESCAPED.sub("x", value)) and HOLE not in text else text


def _ansi(value: str) -> str:
    def one(found: re.Match[str]) -> str:
        for name, base in (("octal", 8), ("hex", 16), ("four", 16), ("eight", 16)):
            if digits := found[name]:
                number = int(digits, base)
                return chr(number) if number < 0x110000 else HOLE
        if found["control"]:
            return HOLE
        return _ANSI_PLAIN.get(found["plain"], found["plain"])

    return _ANSI.sub(one, value)


def _nodes(value: object) -> list[Node]:
    return cast("list[Node]", value) if isinstance(value, list) else []
