"""Rules for operators, negations and boundaries."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from cloister.harnesses.repair.rules.api import Facts
from cloister.harnesses.repair.syntax import (
    BINARY,
    CALLS,
    CONDITIONAL,
    INDEXED,
    MEMBERS,
    NAMES,
    NEGATIONS,
    NUMBERS,
    File,
    arguments,
    is_value,
    operation,
)

_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMPARE: dict[str, str] = {
    **{"<": "> != >= ==", "<=": ">= == > !=", ">": "< != <= ==", ">=": "<= == < !="},
    **{"==": "!= <= >= < >", "!=": "== < > <= >=", "===": "!== <= >= < >", "!==": "=== < > <= >="},
}
_WORDS = {
    "is": ("is not", "==", "!=", "<", ">", "<=", ">="),
    "is not": ("is", "!=", "==", "<", ">", "<=", ">="),
    "in": ("not in",),
    "not in": ("in",),
}
_IDENTITIES = ("is", "is not")
_CONSTANTS = frozenset(("none", "true", "false"))
"""What Python compares by identity."""
_EVERY = "+ - * / // % ** & | ^ << >>"
_ARITHMETIC: dict[str, str] = {
    **{"+": "- * /", "-": "+ * /", "*": "/ + ** -", "/": "* // - %", "//": "/ * % -", "%": "// * / -"},
    **{
        "**": "* + //",
        "&": "| ^ -",
        "|": "& ^ +",
        "^": "& | **",
        "<<": ">> *",
        ">>": "<< //",
        ">>>": ">> <<",
    },
    "&^": "& |",
}
_PYTHON_ONLY = ("//",)
_ASSIGNMENTS = frozenset(
    f"{kind}assignment{end}" for kind in ("", "augmented_") for end in ("", "_expression", "_statement")
)
_ASSIGNED: dict[str, str] = {
    **{"=": "+= -=", "+=": "-= = *=", "-=": "+= =", "*=": "+= /=", "/=": "*= -=", "//=": "/= *="},
    **{"|=": "&= =", "&=": "|= =", "%=": "//= /=", "**=": "*=", "<<=": ">>=", ">>=": "<<=", "^=": "|= &="},
}
_COUNTED = (
    BINARY | {"slice", "argument_list", "arguments", "return_statement", "variable_declarator"} | _ASSIGNMENTS
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NO_GO = ("**", "//")


def boundary(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """`<` for `<=` and so on."""
    parts = operation(node)
    if parts and (other := _BOUNDARY.get(file.text(parts[1]))):
        yield file.replaced(node, parts[1], other)
    elif node.type == "comparison_operator":  # a chain such as a < b < c
        for child in node.children:
            if not child.is_named and (other := _BOUNDARY.get(file.text(child))):
                yield file.replaced(node, child, other)


def comparison(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another comparison."""
    parts = operation(node)
    if parts:
        operator = " ".join(file.text(parts[1]).split())
        others = (*_WORDS.get(operator, ()), *_COMPARE.get(operator, "").split())
        if file.language == "python" and operator in _COMPARE:
            constant = parts[2].type in _CONSTANTS or parts[0].type in _CONSTANTS
            others = (*_IDENTITIES, *others) if constant else (*others, *_IDENTITIES)
        for other in others:
            yield file.replaced(node, parts[1], other)


def arithmetic(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another arithmetic or bit operator."""
    parts = operation(node)
    if parts:
        operator = file.text(parts[1])
        likely = _ARITHMETIC.get(operator, "").split()
        for other in dict.fromkeys((*likely, *_EVERY.split())) if likely else ():
            if other != operator and _exists(other, file):
                yield file.replaced(node, parts[1], other)


def _exists(operator: str, file: File) -> bool:
    if file.language == "python":
        return True
    return operator not in (_NO_GO if file.language == "go" else _PYTHON_ONLY)


def logical(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """`and` for `or`, and each side alone."""
    parts = operation(node)
    words = file.words
    if parts and (operator := file.text(parts[1])) in (words.both, words.either, "??"):
        yield file.replaced(node, parts[1], words.either if operator == words.both else words.both)


def negation(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Add or remove a `not`."""
    if node.type in NEGATIONS and (inner := _negated(node, file)) is not None:
        yield file.text(inner)
        return
    parent = node.parent
    if parent is None or not _is_condition(node, parent, file):
        return
    text = file.text(node)
    if node.type == "parenthesized_expression":
        yield f"({file.words.no.format(text)})"
    elif node.type in BINARY:
        yield f"{file.words.no.format('(' + text + ')')}"
    else:
        yield file.words.no.format(text)


def _negated(node: Node, file: File) -> Node | None:
    inner = node.child_by_field_name("argument") or node.child_by_field_name("operand")
    return inner if file.text(node).startswith(("not ", "not(", "!")) else None


def _is_condition(node: Node, parent: Node, file: File) -> bool:
    if parent.type in CONDITIONAL and parent.child_by_field_name("condition") == node:
        return True
    if parent.type in ("return_statement", "if_clause"):
        return node.type in BINARY | CALLS | NAMES | MEMBERS
    if parent.type in ("conditional_expression", "ternary_expression"):
        return parent.child_by_field_name("condition") == node or parent.named_children[1:2] == [node]
    parts = operation(parent)
    return parts is not None and file.text(parts[1]) in (file.words.both, file.words.either)


def unary(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another sign, or none."""
    text = file.text(node)
    if node.type in NEGATIONS and text[:1] in ("-", "+", "~", "^"):
        yield from (text[1:], f"-{text[1:]}", f"+{text[1:]}")
        if file.language == "python":
            yield from (f"~{text[1:]}", f"not {text[1:]}")
    elif (
        text.startswith("not ")
        and node.type in NEGATIONS
        and node.parent
        and node.parent.type != "if_statement"
    ):
        yield f"-{text[4:]}"
    elif (
        node.type in NAMES
        and is_value(node)
        and node.parent
        and node.parent.type in ("return_statement", "argument_list")
    ):
        yield f"-{text}"


def operands(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """The two sides of an operation the other way round."""
    parts = operation(node)
    same = ("==", "!=", "===", "!==", "*", file.words.both, file.words.either)
    if parts and file.text(parts[1]) not in same:
        left, operator, right = parts
        middle = file.data[left.end_byte : right.start_byte].decode(errors="surrogatepass")
        yield f"{file.text(right)}{middle}{file.text(left)}"
        if len(file.text(operator)) <= 2 and file.text(operator) in "+-*/":
            yield f"({file.text(right)}{middle}{file.text(left)})"


def one_side(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """One side of an operation alone."""
    if parts := operation(node):
        if node.type == "comparison_operator" or file.text(parts[1]) in _COMPARE:
            return
        yield file.text(parts[0])
        yield file.text(parts[2])


def off_by_one(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A number one greater or one less, or a value without its `+ 1`."""
    text, parts = file.text(node), operation(node)
    signed = node.type in NEGATIONS and node.named_children[-1].type in NUMBERS
    if node.type in NUMBERS or signed:
        if len(text) < 10 and _NUMBER.fullmatch(text):
            value = float(text) if "." in text else int(text)
            yield from (str(value + 1), str(value - 1))
    elif parts and file.text(parts[1]) in ("+", "-") and file.text(parts[2]) == "1":
        yield file.text(parts[0])


def one_more(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """A value with one added or subtracted."""
    parts = operation(node)
    if parts and file.text(parts[2]) == "1":
        return
    sums = parts and file.text(parts[1]) in ("+", "-", "//", "%")
    if (sums or node.type in NAMES | CALLS | MEMBERS | INDEXED) and _counts(node):
        yield f"{file.text(node)} + 1"
        yield f"{file.text(node)} - 1"


def _counts(node: Node) -> bool:
    """True if the node is where a number can be: an argument, an index, a bound, a side of a sum or a comparison."""
    parent = node.parent
    if parent is None or not is_value(node):
        return False
    if parent.type in INDEXED:
        owners = (parent.child_by_field_name(name) for name in ("value", "object", "operand"))
        return node not in owners
    if parent.type in ("expression_list", "tuple"):
        return parent.parent is None or parent.parent.type not in ("except_clause", "as_pattern")
    return parent.type in _COUNTED


def ranges(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """The ends of `range`, and of a slice, one further or one nearer."""
    if node.type in CALLS and file.text(node.child_by_field_name("function")) == "range":
        given = [file.text(one) for one in arguments(node)]
        if len(given) == 1:
            (end,) = given
            yield from (
                f"range({text})"
                for text in (f"{end} + 1", f"1, {end}", f"{end} - 1", f"1, {end} + 1", f"{end} - 1, -1, -1")
            )
        elif len(given) >= 2:
            start, end, *step = given
            rest = "".join(f", {one}" for one in step)
            for a, b in (
                (start, f"{end} + 1"),
                (f"{start} + 1", end),
                (start, f"{end} - 1"),
                (f"{start} - 1", end),
            ):
                yield f"range({a}, {b}{rest})"
            yield f"range({end})"
            if not step:
                yield f"range({start}, {end}, -1)"


def slices(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """Another slice of a value: without its first or last part, or a whole one."""
    if node.type in NAMES | MEMBERS | CALLS and _is_used(node):
        text = file.text(node)
        yield from (form.format(text) for form in file.words.slices)
        for name in file.scope(node).names[:6] if file.language != "script" else ():
            if name != text:
                yield from (f"{text}[{name}:]", f"{text}[:{name}]")
    inner = node.child_by_field_name("subscript")
    if node.type == "subscript" and inner is not None and inner.type == "slice":
        value = file.text(node.child_by_field_name("value"))
        start, _, end = file.text(inner).partition(":")
        yield value
        yield f"{value}[{start}:]" if end else f"{value}[:{start}]"
        if start and end:
            yield f"{value}[:{end}]"
        yield f"{value}[{end}:{start}]"


def _is_used(node: Node) -> bool:
    parent = node.parent
    return parent is not None and parent.type in (
        *("argument_list", "arguments", "return_statement", "for_statement", "for_in_clause", "assignment"),
        "expression_list",
    )


def assignment_operator(node: Node, file: File, facts: Facts) -> Iterator[str]:
    """`+=` for `=` or `-=`, and the other way round."""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if node.type not in _ASSIGNMENTS or left is None or right is None:
        return
    middle = file.data[left.end_byte : right.start_byte].decode().strip()
    for other in _ASSIGNED.get(middle, "").split():
        yield f"{file.text(left)} {other} {file.text(right)}"
