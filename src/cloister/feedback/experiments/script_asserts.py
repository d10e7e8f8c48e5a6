"""Assertions of JavaScript and TypeScript tests: jest, vitest, chai, should, node's assert, tape, tap, ava, sinon."""

import re
from collections.abc import Sequence

from tree_sitter import Node

from cloister.feedback.experiments.mutants import (
    MARK,
    Block,
    Change,
    Cut,
    Dialect,
    Source,
    arguments,
    cut,
    field,
    same_file,
)

_TESTS = ("it", "test", "specify", "tape", "fit", "ftest")
_GROUPS = ("describe", "context", "suite", "fdescribe", "module")
_HOLE = "\0"
"""A part of a title that only the run knows."""
_PLACEHOLDER = re.compile(r"%[sdifjopc#$]|\$\{?#?[\w.]{1,60}\}?")
_FUNCTIONS = ("arrow_function", "function_expression", "function_declaration", "generator_function")
_NUMBER = "{0} + 17 + 10 * Math.abs({0})"
_ANY = (
    '({open} => typeof v === "number" && !Object.is(v + 17 + 10 * Math.abs(v), v) ? v + 17 + 10 * Math.abs(v)'
    ' : typeof v === "string" ? v + "~17" : typeof v === "boolean" ? !v : typeof v === "bigint" ? v + BigInt(17)'
    ' : Array.isArray(v) ? [...v, "~17"] : v && Object.getPrototypeOf(v) === Object.prototype'
    ' ? {{ ...v, "~17": 17 }} : Symbol("~17"))({0})'
)
"""Another value of the same type, for equalities that lie about values of one type only."""
_FLIPPED = {
    **{"!==": "===", "!=": "==", "===": "!==", "==": "!="},
    **{"<": ">=", ">=": "<", ">": "<=", "<=": ">"},
}
_CONSTANTS = ("number", "string", "template_string", "true", "false", "null")
_SNAPSHOT = re.compile(r"[sS]napshot|matchImage")
_MATCHERS = {
    *("toBe", "toEqual", "toStrictEqual", "toHaveLength", "toHaveBeenCalledTimes", "toBeCalledTimes"),
    *(
        "toHaveReturnedWith",
        "toHaveTextContent",
        "toHaveValue",
        "toMatchObject",
        "toContain",
        "toContainEqual",
    ),
    *("equal", "equals", "eq", "eql", "eqls", "strictEqual", "deepEqual", "lengthOf", "toBeCloseTo"),
}
"""Matchers that fail with another first argument."""
_BOUNDS = {
    **dict.fromkeys(("toBeLessThan", "toBeLessThanOrEqual", "<", "<="), "-Infinity"),
    **dict.fromkeys(("toBeGreaterThan", "toBeGreaterThanOrEqual", ">", ">="), "Infinity"),
}
"""A bound that no number meets. A number that was measured can be on either side of an ordinary one."""
_WITH = ("toHaveBeenCalledWith", "toBeCalledWith", "toHaveBeenLastCalledWith", "lastCalledWith")
_EQUAL = {
    *("equal", "equals", "strictEqual", "deepEqual", "deepStrictEqual", "deepLooseEqual"),
    *("looseEqual", "isEqual"),
    *("isEquivalent", "same", "is", "eq", "eql", "strictSame", "deepEquals", "strictEquals"),
    *("looseEquals", "propEqual"),
    *("lengthOf", "typeOf", "sameMembers", "sameDeepMembers", "looseDeepEqual", "deepEqualLoose"),
}
_UNEQUAL = {
    *("notEqual", "notStrictEqual", "notDeepEqual", "notDeepStrictEqual", "not", "notSame"),
    *("isNot", "notEquals"),
    *("notDeepLooseEqual", "notLooseEqual", "notEql", "isNotEqual", "notStrictSame"),
    *("notDeepEquals", "isInequal"),
}
_FIRST = {
    **dict.fromkeys(
        ("ok", "true", "truthy", "isTrue", "isOk", "assert", "false", "falsy", "isFalse"), "!({0})"
    ),
    **dict.fromkeys(("notOk", "notok", "isNotOk"), "!({0})"),
    **dict.fromkeys(
        ("isNull", "isUndefined", "isNaN", "notExists", "isNotDefined"), '({open} => "~17")({0})'
    ),
    **dict.fromkeys(("isNotNull", "exists"), "({open} => null)({0})"),
    **dict.fromkeys(("throws", "throw", "raises"), "() => undefined"),
    **dict.fromkeys(("rejects", "throwsAsync"), "async () => undefined"),
    **dict.fromkeys(("doesNotThrow", "notThrows"), '() => {{ throw new Error("~17"); }}'),
    **dict.fromkeys(("doesNotReject", "notThrowsAsync"), '() => Promise.reject(new Error("~17"))'),
    **dict.fromkeys(("ifError", "error", "ifErr"), 'new Error("~17")'),
    "isDefined": "({open} => undefined)({0})",
}
"""The first argument with which it must fail."""
_TRUE = ("ok", "true", "isTrue", "isOk", "assert", "truthy")
_SECOND = {
    **dict.fromkeys(("match", "regex", "like"), "/(?!)/"),
    **dict.fromkeys(("doesNotMatch", "notMatch", "notRegex"), "/(?:)/"),
    **{"instanceOf": "class {}", "notInstanceOf": "Object"},
}
_RENAMED = {
    **{"isAtLeast": "isBelow", "isAtMost": "isAbove", "isAbove": "isAtMost", "isBelow": "isAtLeast"},
    **{"include": "notInclude", "notInclude": "include", "deepInclude": "notDeepInclude"},
    **{
        "property": "notProperty",
        "notProperty": "property",
        "isEmpty": "isNotEmpty",
        "isNotEmpty": "isEmpty",
    },
    **{
        f"is{kind}": f"isNot{kind}" for kind in ("Array", "Object", "String", "Number", "Boolean", "Function")
    },
    **{
        f"isNot{kind}": f"is{kind}" for kind in ("Array", "Object", "String", "Number", "Boolean", "Function")
    },
    **{"called": "notCalled", "calledOnce": "notCalled", "calledTwice": "notCalled", "notCalled": "called"},
}
_BARE = {
    *("strictEqual", "deepStrictEqual", "deepEqual", "notStrictEqual", "notDeepStrictEqual", "notDeepEqual"),
    *("equal", "notEqual", "ok", "throws", "rejects", "doesNotThrow", "doesNotReject", "match"),
    *("doesNotMatch",),
    *("assert", "ifError", "assertEquals", "assertStrictEquals"),
}
"""Functions that are imported by name."""
_ALIAS = re.compile(r"\b((?:not)?(?:[sS]trict|[dD]eep)\w{0,20}Equal|rejects|throws)(?::| as) (\w{1,60})\b")
_RECEIVER = re.compile(r"(?:\w{1,40}\.){0,2}(?:[a-z]{1,2}|[aA]ssert|tap|test|strict|should)")
_DEPTH = 12


class ScriptTests(Dialect):
    """Tests in JavaScript or TypeScript."""

    branches = frozenset(
        (
            "if_statement",
            "ternary_expression",
            "switch_statement",
            "try_statement",
            *_FUNCTIONS,
            "method_definition",
        )
    )

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._typed = source.path.endswith(("ts", "tsx"))
        self._aliases = {alias: name for name, alias in _ALIAS.findall(source.data.decode(errors="replace"))}
        self._open = "((v: any): any" if self._typed else "((v)"
        self._throw = f'{"((): any" if self._typed else "(()"} => {{ throw new Error("{MARK}"); }})()'

    @classmethod
    def grammar_of(cls, path: str) -> str:
        if path.endswith("tsx"):
            return "tree_sitter_typescript:language_tsx"
        return (
            "tree_sitter_typescript:language_typescript" if path.endswith("ts") else "tree_sitter_javascript"
        )

    # Names

    def name(self, node: Node) -> str | None:
        if node.type in ("function_declaration", "method_definition", "generator_function_declaration"):
            return self.text(field(node, "name"))
        if (
            node.type == "variable_declarator"
            and (value := field(node, "value"))
            and value.type in _FUNCTIONS
        ):
            return self.text(field(node, "name"))
        if node.type != "call_expression" or self._kind(node) is None:
            return None
        given = arguments(node)
        if len(given) < 2 or not any(one.type in _FUNCTIONS for one in given):
            return None
        return self._title(given[0])

    def _kind(self, call: Node) -> str | None:
        """`it`, `test`, `describe`, … without `.only`, `.each(…)` and the like."""
        function = field(call, "function")
        for _ in range(4):
            if function is None or function.type == "identifier":
                break
            if (
                function.type == "member_expression"
                and self.text(field(function, "property")) in _TESTS + _GROUPS
            ):
                function = field(function, "property")  # `t.test`, `QUnit.module`
                break
            function = field(function, "object" if function.type == "member_expression" else "function")
        name = self.text(function)
        return name if name in _TESTS + _GROUPS else None

    def _title(self, node: Node, depth: int = 0) -> str:
        if node.type == "string":
            return _PLACEHOLDER.sub(_HOLE, re.sub(r"\\(.)", r"\1", self.text(node)[1:-1]))
        if node.type == "template_string":
            parts = [
                _HOLE if child.type == "template_substitution" else self.text(child)
                for child in node.named_children
            ]
            return _PLACEHOLDER.sub(_HOLE, "".join(parts))
        if node.type == "binary_expression" and depth < _DEPTH:
            return "".join(self._title(child, depth + 1) for child in node.named_children)
        return self.text(node)[:200] if node.type == "identifier" and depth == 0 else _HOLE

    def is_group(self, node: Node) -> bool:
        return (
            node.type == "call_expression" and self._kind(node) in _GROUPS
        ) or node.type == "class_declaration"

    def call(self, node: Node) -> str | None:
        if node.type != "call_expression":
            return None
        function = field(node, "function")
        if function is not None and function.type == "member_expression":
            function = field(function, "property")
        return self.text(function) if function is not None and function.child_count == 0 else None

    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        owner, colons, title = test.partition("::")
        here = bool(colons and re.search(r"\.[cm]?[jt]sx?$", owner))
        if here and not same_file(owner, self.source.path):
            return []
        wanted = _joined([title if here else test])
        tests = [
            one for one in blocks if one.node.type == "call_expression" and self._kind(one.node) in _TESTS
        ]
        for first in (0, -1):  # tape reports a test without those around it
            fitting = [(_fits(_joined(one.names[first:]), wanted), one) for one in tests]
            best = max((fit for fit, _ in fitting), default=-1)
            if best > 0:
                return [one for fit, one in fitting if fit == best]
            if best == 0 and here and first == 0:  # only the run knows its title
                return [one for fit, one in fitting if fit == best][:1]
        return []

    # Assertions

    def assertion(self, node: Node) -> bool | None:
        if node.type == "if_statement":
            return False if self._throws(node) else None
        if node.type == "member_expression":
            chain = self._chain(node)
            return (
                False
                if chain and len(chain[1]) > 1 and chain[1][0] in ("to", "be", "not", "is", "have")
                else None
            )
        if node.type != "call_expression":
            return None
        if self._chain(node):
            return False
        return False if self._asserted(node) else None

    def hides(self, node: Node) -> bool:
        """The argument of `expect(() => …)`, which may throw."""
        return node.type == "call_expression" and self.text(field(node, "function")) == "expect"

    def _throws(self, node: Node) -> bool:
        """`if (…) throw …` or `if (…) process.exit(1)`, without else."""
        body = field(node, "consequence")
        if body is None or field(node, "alternative") is not None:
            return False
        first = body.named_children[0] if body.type == "statement_block" and body.named_children else body
        return first.type == "throw_statement" or self.text(first).startswith("process.exit(1")

    def _chain(self, node: Node) -> tuple[Node, list[str], list[Node]] | None:
        """For `expect(a).not.toBe(b)`: the node after which `.not` can stand, the names after it, the parts."""
        names: list[str] = []
        parts: list[Node] = []
        current: Node | None = node
        for _ in range(40):
            if current is None:
                return None
            if current.type == "call_expression":
                function = field(current, "function")
                if (
                    function is not None
                    and self.text(function) in ("expect", "should", "expect.soft")
                    and names
                ):
                    return current, names[::-1], parts[::-1]
                current = function
            elif current.type == "member_expression":
                word = self.text(field(current, "property"))
                if word == "should" and names:
                    return current, names[::-1], parts[::-1]
                names.append(word)
                parts.append(current)
                current = field(current, "object")
            else:
                return None
        return None

    def _asserted(self, call: Node) -> str | None:
        """The name of the function, if it is one that asserts."""
        function = field(call, "function")
        if function is None:
            return None
        if function.type == "identifier":
            name = self.text(function)
            name = self._aliases.get(name, name)
            return name if name in _BARE else None
        if function.type != "member_expression" or not _RECEIVER.fullmatch(
            self.text(field(function, "object"))
        ):
            return None
        name = self.text(field(function, "property"))
        known = (_EQUAL, _UNEQUAL, _FIRST, _SECOND, _RENAMED, ("calledWith",))
        return name if any(name in one for one in known) else None

    def change(self, node: Node) -> Change | None:
        if node.has_error:
            return None
        if node.type == "if_statement":
            return self._of_if(node)
        failure = cut(node, f"void {self._failure(node)}")
        if chain := self._chain(node):
            mutant = self._of_chain(node, *chain)
        else:
            name = self._asserted(node)
            mutant = self._of_call(node, name) if name and name not in self.defined else None
        return Change(mutant, failure) if mutant else None

    def _failure(self, node: Node) -> str:
        """tape and its kind report a test that throws only as the end of the whole run."""
        function = field(node, "function")
        receiver = (
            self.text(field(function, "object")) if function and function.type == "member_expression" else ""
        )
        if re.fullmatch(r"[a-z]{1,2}", receiver) and b"tap" in self.source.data[:4_000]:
            return f'{receiver}.fail("{MARK}")'
        return self._throw

    def _of_if(self, node: Node) -> Change | None:
        condition = field(node, "condition")
        inner = condition.named_children[0] if condition and condition.named_children else None
        if inner is None:
            return None
        operator = self.text(field(inner, "operator"))
        sides = [side for name in ("left", "right") if (side := field(inner, name))]
        if inner.type == "binary_expression" and operator in ("!==", "!=") and len(sides) == 2:
            mutant = cut(*self._unequal(sides))
        else:
            mutant = cut(inner, f"!({self.text(inner)})")
        return Change(mutant, cut(inner, "(true as boolean)" if self._typed else "true"))

    def _of_chain(self, node: Node, base: Node, names: Sequence[str], parts: Sequence[Node]) -> Cut | None:
        if any(_SNAPSHOT.search(name) for name in names):
            return None
        for name, part in zip(names, parts, strict=True):
            if name == "not":
                before = field(part, "object")
                return None if before is None else (before.end_byte, part.end_byte, "")
        given = arguments(node) if node.type == "call_expression" else []
        if names[-1] in _MATCHERS and given and "eventually" not in names:
            return cut(*self._unequal([given[0]]))
        if names[-1] in _BOUNDS and given:
            return cut(given[0], _BOUNDS[names[-1]])
        if names[-1] in _WITH:
            at = field(node, "arguments")
            return (
                (at.start_byte + 1, at.start_byte + 1, f"{self._any('undefined')}{', ' if given else ''}")
                if at
                else None
            )
        for name, part in zip(names, parts, strict=True):
            if name in ("resolves", "rejects"):
                return (part.end_byte, part.end_byte, ".not")
        return (base.end_byte, base.end_byte, ".not")

    def _of_call(self, call: Node, name: str) -> Cut | None:
        given, function = arguments(call), field(call, "function")
        if not given or function is None or any(one.type == "spread_element" for one in given[:2]):
            return None
        if name in _FIRST:
            text = self._false(given[0]) if name in _TRUE else None
            if name in _TRUE and given[0].type in _CONSTANTS:
                return None
            return cut(given[0], text or self._filled(_FIRST[name], self.text(given[0])))
        if name in _RENAMED:
            return (function.end_byte - len(name.encode()), function.end_byte, _RENAMED[name])
        if len(given) < 2:
            return None
        if name in _SECOND:
            return cut(given[1], _SECOND[name])
        if name in _UNEQUAL:
            pair = f"...{self._open.replace('): any', '): [any, any]')} => [v, v])({self.text(given[0])})"
            return (given[0].start_byte, given[1].end_byte, pair)
        if name == "calledWith":
            return cut(given[1], self._any("undefined"))
        return cut(*self._unequal(given[:2]))

    # Conditions and values

    def _false(self, node: Node, depth: int = 0) -> str | None:
        """A condition that does not hold if this one holds; None for a constant."""
        if node.type in _CONSTANTS:
            return None
        if node.type == "parenthesized_expression" and node.named_child_count == 1 and depth < _DEPTH:
            text = self._false(node.named_children[0], depth + 1)
            return text and f"({text})"
        left, right, operator = field(node, "left"), field(node, "right"), self.text(field(node, "operator"))
        if node.type != "binary_expression" or left is None or right is None or depth >= _DEPTH:
            return f"!({self.text(node)})"
        if operator in ("===", "=="):
            at, text = self._unequal([left, right])
            return self.replaced(node, at, text)
        if operator in _BOUNDS and right.type == "number":
            return f"{self.text(left)} {operator} {_BOUNDS[operator]}"
        if operator in _FLIPPED:
            return f"{self.text(left)} {_FLIPPED[operator]} {self.text(right)}"
        if operator not in ("&&", "||"):
            return f"!({self.text(node)})"
        first, second = self._false(left, depth + 1), self._false(right, depth + 1)
        if operator == "&&" and second:
            return f"{self.text(left)} && ({second})"
        parts = (first or self.text(left), second or self.text(right))
        return f"({parts[0]}) {operator} ({parts[1]})" if first or second else None

    def _unequal(self, values: Sequence[Node]) -> tuple[Node, str]:
        """One of two equal values, and a value in its place that is not equal."""
        for value in reversed(values):
            if text := self._other(value):
                return value, f"({text} as any)" if self._typed else text
        return values[-1], self._any(self.text(values[-1]))

    def _any(self, text: str) -> str:
        return self._filled(_ANY, text)

    def _filled(self, form: str, text: str) -> str:
        return form.format(text, open=self._open.removeprefix("("))

    def _other(self, node: Node, depth: int = 0) -> str | None:
        """Another constant of the same type; None if it is no constant."""
        text = self.text(node)
        negative = (
            node.type == "unary_expression"
            and text.startswith("-")
            and node.named_children[0].type == "number"
        )
        if node.type == "number" or negative:
            return f"({text} + 17n)" if text.endswith("n") else f"({_NUMBER.format(text)})"
        if node.type in ("string", "template_string"):
            return f'({text} + "~17")'
        if node.type in ("true", "false", "null"):
            return {"true": "false", "false": "true"}.get(node.type, '"~17"')
        if node.type not in ("array", "object") or depth >= _DEPTH:
            return None
        items = (
            [] if any(one.type == "spread_element" for one in node.named_children) else node.named_children
        )
        for item in items:
            value = field(item, "value") if item.type == "pair" else item
            if value is not None and (other := self._other(value, depth + 1)):
                return self.replaced(node, value, other)
        # At the end: a spread before it must not replace it.
        inner = text[1:-1].rstrip().removesuffix(",")
        added = '"~17"' if node.type == "array" else '"~17": 17'
        return f"{text[0]}{inner}{', ' if inner.strip() else ''}\n{added}{text[-1]}"

    def ending(self, node: Node) -> Cut | None:
        given = arguments(node) if node.type == "call_expression" else []
        function = next((one for one in given if one.type in _FUNCTIONS), node)
        body = field(function, "body")
        if body is None:
            return None
        failure = f'throw new Error("{MARK}");'
        if body.type != "statement_block":
            return cut(body, f"{{ {self.text(body)}; {failure} }}")
        last = body.named_children[-1] if body.named_children else None
        text = self.text(last)
        if ended := re.match(r"([a-z]{1,2})\.end\(", text):
            failure = f'{ended[1]}.fail("{MARK}");'
        if last is not None and (ended or last.type == "return_statement"):
            return (last.start_byte, last.start_byte, f"{failure} ")
        return (body.end_byte - 1, body.end_byte - 1, f"\n;{failure}\n")


def _joined(titles: Sequence[str]) -> str:
    return " ".join(" ".join(titles).replace(" > ", " ").replace("::", " ").split())


def _fits(title: str, wanted: str) -> int:
    """-1 if a title with holes cannot be the wanted one, else the number of its characters that fit."""
    first, *rest = title.split(_HOLE)
    if not rest:
        return len(title) + 1 if title == wanted else -1
    if not wanted.startswith(first):
        return -1
    at, last = len(first), rest.pop()
    for part in rest:
        found = wanted.find(part, at)
        if found < 0:
            return -1
        at = found + len(part)
    return len(title.replace(_HOLE, "")) if wanted.endswith(last) and len(wanted) - len(last) >= at else -1
