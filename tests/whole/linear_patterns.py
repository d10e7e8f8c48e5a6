"""Every regular expression in the source, and strings that are as hard for it as its own parts allow."""

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

op: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
SOURCE = Path(__file__).resolve().parents[2] / "src"
_FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
_ANCHORED = {"match", "fullmatch"}
_SEARCHING = {"search", "finditer", "findall", "sub", "subn"}
_PROBES = "a0A _.-/:;,'\"\t\n\\=|&#$(){}[]<>%@*+~`é\x1b"
_LONG = 40
"""A repeat with a lower limit cannot do harm, alone or in a chain of two."""


class Expression(NamedTuple):
    """One pattern of the source, and how the source applies it."""

    where: str
    pattern: re.Pattern[Any]
    method: str
    """`match`, `fullmatch`, or `finditer` for every method that looks at each position."""

    def apply(self, text: str) -> None:
        data = text.encode() if isinstance(self.pattern.pattern, bytes) else text
        if self.method == "finditer":
            for _ in self.pattern.finditer(data):
                pass
        else:
            getattr(self.pattern, self.method)(data)


def _files() -> Iterator[tuple[Path, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if re.search(r"\bre\.", text):
            yield path, text


def packages() -> list[str]:
    """The folders with expressions: workers ask for them while they collect, and one of them searches."""
    return sorted({str(path.relative_to(SOURCE).parent) for path, _ in _files()})


def expressions() -> list[Expression]:
    """Each call of the standard library's `re` in the source. Fails if one cannot be evaluated."""
    found: list[Expression] = []
    for path, text in _files():
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found.extend(_in_module(ast.parse(text), vars(importlib.import_module(name)), path))
    return found


@lru_cache(maxsize=1)
def _nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


@lru_cache(maxsize=1)
def _parents(tree: ast.Module) -> dict[int, ast.AST]:
    """The parent of each node, by the node's identity."""
    return {id(child): node for node in _nodes_of(tree) for child in ast.iter_child_nodes(node)}


def _in_module(tree: ast.Module, names: dict[str, Any], path: Path) -> Iterator[Expression]:
    holders = {
        id(node.value): node.targets[0].id
        for node in _nodes_of(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in _nodes_of(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
            continue
        if node.func.attr not in _FUNCTIONS:
            continue
        method = node.func.attr if node.func.attr in _ANCHORED else "finditer"
        if node.func.attr == "compile" and id(node) in holders:
            method = _method(tree, holders[id(node)])
        elif node.func.attr == "compile" and not _searches(tree):
            method = "match"
        where = f"{path.relative_to(SOURCE)}:{node.lineno}"
        yield Expression(where, re.compile(_value(node.args[0], names), _flags(node, names)), method)


class _Anything(dict[str, Any]):
    """The names inside a function: any text stands for its local names."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.known = names

    def __missing__(self, name: str) -> Any:
        builtin = vars(importlib.import_module("builtins"))
        return self.known[name] if name in self.known else builtin.get(name, "a")


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), names, _Anything(names))


def _flags(node: ast.Call, names: dict[str, Any]) -> int:
    func = cast("ast.Attribute", node.func).attr
    at = {"compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2}.get(func)
    given = [word.value for word in node.keywords if word.arg == "flags"]
    given += node.args[at : at + 1] if at else []
    return int(_value(given[0], names)) if given else 0


@lru_cache(maxsize=1)
def _searches(tree: ast.Module) -> bool:
    """True if the module looks at each position of a text for a pattern that it does not name there."""
    calls = [node.func for node in _nodes_of(tree) if isinstance(node, ast.Call)]
    methods = [func for func in calls if isinstance(func, ast.Attribute) and func.attr in _SEARCHING]
    return any(not ast.unparse(func.value).isupper() and ast.unparse(func.value) != "re" for func in methods)


def _method(tree: ast.Module, name: str) -> str:
    """How the module applies the pattern `name`. Handing it on counts as a search if the module searches at all."""
    used: set[str] = set()
    parents = _parents(tree)
    for node in _nodes_of(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            parent = parents[id(node)]
            used.add(parent.attr if isinstance(parent, ast.Attribute) else _handed(parent))
    used -= {"pattern"}
    if "search" in used and not _searches(tree):
        used = used - {"search"} | {"match"}
    if used and used <= _ANCHORED:
        return "match" if "match" in used else "fullmatch"
    return "finditer"


def _handed(parent: ast.AST) -> str:
    is_match = isinstance(parent, ast.Call) and ast.unparse(parent.func).endswith(("first_match", "_skip"))
    return "match" if is_match else "search"


# Hostile strings


def hostile(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """(prefix, part to repeat, tail): each repeat of the pattern is fed with every text that it accepts."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    tree = parser.parse(text, flags & ~re.DEBUG)
    runs = list(dict.fromkeys(_runs(tree)))[:12]
    chars = list(dict.fromkeys([*"".join(runs), *_PROBES]))
    found: dict[tuple[str, str, str], None] = {}
    for before, body in _repeats(tree, ""):
        inner = sample(body)
        accepted = [char for char in chars if _accepts(body, char)]
        pieces = [inner, *accepted[:24], *(run for run in runs if all(char in accepted for char in run))]
        pieces += [before] if before and all(char in accepted for char in before) else []
        for piece in dict.fromkeys(piece for piece in pieces if piece):
            for tail in ("", "\x00", "\n\x00"):
                found[(before, piece, tail)] = None
            found[("", before + piece, "\x00")] = None
    return list(found)


def _nodes(tree: Any) -> Iterator[Any]:
    for code, value in tree:
        yield code, value
        for inner in _inside(code, value):
            yield from _nodes(inner)


def _inside(code: Any, value: Any) -> Sequence[Any]:
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return [value[2]]
    if code is op.SUBPATTERN:
        return [value[3]]
    if code is op.BRANCH:
        return value[1]
    if code is op.ATOMIC_GROUP:
        return [value]
    return [value[1]] if code in (op.ASSERT, op.ASSERT_NOT) else []


def _runs(tree: Any) -> Iterator[str]:
    """The literal texts in the pattern, and samples of its groups."""
    run = ""
    for code, value in tree:
        if code is op.LITERAL:
            run += chr(value)
            continue
        if run:
            yield run
        run = ""
        for inner in _inside(code, value):
            yield from _runs(inner)
            if whole := sample(inner):
                yield whole
    if run:
        yield run


def sample(tree: Any) -> str:
    """A short text that the tree matches."""
    made = ""
    for code, value in tree:
        if code is op.LITERAL:
            made += chr(value)
        elif code in (op.NOT_LITERAL, op.ANY, op.IN):
            made += next((char for char in _PROBES if _accepts([(code, value)], char)), "a")
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            made += sample(value[2]) * min(max(1, value[0]), 100)
        elif code not in (op.ASSERT, op.ASSERT_NOT):
            made += sample(_inside(code, value)[0]) if _inside(code, value) else ""
    return made


def _repeats(tree: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Each long repeat: a text that leads to it, and its body."""
    for code, value in tree:
        if code in (op.MAX_REPEAT, op.MIN_REPEAT) and int(value[1]) >= _LONG:
            yield before, value[2]
        for inner in _inside(code, value):
            yield from _repeats(inner, before)
        before += sample([(code, value)])


def _accepts(tree: Any, char: str) -> bool:
    """True if some single character of the body can be `char`."""
    for code, value in tree:
        if code is op.LITERAL and chr(value) == char:
            return True
        if code is op.NOT_LITERAL and chr(value) != char:
            return True
        if code is op.ANY:
            return True
        if code is op.IN and _in_set(value, char):
            return True
        if any(_accepts(inner, char) for inner in _inside(code, value)):
            return True
    return False


def _in_set(items: Any, char: str) -> bool:
    negated, found = False, False
    for code, value in items:
        if code is op.NEGATE:
            negated = True
        elif code is op.LITERAL:
            found |= value == ord(char)
        elif code is op.RANGE:
            found |= value[0] <= ord(char) <= value[1]
        elif code is op.CATEGORY:
            found |= re.match(_CATEGORIES[value], char) is not None
    return found != negated


_CATEGORIES: dict[Any, str] = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}
