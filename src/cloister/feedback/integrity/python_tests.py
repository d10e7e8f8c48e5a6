"""Compares Python tests by their syntax tree: formatting and comments do not count."""

import ast
from collections.abc import Iterator, Mapping, Sequence

from cloister.core.diagnosis import HowWeakened
from cloister.feedback.integrity.versions import inserted

_SKIPS = [
    "skip",
    "skipif",
    "skipIf",
    "skipUnless",
    "xfail",
    "importorskip",
    "SkipTest",
    "expectedFailure",
    "exit",
]
_BENDS = ("setattr", "setitem", "patch", "object")
_SOURCE_CHARS = 2_000_000
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def weakened(before: str, after: str | None) -> list[tuple[str, HowWeakened]] | None:
    """Each weakened test, and how; None if the old source cannot be parsed."""
    old, new = _parsed(before), _parsed(after or "")
    if old is None:
        return None
    tests = _tests(old)
    if new is None:
        return [(name, "changed") for name in tests]
    here, changed, classes = _tests(new), _changed_names(old, new), _changed_classes(old, new)
    if _has_skips(_loose(new)) and not _has_skips(_loose(old)):
        return [(name, "skipped") for name in tests]
    found: list[tuple[str, HowWeakened]] = []
    for name, test in tests.items():
        now = here.get(name)
        how = "deleted" if now is None else _how(test, now)
        if how is None and (changed & _names(test) or name.rpartition("::")[0] in classes):
            how = "changed"  # an expected value or a helper of the test
        if how is not None:
            found.append((name, how))
    return found


def outlines(source: str) -> dict[str, tuple[tuple[object, ...], tuple[str, ...]]]:
    """Each test: its body with the definitions in the module that it uses, and its assertions."""
    module = _parsed(source)
    if module is None:
        return {}
    given = {name: (dump, node) for name, dump, node in _given(module)}
    classes = dict(_classes(module.body, ""))
    return {
        name: (_whole(test, classes.get(name.rpartition("::")[0], []), given), _assertions(test))
        for name, test in _tests(module).items()
    }


def _whole(
    test: _Function, around: Sequence[ast.stmt], given: Mapping[str, tuple[str, ast.AST]]
) -> tuple[object, ...]:
    parts = [test.args, *test.decorator_list, *_body(test), *around]
    used: dict[str, str] = {}
    waiting: list[ast.AST] = [test, *around]
    while waiting:
        for name in _names(waiting.pop()):
            if name in given and name not in used:
                used[name], node = given[name]
                waiting.append(node)
    return (*map(ast.dump, parts), frozenset(used.items()))


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


def _parsed(source: str) -> ast.Module | None:
    if len(source) > _SOURCE_CHARS:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tests(module: ast.Module) -> dict[str, _Function]:
    """Functions and methods that are named like tests, by their path inside the module."""
    found: dict[str, _Function] = {}

    def visit(nodes: Sequence[ast.stmt], owner: str, depth: int) -> None:
        for node in nodes:
            if isinstance(node, _Function) and node.name.startswith("test"):
                found[owner + node.name] = node
            elif isinstance(node, ast.ClassDef) and depth < 8:
                visit(node.body, f"{owner}{node.name}::", depth + 1)

    visit(module.body, "", 0)
    return found


def _how(old: _Function, new: _Function) -> HowWeakened | None:
    if _has_skips([*new.decorator_list, *new.body]) and not _has_skips([*old.decorator_list, *old.body]):
        return "skipped"
    if [ast.dump(node) for node in old.decorator_list] != [ast.dump(node) for node in new.decorator_list]:
        return "changed"
    if ast.dump(old.args) != ast.dump(new.args):
        return "changed"
    added = _added(_body(old), _body(new))
    return "changed" if added is None or any(map(_bends, added)) else None


def _body(function: _Function) -> list[ast.stmt]:
    """The statements without the docstring."""
    return function.body[1:] if _is_words(function.body[0]) else function.body


def _added(old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> list[ast.stmt] | None:
    """The statements that were added; None if an old one was removed or changed."""
    added = inserted([*map(ast.dump, old)], [*map(ast.dump, new)])
    return None if added is None else [new[index] for index in added]


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


def _changed_names(old: ast.Module, new: ast.Module) -> set[str]:
    """Names of the module, other than tests, whose value changed."""
    before, now = ({name: dump for name, dump, _ in _given(module)} for module in (old, new))
    return {name for name, dump in before.items() if now.get(name) != dump}


def _changed_classes(old: ast.Module, new: ast.Module) -> set[str]:
    """Classes in which something other than a test was removed or changed, e.g. a set-up method."""
    before, now = dict(_classes(old.body, "")), dict(_classes(new.body, ""))
    return {name for name, body in before.items() if name in now and _added(body, now[name]) is None}


def _classes(nodes: Sequence[ast.stmt], owner: str) -> Iterator[tuple[str, list[ast.stmt]]]:
    for node in nodes:
        if isinstance(node, ast.ClassDef) and owner.count("::") < 8:
            name = f"{owner}{node.name}"
            yield name, [one for one in node.body if not _is_words(one) and not _is_own(one)]
            yield from _classes(node.body, f"{name}::")


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


def _names(code: ast.AST) -> set[str]:
    inner = [*ast.walk(code)]
    return {node.id for node in inner if isinstance(node, ast.Name)} | {
        node.arg for node in inner if isinstance(node, ast.arg)
    }
