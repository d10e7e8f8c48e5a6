"""Rules for names, calls, arguments and constants: another one of the same kind that is in reach."""

from collections.abc import Iterator
from itertools import combinations

from tree_sitter import Node

from cloister.harnesses.repair.rules.api import Facts
from cloister.harnesses.repair.syntax import (
    BINARY,
    CALLS,
    CONDITIONAL,
    INDEXED,
    LITERALS,
    MEMBERS,
    NAMES,
    NUMBERS,
    STRINGS,
    File,
    arguments,
    is_value,
    member,
    operation,
    walk,
)

_GROUPS = """min max sum len|any all|append extend add insert|lower upper title capitalize|startswith endswith
startsWith endsWith|find index rfind|indexOf lastIndexOf|lstrip rstrip strip|trimStart trimEnd trim|keys values items
entries|sorted reversed list set tuple|union intersection difference|ceil floor round|abs int float|pop popleft shift
unshift push|appendleft append|split rsplit splitlines|HasPrefix HasSuffix Contains|ToLower ToUpper|setdefault get|encode
decode|first last|left right|start end|before after|lower upper|width height|x y|row column|min_value max_value|every some
filter|floor ceil round|isalpha isdigit isalnum isnumeric|bisect_left bisect_right|islice takewhile dropwhile|remove discard
add|match fullmatch search|next prev|head tail|incoming outgoing|parent child|heappush heappop|isinstance issubclass|hasattr getattr"""
PARTNERS: dict[str, tuple[str, ...]] = {}
for _group in _GROUPS.replace("\n", " ").split("|"):
    for _name in _group.split():
        _others = tuple(other for other in _group.split() if other != _name)
        PARTNERS[_name] = tuple(dict.fromkeys((*PARTNERS.get(_name, ()), *_others)))


def variable(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another variable of the function."""
    if node.type in NAMES and is_value(node) and not _is_called(node) and not _is_caught(node):
        text = file.text(node)
        names = file.scope(node).names
        yield from sorted((name for name in names if name != text), key=lambda name: _unlike(name, text))


def _unlike(name: str, text: str) -> tuple[bool, bool]:
    return not (set(name.split("_")) & set(text.split("_"))), name[:1] != text[:1]


def _is_caught(node: Node) -> bool:
    """True for the type of an `except`."""
    above = node.parent
    while above is not None and above.type in ("tuple", "as_pattern"):
        above = above.parent
    return above is not None and above.type == "except_clause"


def _is_called(node: Node) -> bool:
    return (
        node.parent is not None
        and node.parent.type in CALLS
        and node.parent.child_by_field_name("function") == node
    )


def attribute(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another attribute of the same object, or one with a similar name."""
    if node.type not in MEMBERS:
        return
    owner, name = member(node)
    if owner is None or name is None:
        return
    text = file.text(name)
    alike = [one for one in file.members[""] if _related(one, text)]
    others = dict.fromkeys((*PARTNERS.get(text, ()), *file.members.get(file.text(owner), ()), *alike))
    for other in others:
        if other != text:
            yield file.replaced(node, name, other)


def _related(one: str, other: str) -> bool:
    return bool(set(one.strip("_").split("_")) & set(other.strip("_").split("_")))


def called(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another function: its usual partner, or a sibling of the same module."""
    if (
        node.type in CALLS
        and (name := node.child_by_field_name("function")) is not None
        and name.type in NAMES
    ):
        text = file.text(name)
        for other in dict.fromkeys(
            (*PARTNERS.get(text, ()), *_siblings(text, file), *file.scope(node).calls)
        ):
            if other != text:
                yield file.replaced(node, name, other)


def _siblings(text: str, file: File) -> list[str]:
    if text not in file.functions:
        return []
    return sorted(file.functions, key=lambda name: (not _related(name, text), name))[:12]


def swapped(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Two arguments the other way round."""
    if node.type in CALLS:
        given = arguments(node)
        for a, b in list(combinations(given, 2))[:10]:
            between = file.data[a.end_byte : b.start_byte].decode(errors="surrogatepass")
            before = file.data[node.start_byte : a.start_byte].decode(errors="surrogatepass")
            after = file.data[b.end_byte : node.end_byte].decode(errors="surrogatepass")
            yield f"{before}{file.text(b)}{between}{file.text(a)}{after}"


def argument(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """One argument less."""
    given = arguments(node) if node.type in CALLS else []
    if len(given) >= 2:
        called_name = file.text(node.child_by_field_name("function"))
        for left_out in range(len(given) - 1, -1, -1):
            rest = ", ".join(file.text(one) for index, one in enumerate(given) if index != left_out)
            yield f"{called_name}({rest})"


def unwrapped(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """An argument of a call, or the object of a method, instead of the call."""
    if node.type in CALLS:
        for one in arguments(node)[:3]:
            yield file.text(one)
        owner, _ = (
            member(name)
            if (name := node.child_by_field_name("function")) and name.type in MEMBERS
            else (None, None)
        )
        if owner is not None:
            yield file.text(owner)
    if node.type in INDEXED and (value := node.child_by_field_name("value")) is not None:
        yield file.text(value)


def wrapped(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A value in a call that the function uses elsewhere, or bounded by zero."""
    parent = node.parent
    if not is_value(node) or parent is None or _is_called(node) or parent.type in MEMBERS:
        return
    if node.type in BINARY | NAMES | CALLS | MEMBERS and file.language == "python":
        text = file.text(node)
        if parent.type in ("assignment", "augmented_assignment", "return_statement", "argument_list"):
            yield f"max(0, {text})"
            yield f"[{text}]"
            if parent.type == "assignment":
                left = file.text(parent.child_by_field_name("left"))
                yield from (f"max({left}, {text})", f"min({left}, {text})", f"{left} + {text}")
        for name in file.scope(node).calls[:6]:
            yield f"{name}({text})"


def boolean(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """`True` for `False`."""
    words = file.words
    yield from {words.true: (words.false,), words.false: (words.true,)}.get(file.text(node), ())


def number(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another number: a usual one, one of the failing assertion, or one of the file."""
    if node.type in NUMBERS:
        text = file.text(node)
        usual = () if "." in text else ("0", "1", "2", "-1", f"-{text}")
        doubled = (
            () if "." in text or not text.isdigit() else (str(int(text) * 2), str(int(text) // 2), f"{text}0")
        )
        own = [one for one in file.constants if one[0].isdigit()]
        said = [one for one in facts.values if one.lstrip("-").replace(".", "", 1).isdigit()]
        yield from (one for one in dict.fromkeys((*usual, *own[:12], *doubled, *said[:8])) if one != text)


def string(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another text: one of the failing assertion, or one of the file."""
    if node.type in STRINGS and is_value(node):
        text = file.text(node)
        inner = text.strip("\"'`")
        yield from (text.replace("XX", "", 2), text.replace(inner, inner.swapcase(), 1) if inner else text)
        said = [one for one in facts.values if one[0] in "\"'"]
        own = [one for one in file.constants if one[0] in "\"'`" and _is_near(one, text)]
        yield from (one for one in dict.fromkeys((*own[:15], *said[:8], '""')) if one != text)


def _is_near(one: str, other: str) -> bool:
    return abs(len(one) - len(other)) <= 3


def literal_list(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A list with one element for an empty one, and nothing for something."""
    text = file.text(node)
    if text == "[]":
        yield "[[]]"
        yield from (f"[{name}]" for name in file.scope(node).names[:8])
    if node.type in LITERALS and node.parent is not None and node.parent.type == "return_statement":
        yield from (one for one in file.words.empties if one != text)


def transplanted(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another expression of the same function."""
    if not is_value(node) or _is_called(node) or (node.parent is not None and node.parent.type in MEMBERS):
        return
    if _is_caught(node):
        return
    if node.end_byte - node.start_byte > 80:
        return
    text = file.text(node)
    for other in file.scope(node).expressions:
        if node.type in NAMES and other.type in NAMES:
            continue  # that is another rule
        other_text = file.text(other)
        if other_text != text:
            yield f"({other_text})" if other.type in BINARY and _binds(node) else other_text


def _binds(node: Node) -> bool:
    return node.parent is not None and node.parent.type in BINARY | MEMBERS | INDEXED


def offset(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A value with another value of the function added, subtracted or multiplied."""
    parent = node.parent
    if (
        parent is None
        or not is_value(node)
        or _is_called(node)
        or node.type not in NAMES | MEMBERS | INDEXED | CALLS | {"list_comprehension"}
    ):
        return
    if parent.type not in BINARY | {
        "argument_list",
        "arguments",
        "assignment",
        "return_statement",
        "slice",
        "subscript",
    }:
        return
    text = file.text(node)
    yield from (f"{text} * {text}", f"{text} // 2") if file.language == "python" else (f"{text} * {text}",)
    for name in file.scope(node).names[:12]:
        if name != text:
            yield from (f"{text} - {name}", f"{text} + {name}", f"{name} + {text}", f"{text} * {name}")


def missing_check(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A condition that first asks if the owner of an attribute in it is there."""
    if node.parent is None or node.parent.type not in CONDITIONAL | {"return_statement"}:
        return
    text, words = file.text(node), file.words
    inner = text[1:-1] if node.type == "parenthesized_expression" else text
    close = "({})" if node.type == "parenthesized_expression" else "{}"
    for owner in dict.fromkeys(file.text(member(one)[0]) for one in walk(node) if one.type in MEMBERS):
        if owner:
            yield close.format(f"{words.is_nothing.format(owner)} {words.either} {inner}")
            yield close.format(f"{words.is_something.format(owner)} {words.both} {inner}")


def more_condition(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A condition with one more part: a condition, a name or a missing value of the same function."""
    parent = node.parent
    if parent is None:
        return
    is_condition = parent.type in CONDITIONAL and parent.child_by_field_name("condition") == node
    if not is_condition and not (parent.type == "return_statement" and node.type in BINARY | LITERALS):
        return
    text, words = file.text(node), file.words
    inner = text[1:-1] if node.type == "parenthesized_expression" else text
    close = "({})" if node.type == "parenthesized_expression" else "{}"
    scope = file.scope(node)
    parts = [file.text(one) for one in scope.expressions if one.type in MEMBERS | INDEXED][:6]
    names = [one for one in (*scope.names[:10], *parts) if one != inner]
    tests = [one for one in scope.expressions if one.type in BINARY and operation(one)][:12]
    for name in names:
        yield close.format(name) if node.type in LITERALS else close.format(f"{inner} {words.both} {name}")
        yield close.format(f"{words.no.format(name)} {words.either} {inner}")
        yield close.format(f"{words.is_nothing.format(name)} {words.either} {inner}")
        yield close.format(f"{words.is_something.format(name)} {words.both} {inner}")
    for test in map(file.text, tests):
        if test not in text:
            for word in (words.both, words.either):
                yield close.format(f"{inner} {word} {test}")
    if parent.type == "return_statement":
        yield from (f"{name} == 0" for name in names)
