"""Rules for code that contradicts its surroundings: a loop over nothing, a decorator that is missing, a negated comparison.

Such code is rare where it is right, so these rules have high priors and few texts.
"""

from collections import Counter
from collections.abc import Iterator

from tree_sitter import Node

from cloister.harnesses.repair.rules.api import Facts
from cloister.harnesses.repair.syntax import CALLS, FUNCTIONS, LOOPS, MEMBERS, NAMES, Cut, File, walk

_INDICES = frozenset(["i", "j", "k", "n", "idx", "index", "pos", "position", "_"])
_KEYS = frozenset(("k", "key", "name"))
_GENERATORS = frozenset(("contextmanager", "asynccontextmanager"))
_METHODS = frozenset(["cached_property", "abstractmethod", "singledispatchmethod", "override"])
_DECORATORS = _GENERATORS | _METHODS | frozenset(["lru_cache", "cache", "singledispatch", "overload"])
_MOST = 60


def looped(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """What a loop over an empty list may go over. Values that nothing else reads come first."""
    loop = node.parent
    if loop is None or loop.type not in LOOPS or file.text(node) != "[]":
        return
    left = loop.child_by_field_name("left")
    targets = [file.text(one) for one in walk(left) if one.type in NAMES] if left is not None else []
    scope = file.scope(loop)
    counts = Counter(file.text(one) for one in walk(_top(loop)) if one.type in NAMES)
    unread = [name for name in scope.names if counts[name] == 1 and name not in targets]
    values = [file.text(one) for one in scope.expressions if one.type in NAMES | MEMBERS | CALLS]
    values += [file.text(one.child_by_field_name("right")) for one in file.nodes if one.type in LOOPS]
    alike = [one for one in (*values, *_members(targets, scope.names, file)) if _sounds_like(one, targets)]
    likely = [*unread, *alike]
    texts = [form for one in likely for form in _forms(one, targets, unread)]
    texts += [next(iter(_forms(one, targets, ()))) for one in values]
    yield from [one for one in dict.fromkeys(texts) if one not in ("[]", *targets)][:_MOST]


def _top(node: Node) -> Node:
    top = node
    while (above := top.parent) is not None:
        top = above
        if top.type in FUNCTIONS:
            return top
    return top


def _members(targets: list[str], names: tuple[str, ...], file: File) -> Iterator[str]:
    """Attributes of the file that sound like the loop's variable, of `self` and of variables."""
    alike = [name for name in file.members[""] if _sounds_like(name, targets)]
    for owner in ("self", *names[:6]):
        yield from (f"{owner}.{name}" for name in alike[:6] if owner not in targets)


def _sounds_like(text: str, targets: list[str]) -> bool:
    """`keys` or `self.keys` for `key`."""
    words = [part for name in targets[:2] for part in name.split("_") if len(part) > 2]
    return any(word in text for word in words)


def _forms(value: str, targets: list[str], others: list[str] | tuple[()]) -> Iterator[str]:
    if len(targets) < 2:
        if targets and targets[0] in _INDICES:
            yield from (f"range(len({value}))", f"range({value})")
        yield from (value, f"reversed({value})", f"sorted({value})")
        return
    pairs = [f"{value}.items()", f"enumerate({value})", value]
    if targets[0] in _INDICES - _KEYS:
        pairs = [f"enumerate({value})", f"{value}.items()", value]
    yield from pairs
    yield from (f"zip({value}, {other})" for other in others if other != value)


def negated_comparison(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A comparison without the `not` before it: Python has an operator for each negation."""
    inner = node.child_by_field_name("argument")
    if node.type == "not_operator" and inner is not None and inner.type == "comparison_operator":
        yield file.text(inner)


def asked_decorator(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """The decorator that the parameters, the body or the uses of a function ask for."""
    indent = file.indent(node)
    if node.type != "function_definition" or indent is None or file.language != "python":
        return
    start = node.start_byte - len(indent.encode())
    for text in dict.fromkeys(_asked(node, file, facts)):
        yield (start, start, f"{indent}@{text}\n")


def _asked(function: Node, file: File, facts: Facts) -> Iterator[str]:
    names, around = _parameters(function, file), _around(function)
    name = file.text(function.child_by_field_name("name"))
    if around is not None and around.type == "class_definition" and name != "__new__":
        if names[:1] in (["cls"], ["klass"]):
            yield "classmethod"
        elif names[:1] != ["self"]:
            yield "staticmethod"
        if len(names) == 2 and _has_property(around, name, file):
            yield f"{name}.setter"
        if names == ["self"] and (name in facts.names or name in file.read_members):
            yield "property"
    unread = {one for one in file.imported & _DECORATORS if file.counts[one] == 1}
    if around is not None and around.type in FUNCTIONS:
        wraps = "wraps" if "wraps" in file.imported else "functools.wraps"
        if "wraps" in file.imported or b"import functools" in file.data:
            yield from (f"{wraps}({one})" for one in _parameters(around, file)[:3] if one != "self")
    generates = b"yield" in file.data[function.start_byte : function.end_byte]
    for one in sorted(unread & _DECORATORS):
        if generates == (one in _GENERATORS) and (one not in _METHODS or names[:1] == ["self"]):
            yield one


def _parameters(function: Node, file: File) -> list[str]:
    given = function.child_by_field_name("parameters")
    names = ([part for part in walk(one) if part.type in NAMES] for one in _children(given))
    return [file.text(one[0]) for one in names if one]


def _children(node: Node | None) -> list[Node]:
    return [] if node is None else node.named_children


def _around(function: Node) -> Node | None:
    """The class or function that a function is defined in."""
    above = function.parent
    while above is not None and above.type not in FUNCTIONS | {"class_definition"}:
        above = above.parent
    return above


def _has_property(around: Node, name: str, file: File) -> bool:
    body = around.child_by_field_name("body")
    found = (one for one in _children(body) if one.type == "decorated_definition")
    return any(
        file.text(one.child_by_field_name("definition")).startswith(f"def {name}(")
        and "property" in file.text(one).split("\n")[0]
        for one in found
    )
