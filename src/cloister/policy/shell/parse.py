"""Find the commands in a command line: parse, walk the syntax tree, unwrap, parse again, to a limited depth.

Each step takes time linear in the length of the text. Long texts are read in a worker thread.
"""

import re
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from cloister.core.system import in_thread
from cloister.policy.api import HOLE, Commands
from cloister.policy.shell._spawn import syntax_tree
from cloister.policy.shell.programs import Argv, runs_argument, steers
from cloister.policy.shell.unwrap import Unwrapped, takes_options, unwrap

Node = dict[str, Any]

_TEXT_CHARS = 32_768
_INLINE_CHARS = 2_048
"""Longer texts are read in a worker thread."""
_PARSES = 16
"""Limit of nested texts, as in `sh -c 'sh -c …'`."""
_COMMANDS = 1_000
_WRAPPERS = 8
"""Limit of wrappers around one command, as in `sudo nice env …`."""
_DEPTH = 200

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that shells and parsers read differently: a carriage return, …; and text that cannot be encoded."""
_ESCAPED_QUOTED = re.compile(r'\\([$`"\\\n])')
_ANSI = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9A-Fa-f]{1,2})|u(?P<four>[0-9A-Fa-f]{1,4})"
    r"|U(?P<eight>[0-9A-Fa-f]{1,8})|c(?P<control>.)|(?P<plain>.))",
    re.DOTALL,
)
_ANSI_PLAIN = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
_ECHO = re.compile(r"-[neE]+")
_BRACES = str.maketrans("{,}", "   ")
_TAKING_OPTIONS = 20
"""Commands with unknown arguments in one line that are judged one by one."""
_COUNTING = frozenset({"ArithmExp", "ArithmCmd", "LetClause", "CStyleLoop"})
_COMPARING = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
_TAKING = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "unset"})
_tree = msgspec.json.Decoder(dict).decode


async def read_commands(line: str) -> Commands:
    """Every simple command that bash would run for `line`, as far as the text shows it."""
    found = _Found()
    texts = [line]
    for parsed in range(_PARSES + 1):
        if not texts:
            break
        if parsed == _PARSES:
            found.doubt("there are too many texts within texts")
            break
        text = texts.pop()
        if len(text) > _TEXT_CHARS or _CONTROL.search(text):
            found.doubt("it is too long" if len(text) > _TEXT_CHARS else "it contains control characters")
            continue
        data = await syntax_tree(text)
        if data is None:
            found.doubt("it cannot be parsed")
        elif len(text) > _INLINE_CHARS:
            texts.extend(await in_thread(found.read, data))
        else:
            texts.extend(found.read(data))
        if len(found.simple) > _COMMANDS:
            found.unclear = "it holds too many commands"
            break
    found.doubt(found.options_from_elsewhere())
    return Commands(tuple(found.simple), found.unclear)


@dataclass(slots=True)
class _Found:
    """The commands of one line and the texts in it."""

    simple: dict[tuple[str, ...], None] = field(default_factory=dict[tuple[str, ...], None])
    unclear: str | None = None
    options: list[str] = field(default_factory=list[str])
    """Words that look like options, in text that may become an argument."""
    taking: dict[Argv, None] = field(default_factory=dict[Argv, None])
    """Commands whose options can run something, with an argument that begins with unknown text."""

    def doubt(self, why: str | None) -> None:
        self.unclear = self.unclear or why

    def read(self, data: bytes) -> list[str]:
        """Add the commands of a syntax tree. Return the shell texts in it."""
        try:
            walked = walk(cast("Node", _tree(data)))
        except (msgspec.DecodeError, RecursionError):
            self.doubt("it is nested too deeply")
            return []
        self.doubt(walked.unclear)
        self.options.extend(walked.options)
        return [text for argv in walked.calls for text in self._follow(argv)]

    def _follow(self, argv: Argv) -> list[str]:
        """Add `argv` and the commands it wraps. Return shell texts to parse."""
        texts: list[str] = []
        layer = [argv]
        for _ in range(_WRAPPERS):
            opened: list[Unwrapped] = [unwrap(one) for one in layer]
            self.taking.update(dict.fromkeys(taker for taker in map(takes_options, layer) if taker))
            layer = [inner for one in opened for inner in one.commands]
            for one in opened:
                self.simple[one.spellings] = None
                self.doubt(one.unclear)
                texts.extend(one.scripts)
            if not layer:
                return texts
        self.doubt("there are too many wrappers around a command")
        return texts

    def options_from_elsewhere(self) -> str | None:
        """Why an unknown argument may be an option that runs something; None if no text of the line is one."""
        many = len(self.taking) > _TAKING_OPTIONS
        if self.options and (
            many or any(runs_argument(one[0], (*one[1:], *self.options)) for one in self.taking)
        ):
            return "an argument may be an option that is written elsewhere"
        return None


# Words.


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
    """Outside quotes, a backslash escapes the next character, and patterns and braces expand to unknown text."""
    pieces: list[str] = []
    last_bracket = value.rfind("]")
    last_brace = value.rfind("}") if "," in value or ".." in value else -1
    at = 0
    while at < len(value):
        char = value[at]
        step = 1
        if char == "\\":
            char, step = value[at + 1 : at + 2].replace("\n", ""), 2
        elif char in "*?":
            char = HOLE
        elif char == "[" and at < last_bracket:
            char, step = HOLE, value.find("]", at) + 1 - at
        elif char == "{" and at < last_brace:
            char, step = HOLE, last_brace + 1 - at
        pieces.append(char)
        at += step
    return "".join(pieces)


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


# The syntax tree.


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
    options: list[str] = field(default_factory=list[str])
    """Words that look like options, in text that may become an argument."""

    def doubt(self, why: str) -> None:
        self.unclear = self.unclear or why

    def sets(self, name: str, value: str) -> None:
        """It sets the variable `name`, or prints text if that is empty."""
        self.options.extend(word for word in value.split() if word.startswith("-"))
        if steers(name, value):
            self.doubt(f"it sets {name}")


def walk(tree: Node) -> Walked:
    """Every simple command of `tree`."""
    walked = Walked()
    _visit(tree, walked, 0)
    if walked.counts and walked.takes:
        walked.doubt("it evaluates unknown text as arithmetic")
    return walked


def _visit(value: object, walked: Walked, depth: int) -> None:
    if depth > _DEPTH:
        walked.doubt("it is nested too deeply")
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            _visit(item, walked, depth + 1)
    elif isinstance(value, dict):
        node = cast("dict[str, Any]", value)
        _flags(node, walked)
        _node(node, walked)
        for inner in node.values():
            if isinstance(inner, dict | list):
                _visit(cast("object", inner), walked, depth + 1)


def _flags(node: Node, walked: Walked) -> None:
    kind = node.get("Type")
    walked.counts = walked.counts or kind in _COUNTING or node.get("Op") in _COMPARING or "Index" in node
    walked.takes = walked.takes or kind in ("CmdSubst", "ProcSubst")
    if kind == "Lit" and "{" in (literal := str(node.get("Value", ""))):
        walked.sets("", literal.translate(_BRACES))
    if "Parts" in node and _hides_subscript(word_text(node)):
        walked.doubt("it may hide a command in a subscript")


def _hides_subscript(text: str) -> bool:
    """True for text such as `a[$(…)]`, which arithmetic would run."""
    for piece in text.split("]"):
        start = piece.find("[")
        if start >= 0 and (piece.find("$(", start) >= 0 or piece.find("`", start) >= 0):
            return True
    return False


def _node(node: Node, walked: Walked) -> None:
    match node.get("Type"):
        case "CallExpr":
            _calls(node, walked)
        case "DeclClause":
            _declares(node, walked)
        case "WordIter":
            walked.sets(_name(node.get("Name")), " ".join(map(word_text, _nodes(node.get("Items")))))
        case "FuncDecl":
            walked.doubt("it defines a function")
        case "TestDecl":
            walked.doubt("it is not bash")
        case "ParamExp":
            _expands(node, walked)
        case _ if node.get("Op") == "<<<":
            walked.sets("", word_text(node["Word"]))
        case _:
            pass


def _calls(node: Node, walked: Walked) -> None:
    for assign in _nodes(node.get("Assigns")):
        _assign(assign, walked)
    words = tuple(map(word_text, _nodes(node.get("Args"))))
    if words:
        walked.calls.append(words)
        walked.takes = walked.takes or words[0] in _TAKING
    if words[:1] == ("set",) and "--" in words:
        walked.sets("", " ".join(words[words.index("--") + 1 :]))
    elif words[:1] in (("echo",), ("printf",)):
        walked.sets("", " ".join(word for word in words[1:] if not _ECHO.fullmatch(word)))


def _declares(node: Node, walked: Walked) -> None:
    """`export`, `declare`, … as the shell's own words. Quoted, they are simple commands."""
    for assign in _nodes(node.get("Args")):
        _assign(assign, walked)
        value = assign.get("Value")
        text = word_text(cast("Node", value)) if assign.get("Naked") and isinstance(value, dict) else ""
        if text.startswith("-") and "n" in text and _name(node.get("Variant")) != "export":
            walked.doubt("it gives a variable another name")
    if _name(node.get("Variant")) == "nameref":
        walked.doubt("it gives a variable another name")


def _expands(node: Node, walked: Walked) -> None:
    inside = node.get("Exp")
    if not isinstance(inside, dict):
        return
    exp = cast("Node", inside)
    operator = str(exp.get("Op", ""))
    word = exp.get("Word")
    text = word_text(cast("Node", word)) if isinstance(word, dict) else ""
    if "@" in operator:
        walked.doubt("it expands a variable as a prompt")
    walked.sets(_name(node.get("Param")) if operator in ("=", ":=") else "", text)
    if operator in ("=", ":=") and node.get("Excl"):
        walked.doubt("it sets a variable whose name is not written out")


def _takes_variable(value: object) -> bool:
    """True if a word expands a variable."""
    if not isinstance(value, dict):
        return False
    node = cast("Node", value)
    return node.get("Type") == "ParamExp" or any(_takes_variable(part) for part in node.get("Parts") or ())


def _assign(assign: Node, walked: Walked) -> None:
    value = assign.get("Value")
    array = assign.get("Array")
    elements = _nodes(cast("Node", array).get("Elems")) if isinstance(array, dict) else []
    words = [cast("Node | None", one.get("Value")) for one in (assign, *elements)]
    text = " ".join(word_text(word) for word in words if word)
    walked.takes = walked.takes or _takes_variable(value)
    if not isinstance(assign.get("Name"), dict):
        name, _, text = text.partition("=")
        if HOLE in f"{name}{text}":
            walked.doubt("it sets a variable whose name is not written out")
        walked.sets(name.partition("[")[0].rstrip("+"), text)
    else:
        walked.sets(_name(assign.get("Name")), text)


def _name(value: object) -> str:
    return str(cast("Node", value).get("Value", "")) if isinstance(value, dict) else ""
