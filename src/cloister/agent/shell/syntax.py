"""Extract the simple commands of a syntax tree. Pure."""

import re
from dataclasses import dataclass, field
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
    """The word without quotes. `HOLE` stands for text that the shell would insert."""
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
    """Outside quotes, a backslash escapes the next character, and patterns expand to file names."""
    pieces: list[str] = []
    at = 0
    for found in _ESCAPED.finditer(value):
        pieces.append(_GLOB.sub(HOLE, value[at : found.start()]))
        pieces.append("" if found[1] == "\n" else found[1])
        at = found.end()
    pieces.append(_GLOB.sub(HOLE, value[at:]))
    # A pattern may contain an escaped character.
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


Argv = tuple[str, ...]


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DEPTH = 200
_STEERING = word_set(
    "BASH_ENV ENV PATH IFS PROMPT_COMMAND PS4 SHELLOPTS BASHOPTS EDITOR VISUAL PAGER MANPAGER LESSOPEN SHELL "
    "NODE_OPTIONS PERL5OPT PERL5LIB RUBYOPT PYTHONSTARTUP PYTHONHOME"
)
"""Variables that can make other programs run."""
_COUNTING = frozenset({"ArithmExp", "ArithmCmd", "LetClause", "CStyleLoop"})
_COMPARING = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
_TAKING = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "unset"})
_SUBSCRIPT = re.compile(r"\[[^\]]*(?:\$\(|`)")
_STEERING_FAMILIES = ("LD_", "GIT_", "BASH_FUNC_", "DYLD_")


@dataclass(slots=True)
class Walked:
    """The commands of one text."""

    calls: list[Argv] = field(default_factory=list[Argv])
    """The words of each simple command, without leading assignments."""
    unclear: str | None = None
    counts: bool = False
    """It evaluates arithmetic, which runs commands in subscripts."""
    takes: bool = False
    """It sets variables to text that is not in the line."""

    def doubt(self, why: str) -> None:
        self.unclear = self.unclear or why


def walk(tree: Node) -> Walked:
    """Every simple command of `tree`."""
    walked = Walked()
    _visit(tree, walked, 0)
    if walked.counts and walked.takes:
        walked.doubt("it evaluates unknown text as arithmetic")
    return walked


def steers(name: str) -> bool:
    """True if the variable `name` can change which programs run."""
    return name in _STEERING or name.startswith(_STEERING_FAMILIES)


def _visit(value: object, walked: Walked, depth: int) -> None:
    if depth > _DEPTH:
        walked.doubt("it is nested too deeply")
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            _visit(item, walked, depth + 1)
    elif isinstance(value, dict):
        node = cast("dict[str, Any]", value)
        _node(node, walked)
        for inner in node.values():
            if isinstance(inner, dict | list):
                _visit(cast("object", inner), walked, depth + 1)


def _flags(node: Node, walked: Walked) -> None:
    kind = node.get("Type")
    walked.counts = walked.counts or kind in _COUNTING or node.get("Op") in _COMPARING or "Index" in node
    walked.takes = walked.takes or kind in ("CmdSubst", "ProcSubst")
    if kind in ("Lit", "SglQuoted") and _SUBSCRIPT.search(str(node.get("Value", ""))):
        walked.doubt("it may hide a command in a subscript")


def _node(node: Node, walked: Walked) -> None:
    _flags(node, walked)
    match node.get("Type"):
        case "CallExpr":
            for assign in cast("list[Node]", node.get("Assigns") or []):
                _assign(assign, walked)
            words = tuple(word_text(word) for word in cast("list[Node]", node.get("Args") or []))
            if words:
                walked.calls.append(words)
                walked.takes = walked.takes or words[0] in _TAKING
        case "DeclClause":
            for assign in cast("list[Node]", node.get("Args") or []):
                _assign(assign, walked)
        case "FuncDecl":
            walked.doubt("it defines a function")
        case "TestDecl":
            walked.doubt("it is not bash")
        case "ParamExp":
            if node.get("Exp") and (node["Exp"].get("Op") == "@P" or "@" in str(node["Exp"].get("Op", ""))):
                walked.doubt("it expands a variable as a prompt")
        case _:
            pass


def _expands(value: object) -> bool:
    """True if a word expands a variable."""
    if not isinstance(value, dict):
        return False
    node = cast("Node", value)
    return node.get("Type") == "ParamExp" or any(_expands(part) for part in node.get("Parts") or ())


def _assign(assign: Node, walked: Walked) -> None:
    name = assign.get("Name")
    if _expands(assign.get("Value")):
        walked.takes = True
    if not isinstance(name, dict):
        value = assign.get("Value")
        text = word_text(cast("Node", value)) if isinstance(value, dict) else ""
        if HOLE in text:
            walked.doubt("it sets a variable whose name is not written out")
        return
    named = str(cast("Node", name).get("Value", ""))
    if steers(named):
        walked.doubt(f"it sets {named}")
