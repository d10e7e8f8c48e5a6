"""Rules for values that may be missing: leave before the statement, or go on with another value.

They are rarely right by themselves, and often where the failing test stops at a value that is nothing, empty or unknown.
"""

from collections.abc import Iterator

from tree_sitter import Node

from cloister.harnesses.repair.rules.api import Facts
from cloister.harnesses.repair.rules.statements import guarded, inside_function, line_cut, siblings
from cloister.harnesses.repair.syntax import (
    CALLS,
    FUNCTIONS,
    INDEXED,
    LOOPS,
    MEMBERS,
    NAMES,
    Cut,
    File,
    arguments,
    is_value,
    member,
    operation,
    own,
    walk,
)

_SELF = ("self", "cls", "this")
_THROW = {"python": "raise {}({})", "script": "throw new {}({})"}
_USUAL_ERROR = {"python": "ValueError", "script": "Error"}
_CONDITIONS = {
    "python": ("not {}", "{} is None"),
    "script": ("!{}", "{}.length === 0", "{} == null"),
    "go": ("{} == nil", "len({}) == 0", "{} == 0"),
}
_BOUNDS = ("{} < 0", "{} <= 0")
_VALUES = ("[]", '""', "0", "{}")
_HOLDERS = MEMBERS | INDEXED | LOOPS | frozenset(("argument_list", "arguments"))


def guard(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """Leave before the statement if a value is nothing, empty or zero: throw, return, or continue with the next."""
    place = line_cut(node, file)
    if place is None or not inside_function(node):
        return
    start, _, indent = place
    forms = _CONDITIONS[file.language][: None if facts.asks else 1]
    forms = (*_BOUNDS, *forms) if "raise" in facts.asks else forms
    short = (file.text(one) for one in file.scope(node).expressions if one.type in NAMES | MEMBERS)
    needed = _needed(node, file) if facts.asks else ()
    names = [name for name in dict.fromkeys((*needed, *short)) if name not in _SELF][:6]
    returns = list(dict.fromkeys(_returns(node, file, names[:4])))[:10]
    for name in names:
        leaves = (*_throws(name, file, facts), *returns)
        for form in forms:
            yield from ((start, start, guarded(form.format(name), leave, indent, file)) for leave in leaves)


def _needed(node: Node, file: File) -> Iterator[str]:
    """What the statement cannot do without: objects of attributes and indexes, arguments, divisors, what it loops over."""
    for one in own(node):
        found: list[Node | None] = []
        if one.type in MEMBERS | INDEXED:
            found = [_owner(one)]
        elif one.type in LOOPS:
            found = [one.child_by_field_name("right")]
        elif one.type in CALLS:
            found = [*arguments(one)[:2]]
        elif (parts := operation(one)) and file.text(parts[1]) in ("/", "//", "%"):
            found = [parts[2]]
        yield from (file.text(part) for part in found if part is not None and part.type in NAMES | MEMBERS)


def _owner(node: Node) -> Node | None:
    return member(node)[0] or node.child_by_field_name("value")


def _throws(name: str, file: File, facts: Facts) -> Iterator[str]:
    if "raise" in facts.asks and (form := _THROW.get(file.language)):
        yield from (form.format(error, name) for error in (*facts.errors[:3], _USUAL_ERROR[file.language]))


def _returns(node: Node, file: File, names: list[str]) -> Iterator[str]:
    """How the function leaves elsewhere, then usual values, then how other functions do."""
    around, loops = node.parent, False
    while around is not None and around.type not in FUNCTIONS:
        loops = loops or around.type in LOOPS | {"while_statement"}
        around = around.parent
    yield from file.returns.get(around.id if around is not None else 0, ())[:3]
    if loops:
        yield "continue"
    yield from (f"return {value}" for value in file.words.empties[:6])
    yield from file.returns.get(0, ())[:2]
    yield from (f"return {name}" for name in names)


def learned_guard(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """A guard of a sibling function at the start of the statement, with names that exist here."""
    place = line_cut(node, file)
    if place is None or not inside_function(node) or siblings(node)[:1] != [node]:
        return
    start, _, indent = place
    names = set(file.scope(node).names)
    around = file.text(node.parent)
    for function in file.functions.values():
        body = function.child_by_field_name("body")
        for one in (body.named_children if body else [])[:4]:
            text = file.text(one)
            if one.type != "if_statement" or len(text) > 300 or text in around or "\n" not in text:
                continue
            used = {file.text(part) for part in walk(one) if part.type in NAMES}
            if used & names and (depth := file.indent(one)) is not None:
                yield (start, start, indent + text.replace(f"\n{depth}", f"\n{indent}") + "\n")


def fallback(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another value in place of nothing: `x or []`, `d.get(k)`, `x?.y`, `x ?? 0`."""
    above = node.parent
    if above is None or not is_value(node) or node.type not in NAMES | MEMBERS | INDEXED | CALLS:
        return
    if node.type in NAMES and above.type not in _HOLDERS:
        return
    text = file.text(node)
    called = above.type in CALLS and above.child_by_field_name("function") == node
    if file.language == "script":
        short = _optional(node, file)
        yield from short
        if not called:
            yield from (f"({one} ?? {value})" for one in (*short, text) for value in _VALUES)
    elif file.language == "python" and not called:
        yield from _looked_up(node, file)
        yield from (f"({text} or {value})" for value in _VALUES)


def _optional(node: Node, file: File) -> list[str]:
    """`x?.y` for `x.y`, `x?.[y]` for `x[y]`."""
    owner = _owner(node)
    if node.type not in MEMBERS | INDEXED or owner is None:
        return []
    before, rest = file.text(owner), file.text(node)[len(file.text(owner)) :]
    return [] if rest.startswith("?") else [f"{before}?{'' if rest.startswith('.') else '.'}{rest}"]


def _looked_up(node: Node, file: File) -> Iterator[str]:
    """`d.get(k)` for `d[k]`."""
    value, key = node.child_by_field_name("value"), node.child_by_field_name("subscript")
    if node.type in INDEXED and value is not None and key is not None and key.type != "slice":
        texts = file.text(value), file.text(key)
        yield "{}.get({})".format(*texts)
        yield from ("{}.get({}, {})".format(*texts, other) for other in _VALUES)
