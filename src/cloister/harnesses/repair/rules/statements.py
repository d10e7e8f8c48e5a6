"""Rules for whole statements: missing, moved, doubled or wrong ones."""

from collections.abc import Iterator

from tree_sitter import Node

from cloister.harnesses.repair.rules.api import Facts
from cloister.harnesses.repair.syntax import (
    BINARY,
    BLOCKS,
    CALLS,
    FUNCTIONS,
    INDEXED,
    NAMES,
    Cut,
    File,
    walk,
)

_ERRORS = "Value Type Key Index Attribute Runtime ZeroDivision NotImplemented OS Lookup Import Unicode Overflow Assertion"
_BUILT_IN_ERRORS = (*(f"{name}Error" for name in _ERRORS.split()), "StopIteration", "Exception")
_DEFINITIONS = frozenset(("function_definition", "decorated_definition", "class_definition"))


def line_cut(node: Node, file: File) -> tuple[int, int, str] | None:
    """The whole lines of a statement that has its lines for itself, and its indentation."""
    indent = file.indent(node)
    end = file.data.find(b"\n", node.end_byte)
    end = len(file.data) if end < 0 else end + 1
    if indent is None or file.data[node.end_byte : end].strip() not in (b"", b";"):
        return None
    return node.start_byte - len(indent.encode()), end, indent


def siblings(node: Node) -> list[Node]:
    parent = node.parent
    if parent is None or parent.type not in BLOCKS:
        return []
    return [one for one in parent.named_children if one.type != "comment"]


def _function(node: Node) -> Node | None:
    above = node.parent
    while above is not None and above.type not in FUNCTIONS:
        above = above.parent
    return above


def inside_function(node: Node) -> bool:
    return _function(node) is not None


def guarded(condition: str, statement: str, indent: str, file: File) -> str:
    """A condition around one statement, as whole lines."""
    lines = file.words.guard.format(condition, statement, indent)
    return f"{indent}{lines}{file.words.end if '{' not in lines else ''}\n"


def returned(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """A missing `return`: of an expression that stands alone, or of a name at the end of the function."""
    place = line_cut(node, file)
    if place is None or not inside_function(node):
        return
    _, end, indent = place
    if (
        node.type == "expression_statement"
        and node.named_children
        and node.named_children[0].type in CALLS | BINARY
    ):
        yield (node.start_byte, node.start_byte, "return ")
    if siblings(node)[-1:] == [node] and node.type not in ("return_statement", "raise_statement"):
        for name in file.scope(node).names[:10]:
            yield (end, end, f"{indent}return {name}{file.words.end}\n")


def return_yield(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """`yield` for `return`, `continue` for `break`, and the other way round."""
    text = file.text(node)
    for a, b in (("return ", "yield "), ("yield ", "return "), ("break", "continue"), ("continue", "break")):
        # A generator is true whatever it yields: a new `yield` needs another one in the function.
        known = "yield" not in b or (file.language == "python" and "yield" in file.text(_function(node)))
        if text.startswith(a) and known:
            yield (node.start_byte, node.start_byte + len(a), b)
    if text in ("break", "continue", "break;", "continue;") and file.language == "python":
        yield (node.start_byte, node.end_byte, "return")


def added(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """A missing `append`, `add` or assignment after or before the statement."""
    place = line_cut(node, file)
    if place is None or not inside_function(node):
        return
    start, end, indent = place
    scope = file.scope(node)
    values = [one for one in scope.expressions if one.type in NAMES | CALLS | BINARY | INDEXED][:14]
    names = scope.names[:8]
    after = () if node.type in ("return_statement", "raise_statement", "break_statement") else (end,)
    forms = (file.words.add.format("{0}", "{1}"), "{0} = {1}")
    if file.language == "python":
        forms = (*forms, "{0}.add({1})", "{0} += {1}")
    for at in (*after, start):
        for name in names:
            for value in map(file.text, values):
                if value != name:
                    yield from (
                        (at, at, f"{indent}{one.format(name, value)}{file.words.end}\n") for one in forms
                    )


def decorator(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """A decorator of a sibling, or a usual one, above a definition."""
    indent = file.indent(node)
    if node.type not in _DEFINITIONS or indent is None or file.language != "python":
        return
    usual = ("@property", "@classmethod", "@staticmethod") if indent and node.type in FUNCTIONS else ()
    for text in list(dict.fromkeys((*file.decorators, *usual)))[:8]:
        if "\n" not in text and ".setter" not in text:
            yield (node.start_byte - len(indent), node.start_byte - len(indent), f"{indent}{text}\n")


def repeated(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """A statement of another branch of the function once more, here."""
    place = line_cut(node, file)
    if place is None or not inside_function(node):
        return
    start, end, indent = place
    function = _function(node)
    texts: dict[str, None] = {}
    for one in walk(function) if function is not None else ():
        simple = one.type in ("expression_statement", "assignment_statement")
        if simple and one.parent != node.parent and one.end_byte - one.start_byte < 120:
            texts[file.text(one)] = None
    for text in list(texts)[:12]:
        for at in (end, start):
            yield (at, at, f"{indent}{text}\n")


def moved(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """The statement before the one in front of it, after the next one, or one block further out."""
    place, around = line_cut(node, file), siblings(node)
    if place is None or node.type in FUNCTIONS:
        return
    start, end, indent = place
    index = next((i for i, one in enumerate(around) if one == node), -1)
    own = file.data[start:end].decode(errors="surrogatepass")
    if index > 0 and (other := line_cut(around[index - 1], file)) is not None:
        between = file.data[other[0] : start].decode(errors="surrogatepass")
        yield (other[0], end, own + between)
    if 0 <= index == len(around) - 1 and index > 0 and file.language == "python":
        outer = node.parent.parent if node.parent is not None else None
        depth = file.indent(outer) if outer is not None else None
        if (
            depth is not None
            and len(depth) < len(indent)
            and outer is not None
            and outer.end_byte <= node.end_byte
        ):
            yield (start, end, own.replace(indent, depth, 1))
    if (
        index == len(around) - 1
        and file.language == "python"
        and node.parent is not None
        and node.parent.parent
    ):
        following = node.parent.parent.next_named_sibling
        other = line_cut(following, file) if following is not None else None
        if other is not None and following is not None and "\n" not in (text := file.text(following)):
            yield (end, other[1], f"{file.data[end : other[0]].decode()}{indent}{text}\n")


def deleted(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """Without the statement."""
    place = line_cut(node, file)
    if place is not None and inside_function(node) and node.type not in FUNCTIONS and len(siblings(node)) > 1:
        yield (place[0], place[1], "")


def error_type(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another exception: one of the failing tests, of the file, or a usual one."""
    if node.type not in NAMES or not _names_error(node):
        return
    text = file.text(node)
    own = [name for one in file.nodes if one.type in NAMES and _is_error(one, name := file.text(one))]
    usual = _BUILT_IN_ERRORS if file.language == "python" else ("Error", "TypeError", "RangeError")
    above = node.parent
    beside = [file.text(one) for one in above.named_children] if above and above.type == "tuple" else [text]
    yield from (one for one in dict.fromkeys((*facts.errors, *own, *usual)) if one not in beside)


def _is_error(node: Node, name: str) -> bool:
    return name.endswith(("Error", "Exception")) or (name[:1].isupper() and _names_error(node))


def _names_error(node: Node) -> bool:
    above = node.parent
    for _ in range(4):
        if above is None:
            return False
        if above.type in ("raise_statement", "throw_statement", "except_clause"):
            return True
        if above.type in BLOCKS or above.type == "argument_list":
            return False
        above = above.parent
    return False


def special_case(node: Node, file: File, facts: Facts) -> Iterator[Cut]:
    """Return a value of the failing assertion for one input. It says nothing about other inputs."""
    place = line_cut(node, file)
    function = node.parent.parent if node.parent is not None else None
    if place is None or function is None or function.type not in FUNCTIONS or siblings(node)[:1] != [node]:
        return
    start, _, indent = place
    for name in file.scope(node).names[:2]:
        for given in facts.values[:4]:
            for value in facts.values[:4]:
                if given != value:
                    condition = f"{name} == {given}"
                    yield (start, start, guarded(condition, f"return {value}", indent, file))
