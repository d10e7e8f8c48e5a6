"""Assertions of Python tests: `assert`, unittest, pytest, mock and numpy.testing."""

import re
from collections.abc import Sequence

from tree_sitter import Node

from cloister.feedback.experiments.mutants import (
    MARK,
    Block,
    Change,
    Cut,
    Dialect,
    arguments,
    cut,
    field,
    same_file,
)

_FAIL = f'raise AssertionError("{MARK}")'
_OTHER = 'type("_Other", ({base},), {{}})'
_NUMBER = "{0} + 17 + 10 * abs({0})"
"""Beyond each relative tolerance."""
_DISTANT = re.compile(r"(?<![\w.])(-?\d{1,40}|v) \+ 17 \+ 10 \* abs\(\1\)")
_TOLERANT = re.compile(r"(?i)approx|almost|close|delta|tol|round|isclose|precision")
_ANY = (
    "(lambda v: not v if v is True or v is False"
    ' else v + 17 + 10 * abs(v) if isinstance(v, (int, float, complex)) and abs(v) < 1e300 or hasattr(v, "__array__")'
    ' else v + "~17" if isinstance(v, str) else v + b"~17" if isinstance(v, bytes)'
    ' else [*v, "~17"] if isinstance(v, list) else (*v, "~17") if isinstance(v, tuple)'
    ' else {{**v, "~17": "~17"}} if isinstance(v, dict) else {{*v, "~17"}} if isinstance(v, (set, frozenset))'
    " else object())({0})"
)
"""Another value of the same type, for equalities that lie about values of one type only."""
_SAME = "*(lambda v: (v, v))({0})"
_FLIPPED = {
    **{"!=": "==", "<>": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!="},
    **{"in": "not in", "not in": "in", "is": "is not", "is not": "is"},
}
_EQUAL = {
    *("Equal", "Equals", "ListEqual", "DictEqual", "TupleEqual", "SetEqual", "SequenceEqual"),
    *("CountEqual", "ItemsEqual", "AlmostEqual", "AlmostEquals", "JSONEqual", "HTMLEqual", "XMLEqual"),
    *("QuerySetEqual", "QuerysetEqual", "Contains", "Redirects", "TemplateUsed", "ArrayEqual", "Allclose"),
    *("ArrayAlmostEqual", "ApproxEqual", "StringEqual", "Close", "FrameEqual", "SeriesEqual", "IndexEqual"),
    "MultiLineEqual",
}
_SWAPPED = ("Greater", "Less", "ArrayLess")
_RENAMED = {
    **{"GreaterEqual": "assertLess", "LessEqual": "assertGreater", "NoLogs": "assertLogs"},
    **{"Called": "assert_not_called", "CalledOnce": "assert_not_called", "NotCalled": "assert_called"},
    **{"Awaited": "assert_not_awaited", "AwaitedOnce": "assert_not_awaited", "NotAwaited": "assert_awaited"},
}
_CALLED_WITH = ("CalledWith", "CalledOnceWith", "AnyCall", "AwaitedWith", "AwaitedOnceWith", "AnyAwait")
_SECOND = {
    "Is": "object()",
    "IsInstance": 'type("_Other", (), {})',
    "NotIsInstance": "object",
    "Regex": '"(?!)"',
    "RegexpMatches": '"(?!)"',
    "NotRegex": '""',
}
"""The second argument with which it must fail."""
_FIRST = {
    **{"True": "not ({0})", "": "not ({0})", "False": "not ({0})"},
    **{"IsNone": '({0}, "~17")', "IsNotNone": "({0}, None)[1]", "In": _ANY, "StartsWith": '"~17" + {0}'},
    **{
        "EndsWith": '{0} + "~17"',
        "HasAttr": "({0}, object())[1]",
        "NumQueries": _NUMBER,
        "HasCalls": "[object()]",
    },
}
_BOTH = {"NotEqual": _SAME, "NotEquals": _SAME, "IsNot": _SAME, "NotAlmostEqual": _SAME}
_BOTH["NotIn"] = "*(lambda v: (v, [v]))({0})"
"""Two arguments with which it must fail, made of the first."""
_RAISES = ("raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp", "assert_raises")
_WARNS = ("warns", "assertWarns", "assertWarnsRegex", "assert_warns")
_TOLERANCES = ("delta", "abs", "atol", "rtol", "rel")
_CONSTANTS = ("integer", "float", "string", "concatenated_string", "true", "false", "none", "ellipsis")
_CONTAINERS = {
    "list": ('"~17"', "["),
    "tuple": ('"~17"', "("),
    "set": ('"~17"', "{"),
    "dictionary": ('"~17": "~17"', "{"),
}
_LIKE = (
    "(lambda c: (c is not v and c.__dict__.update(dict.fromkeys(c.__dict__, object())), c if c is not v else object())[1])"
    "(__import__('copy').copy(v)) if getattr(v, '__dict__', None) and not isinstance(v, type) else object()"
)
"""A copy of `v` in which every attribute is another one: an equality that only compares types does not see it."""
_BOUNDS = {
    **dict.fromkeys(("<", "<=", "Less", "LessEqual"), ("-inf", "inf")),
    **dict.fromkeys((">", ">=", "Greater", "GreaterEqual"), ("inf", "-inf")),
}
"""A right and a left bound that no number meets. A number that was measured can be on either side of an ordinary one."""
_DEPTH = 12


class PythonTests(Dialect):
    """Tests of pytest and unittest."""

    branches = frozenset(
        (
            "if_statement",
            "try_statement",
            "match_statement",
            "lambda",
            "function_definition",
            "class_definition",
        )
    )

    @classmethod
    def grammar_of(cls, path: str) -> str:
        return "tree_sitter_python"

    def name(self, node: Node) -> str | None:
        if node.type not in ("function_definition", "class_definition"):
            return None
        return self.text(field(node, "name"))

    def is_group(self, node: Node) -> bool:
        return node.type == "class_definition"

    def call(self, node: Node) -> str | None:
        if node.type != "call":
            return None
        return self.text(field(node, "function")).rpartition(".")[2]

    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        owner, colons, rest = test.partition("[")[0].partition("::")
        module = self.source.path.removesuffix(".py").replace("/", ".")
        if owner.endswith(".py"):
            names = rest.split("::")
            if not same_file(owner, self.source.path):
                return []
        else:
            names = owner.split(".") + (rest.split("::") if colons else [])
        tests = [block for block in blocks if block.node.type == "function_definition"]
        for block in tests:
            own = len(block.names)
            around = ".".join(names[:-own])
            if tuple(names[-own:]) == block.names and (
                around in ("", "__main__") or same_module(around, module)
            ):
                return [one for one in tests if one.names == block.names][-1:]
        return self._inherited(names, blocks)

    def _inherited(self, names: Sequence[str], blocks: Sequence[Block]) -> list[Block]:
        """The method of a base class in the same file."""
        methods = {block.names: block for block in blocks if block.node.type == "function_definition"}
        classes = {block.names[-1]: block for block in blocks if block.node.type == "class_definition"}
        owner = classes.get(names[-2]) if len(names) > 1 else None
        for _ in range(_DEPTH):
            bases = field(owner.node, "superclasses") if owner else None
            known = [
                classes[name]
                for base in (bases.named_children if bases else ())
                if (name := self.text(base)) in classes
            ]
            for base in known:
                if method := methods.get((*base.names, names[-1])):
                    return [method]
            owner = known[0] if known else None
        return []

    def assertion(self, node: Node) -> bool | None:
        if node.type == "assert_statement":
            return False
        if node.type == "with_statement":
            calls = [name for call in self._with_calls(node) if (name := self.call(call))]
            if any(name in _RAISES for name in calls):
                return False
            return (
                True
                if any(name in _WARNS or _kind(name) in ("NumQueries", "NoLogs") for name in calls)
                else None
            )
        call = self._called(node)
        name = self.call(call) if call else None
        if call is None or name is None:
            return None
        raises = name in _RAISES + _WARNS and len(_positional(call)) > 1
        return False if raises or _kind(name) is not None else None

    def hides(self, node: Node) -> bool:
        """`try: assert_equal(1, 2)`, `except AssertionError: pass`, `else: fail()`."""
        kinds = {child.type for child in node.named_children} if node.type == "try_statement" else set[str]()
        return {"except_clause", "else_clause"} <= kinds

    def _called(self, node: Node) -> Node | None:
        """The call that is a whole statement."""
        if node.type != "expression_statement" or node.named_child_count != 1:
            return None
        value = node.named_children[0]
        if value.type == "await":
            value = value.named_children[0]
        return value if value.type == "call" else None

    def _with_calls(self, node: Node) -> list[Node]:
        """The calls in the head of a `with`."""
        found: list[Node] = []
        for clause in node.named_children:
            for item in clause.named_children if clause.type == "with_clause" else ():
                value = field(item, "value")
                if value is not None and value.type == "as_pattern":
                    value = value.named_children[0]
                if value is not None and value.type == "call":
                    found.append(value)
        return found

    def ending(self, node: Node) -> Cut | None:
        body = field(node, "body")
        statements = [child for child in body.named_children if child.type != "comment"] if body else []
        if not statements:
            return None
        last, indent = statements[-1], self.source.indent(statements[0].start_byte)
        if last.type == "return_statement":
            return self._before(last)
        if indent is None:
            return (last.end_byte, last.end_byte, f"; {_FAIL}")
        return (last.end_byte, last.end_byte, f"\n{indent}{_FAIL}")

    def _before(self, node: Node) -> Cut:
        """A failure before a statement, or in its place if other text is before it on its line."""
        indent = self.source.indent(node.start_byte)
        if indent is None:
            return (node.start_byte, node.end_byte, _FAIL)
        return (node.start_byte, node.start_byte, f"{_FAIL}\n{indent}")

    def change(self, node: Node) -> Change | None:
        if node.has_error:
            return None
        if node.type == "assert_statement":
            tests = [child for child in node.named_children if child.type != "comment"]
            test = tests[0] if tests else None
            text = self._false(test) if test else None
            mutant = cut(test, text) if test and text else None
        else:
            call = self._called(node)
            calls = [call] if call else self._with_calls(node)
            mutant = next((made for one in calls if (made := self._of_call(one))), None)
        return Change(mutant, self._before(node), self._near(node, mutant)) if mutant else None

    def _near(self, node: Node, mutant: Cut) -> Cut | None:
        """The next integer in place of a distant one, where no tolerance is meant, and an object with other attributes."""
        text, many = _DISTANT.subn(r"\1 + 1", mutant[2])  # also in `_ANY`
        text = text.replace(" else object())(", f" else {_LIKE})(")
        return (*mutant[:2], text) if many and not _TOLERANT.search(self.text(node)) else None

    # Conditions

    def _false(self, node: Node, depth: int = 0) -> str | None:
        """A condition that does not hold if this one holds; None for a constant."""
        inner = [child for child in node.named_children if child.type != "comment"]
        if node.type in _CONSTANTS:
            return None
        if node.type == "parenthesized_expression" and inner and depth < _DEPTH:
            text = self._false(inner[0], depth + 1)
            return text and f"({text})"
        if node.type == "tuple" and inner and depth < _DEPTH:
            # It holds always, so only a change inside it shows that it asserts nothing.
            text = self._false(inner[0], depth + 1)
            return text and self.replaced(node, inner[0], text)
        if node.type == "not_operator":
            return f"({self.text(node.child_by_field_name('argument'))})"
        if node.type == "boolean_operator" and len(inner) == 2 and depth < _DEPTH:
            return self._of_two(node, inner, depth)
        if node.type == "comparison_operator":
            return self._compared(node)
        return f"not ({self.text(node)})"

    def _of_two(self, node: Node, parts: Sequence[Node], depth: int) -> str | None:
        left, right = (self._false(part, depth + 1) for part in parts)
        operator = self.source.between(parts[0].end_byte, parts[1].start_byte)
        if self.text(field(node, "operator")) == "and":
            return (f"{self.text(parts[0])}{operator}({right})" if right else None) or (
                f"({left}){operator}{self.text(parts[1])}" if left else None
            )
        texts = [
            f"({new})" if new else self.text(part) for new, part in zip((left, right), parts, strict=True)
        ]
        return operator.join(texts) if left or right else None

    def _compared(self, node: Node) -> str | None:
        values = [child for child in node.named_children if child.type != "comment"]
        if len(values) < 2:
            return None
        tokens = (
            child for child in node.children if values[0].end_byte <= child.start_byte < values[1].start_byte
        )
        operator = " ".join(self.text(token) for token in tokens if token.type != "comment")
        if any(self.text(value).partition("(")[0].startswith("snapshot") for value in values):
            return None
        if operator == "==" and len(values) == 2:
            at, text = self._unequal(values)
            return self.replaced(node, at, text)
        if len(values) == 2 and (bound := self._unmet(operator, values)):
            return self.replaced(node, *bound)
        flipped = _FLIPPED.get(operator)
        return (
            flipped
            and f"{self.source.between(node.start_byte, values[0].end_byte)} {flipped} {self.source.between(values[1].start_byte, node.end_byte)}"
        )

    def _unmet(self, order: str, values: Sequence[Node]) -> tuple[Node, str] | None:
        """A bound of an ordered comparison that is a number, and one in its place that no number meets."""
        for value, infinity in zip(reversed(values[:2]), _BOUNDS.get(order, ()), strict=False):
            if value.type in ("integer", "float"):
                return value, f'float("{infinity}")'
        return None

    # Values

    def _unequal(self, values: Sequence[Node], tolerance: str = "") -> tuple[Node, str]:
        """One of two equal values, and a value in its place that is not equal."""
        for value in reversed(values[:2]):
            if text := self._other(value, tolerance):
                return value, text
        value = values[1]
        call = self.text(field(value, "function")) if value.type == "call" else ""
        if call.rpartition(".")[2] == "approx":
            given = _positional(value)
            if given and (text := self._other(given[0], self._tolerance(value))):
                return value, self.replaced(value, given[0], text)
        return value, _ANY.format(self.text(value))

    def _tolerance(self, call: Node) -> str:
        texts = [self.text(value) for name in _TOLERANCES if (value := self._keyword(call, name))]
        return "".join(f" + 10 * abs({text})" for text in texts)

    def _other(self, node: Node, tolerance: str = "", depth: int = 0) -> str | None:
        """Another constant of the same type; None if it is no constant."""
        text = self.text(node)
        if node.type in ("integer", "float"):
            return f"({_NUMBER.format(text)}{tolerance})"
        if node.type in ("string", "concatenated_string"):
            prefix = text[: min(at for at in (text.find('"'), text.find("'"), len(text)) if at >= 0)].lower()
            return f'({text} + {"b" if "b" in prefix else ""}"~17")'
        if node.type in ("true", "false", "none", "ellipsis"):
            return {"true": "False", "false": "True"}.get(node.type, '"~17"')
        if depth >= _DEPTH:
            return None
        if (
            node.type == "unary_operator"
            and text.startswith("-")
            and node.named_children[-1].type in ("integer", "float")
        ):
            return f"({_NUMBER.format(text)}{tolerance})"
        if node.type == "parenthesized_expression" and node.named_child_count == 1:
            return self._other(node.named_children[0], tolerance, depth + 1)
        return self._container(node, tolerance, depth) if node.type in _CONTAINERS else None

    def _container(self, node: Node, tolerance: str, depth: int) -> str:
        # `{"a": 1, **more}`: the value of a key can come from elsewhere.
        fixed = (
            ()
            if any(item.type == "dictionary_splat" for item in node.named_children)
            else node.named_children
        )
        for item in fixed:
            value = field(item, "value") if item.type == "pair" else item
            if value is not None and (text := self._other(value, tolerance, depth + 1)):
                return self.replaced(node, value, text)
        item, opening = _CONTAINERS[node.type]
        text = self.text(node)
        return f"{opening}{item}, {text[1:].lstrip()}"

    # Calls

    def _of_call(self, call: Node) -> Cut | None:
        name = self.call(call) or ""
        if name in _RAISES + _WARNS:
            return self._raised(call, "Exception" if name in _RAISES else "Warning")
        kind, given = _kind(name), _positional(call)
        list_node = field(call, "arguments")
        function = field(call, "function")
        if kind is None or list_node is None or function is None or name in self.defined:
            return None
        if any("splat" in one.type for one in given):
            return None
        if bound := self._unmet(kind, given):
            return cut(*bound)
        if kind in _RENAMED:
            at = function.end_byte - len(name.encode())
            return (at, function.end_byte, _RENAMED[kind])
        if kind in _CALLED_WITH:
            at = list_node.start_byte + 1
            return (at, at, "object(), " if list_node.named_child_count else "object()")
        return self._of_arguments(call, kind, given)

    def _of_arguments(self, call: Node, kind: str, given: Sequence[Node]) -> Cut | None:
        if kind in _FIRST and given:
            condition = self._false(given[0]) if kind in ("True", "") else None
            return cut(given[0], condition or _FIRST[kind].format(self.text(given[0])))
        if len(given) < 2:
            return None
        first, second = given[:2]
        if kind in _SECOND:
            return cut(second, _SECOND[kind])
        if kind in _BOTH:
            return (first.start_byte, second.end_byte, _BOTH[kind].format(self.text(first)))
        if kind in _SWAPPED:
            return (first.start_byte, second.end_byte, f"{self.text(second)}, {self.text(first)}")
        return cut(*self._unequal(given, self._tolerance(call)))

    def _raised(self, call: Node, base: str) -> Cut | None:
        """Expect another exception."""
        given, list_node = _positional(call), field(call, "arguments")
        expected = given[0] if given else self._keyword(call, "expected_exception")
        other = _OTHER.format(base=base)
        if expected is not None:
            # An interrupt ends the whole session.
            return None if "KeyboardInterrupt" in self.text(expected) else cut(expected, other)
        if list_node is None:
            return None
        at = list_node.start_byte + 1
        return (at, at, f"{other}, " if list_node.named_child_count else other)

    def _keyword(self, call: Node, name: str) -> Node | None:
        given = field(call, "arguments")
        for one in given.named_children if given else ():
            if one.type == "keyword_argument" and self.text(field(one, "name")) == name:
                return field(one, "value")
        return None


def same_module(one: str, other: str) -> bool:
    """Whether two dotted names can be the same module, seen from different folders."""
    return one == other or one.endswith("." + other) or other.endswith("." + one)


def _kind(name: str) -> str | None:
    """`assertNotIn`, `assert_not_in` → `NotIn`; None if it is unknown."""
    if name.startswith("assert_"):
        kind = "".join(part[:1].upper() + part[1:] for part in name[7:].split("_"))
    elif name.startswith("assert"):
        kind = name[6:]
    else:
        return None
    known = (_EQUAL, _SWAPPED, _RENAMED, _CALLED_WITH, _SECOND, _FIRST, _BOTH)
    return kind if any(kind in one for one in known) else None


def _positional(call: Node) -> list[Node]:
    return [one for one in arguments(call) if one.type not in ("keyword_argument", "dictionary_splat")]
