"""Compares Python tests by their syntax tree: formatting and comments do not count."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from cloister.core.diagnosis import HowWeakened
from cloister.feedback.integrity.versions import inserted

_SKIPS = (
    "skip",
    "skipif",
    "skipIf",
    "skipUnless",
    "xfail",
    "importorskip",
    "SkipTest",
    "expectedFailure",
    "exit",
)
_BENDS = ("setattr", "setitem", "patch", "object")
_SOURCE_CHARS = 2_000_000
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Test(NamedTuple):
    """A test with everything in its module that decides what it does."""

    node: _Function
    signature: tuple[str, ...]
    """Arguments and decorators."""
    body: tuple[str, ...]
    around: tuple[str, ...]
    """What its class has besides tests, e.g. a set-up method."""
    used: frozenset[tuple[str, str]]
    """The definitions of the module that it uses, directly or not: expected values, helpers, imports."""


def weakened(before: str, after: str | None) -> list[tuple[str, HowWeakened]] | None:
    """Each weakened test, and how; None if the old source cannot be parsed."""
    old, new = _parsed(before), _parsed(after or "")
    if old is None:
        return None
    tests = _tests(old)
    if new is None:
        return [(name, "changed") for name in tests]
    if _has_skips(_loose(new)) and not _has_skips(_loose(old)):
        return [(name, "skipped") for name in tests]
    now = _tests(new)
    return [(name, how) for name, test in tests.items() if (how := _how(test, now.get(name)))]


def outlines(source: str) -> dict[str, tuple[object, tuple[str, ...]]]:
    """Each test: everything that decides what it does, and its assertions."""
    module = _parsed(source)
    tests = _tests(module) if module is not None else {}
    return {name: (test[1:], _assertions(test.node)) for name, test in tests.items()}


def _assertions(test: _Function) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(test):
        name = node.func if isinstance(node, ast.Call) else None
        called = (
            name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
        )
        if isinstance(node, ast.Assert) or called.startswith(("assert", "expect", "raises", "warns", "fail")):
            found.append(ast.dump(node))
    return tuple(sorted(found))


_PARSING = Lock()
"""CPython 3.11 counts the depth of syntax trees for all threads together, and fails if two of them parse."""


def _parsed(source: str) -> ast.Module | None:
    if len(source) > _SOURCE_CHARS:
        return None
    try:
        with _PARSING:
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tests(module: ast.Module) -> dict[str, _Test]:
    """Functions and methods that are named like tests, by their path inside the module."""
    given = {name: (dump, node) for name, dump, node in _given(module)}
    found: dict[str, _Test] = {}

    def visit(nodes: Sequence[ast.stmt], owner: str, depth: int) -> None:
        around = [node for node in nodes if depth and not _is_words(node) and not _is_own(node)]
        for node in nodes:
            if isinstance(node, _Function) and node.name.startswith("test"):
                signature = _dumps([node.args, *node.decorator_list])
                used = frozenset(_used([node, *around], given))
                found[owner + node.name] = _Test(node, signature, _dumps(_body(node)), _dumps(around), used)
            elif isinstance(node, ast.ClassDef) and depth < 8:
                visit(node.body, f"{owner}{node.name}::", depth + 1)

    visit(module.body, "", 0)
    return found


def _dumps(nodes: Sequence[ast.AST]) -> tuple[str, ...]:
    return tuple(map(ast.dump, nodes))


def _used(waiting: list[ast.AST], given: Mapping[str, tuple[str, ast.AST]]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if name in given and name not in seen:
                seen.add(name)
                dump, definition = given[name]
                waiting.append(definition)
                yield name, dump


def _how(old: _Test, new: _Test | None) -> HowWeakened | None:
    if new is None:
        return "deleted"
    if _has_skips([new.node]) and not _has_skips([old.node]):
        return "skipped"
    added = inserted(old.body, new.body)
    if old.signature != new.signature or added is None or inserted(old.around, new.around) is None:
        return "changed"
    bends = any(_bends(_body(new.node)[index]) for index in added)
    return "changed" if bends or not old.used <= new.used else None


def _body(function: _Function) -> list[ast.stmt]:
    """The statements without the docstring."""
    return function.body[1:] if _is_words(function.body[0]) else function.body


def _bends(statement: ast.stmt) -> bool:
    """True if it ends the test early or replaces the code under test."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Return | ast.Raise):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _BENDS:
            return True
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Attribute) for target in node.targets):
            return True
    return False


def _has_skips(nodes: Sequence[ast.AST]) -> bool:
    inner = (node for outer in nodes for node in ast.walk(outer))
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _SKIPS)
        or (isinstance(node, ast.Name) and node.id in _SKIPS)
        for node in inner
    )


def _loose(module: ast.Module) -> list[ast.stmt]:
    """Statements of the module other than functions and classes, e.g. `pytestmark`."""
    return [node for node in module.body if not isinstance(node, _Function | ast.ClassDef)]


def _is_own(node: ast.stmt) -> bool:
    """A test or an inner class, which are compared on their own."""
    return isinstance(node, ast.ClassDef) or (isinstance(node, _Function) and node.name.startswith("test"))


def _is_words(node: ast.stmt) -> bool:
    """A docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _given(module: ast.Module) -> Iterator[tuple[str, str, ast.AST]]:
    """The names that the module defines, other than tests and classes: name, content, node."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, ast.dump(node.value), node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, ast.dump(node.value), node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            source = f"{'.' * node.level}{node.module}:" if isinstance(node, ast.ImportFrom) else ""
            yield from ((alias.asname or alias.name, source + alias.name, alias) for alias in node.names)
        elif isinstance(node, _Function) and not node.name.startswith("test"):
            yield node.name, ast.dump(node), node
