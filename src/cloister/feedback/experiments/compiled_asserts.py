"""Assertions of tests in Go, Rust, C and C++, and what all compiled languages share: the changed file must still compile."""

import re
from collections.abc import Callable, Iterator, Sequence

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

_NUMBER = re.compile(r"(0[xX][0-9a-fA-F_]+|(?:0|[1-9][\d_']*))([a-zA-Z]\w{0,7})?")
_FLOAT = re.compile(r"(\d[\d_]*\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(_?[a-zA-Z]\w{0,3})?")
_CHARACTER = re.compile(r"([a-zA-Z]?)'(.{1,12})'")
_INNER = 200
_RUST_TYPE = re.compile(r"[A-Z]\w{0,100}")
"""A constructor of a value: `Degrees(1.5)`."""
_NEGATED = {"!=": "==", "==": "!=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def other_literal(text: str) -> str | None:
    """Another literal of the same type; None if it is of an unknown kind."""
    number = _NUMBER.fullmatch(text)
    if number and not (number[2] and text.lower().startswith("0x")):
        value = int(re.sub("[_']", "", number[1]), 0)
        # Both fit into the smallest types.
        return f"{value + 17 if value <= 100 else value - 17}{number[2] or ''}"
    if decimal := _FLOAT.fullmatch(text):
        return f"{float(decimal[1].replace('_', '')) * 11 + 17!r}{decimal[2] or ''}"
    if len(text) > 1 and text[-1] in '"`' and not text.startswith(('"""', "r", "R")):
        return f"{text[:-1]}~17{text[-1]}"
    if character := _CHARACTER.fullmatch(text):
        return f"{character[1]}'{'b' if character[2] == 'a' else 'a'}'"
    return {"true": "false", "false": "true"}.get(text)


class Compiled(Dialect):
    """What the dialects of compiled languages share."""

    makers: frozenset[str] = frozenset()
    """Kinds of nodes that hold the parts of a value, such as `[]int{1, 2}`."""

    def other(self, node: Node) -> tuple[Node, str] | None:
        """A literal in a constant value, and another one for its place."""
        pending = [node]
        for _ in range(_INNER):
            if not pending:
                break
            one = pending.pop()
            if text := self.literal(one):
                return one, text
            negative = one.type == "unary_expression" and self.text(one).startswith("-")
            if one.type in self.makers or negative:
                pending.extend(reversed(self.parts(one)))
        return None

    def literal(self, node: Node) -> str | None:
        """Another literal in place of a short one."""
        short = node.end_byte - node.start_byte < 4_000
        named = "literal" in node.type or node.type in ("true", "false")
        return other_literal(self.text(node)) if short and named else None

    def parts(self, node: Node) -> list[Node]:
        """The nodes in which the literals of a constant value are."""
        return node.named_children

    def unequal(self, values: Sequence[Node]) -> Cut | None:
        """A change of one of two equal values, if one of them is constant."""
        found = next((made for value in reversed(values) if (made := self.other(value))), None)
        return cut(*found) if found else None

    def untrue(self, condition: Node) -> Cut:
        """A change of a condition that holds, so that it does not hold."""
        operator = self.text(field(condition, "operator"))
        left, right = field(condition, "left"), field(condition, "right")
        if condition.type == "binary_expression" and operator in _NEGATED and left and right:
            if operator == "==" and (made := self.unequal([left, right])):
                return made
            return (left.end_byte, right.start_byte, f" {_NEGATED[operator]} ")
        return cut(condition, f"!({self.text(condition)})")

    def true(self, condition: Node) -> Cut:
        """A change of a condition that does not hold, so that it holds."""
        operator = self.text(field(condition, "operator"))
        left, right = field(condition, "left"), field(condition, "right")
        if condition.type == "binary_expression" and operator in _NEGATED and left and right:
            if operator == "!=" and (made := self.unequal([left, right])):
                return made
            return (left.end_byte, right.start_byte, f" {_NEGATED[operator]} ")
        if condition.type == "unary_expression" and operator == "!":
            operand = field(condition, "operand") or field(condition, "argument")
            if operand is not None:
                return cut(condition, f"({self.text(operand)})")
        return cut(condition, f"!({self.text(condition)})")


# Go

_FAILS = re.compile(r"\w{1,20}\.(?:Error|Errorf|Fatal|Fatalf|Fail|FailNow)\(|panic\(|log\.Fatal")
_GO_RENAMED = {
    **{
        "Equal": "NotEqual",
        "NotEqual": "Equal",
        "EqualValues": "NotEqualValues",
        "NotEqualValues": "EqualValues",
    },
    **{
        "Nil": "NotNil",
        "NotNil": "Nil",
        "True": "False",
        "False": "True",
        "NoError": "Error",
        "Error": "NoError",
    },
    **{"Contains": "NotContains", "NotContains": "Contains", "Empty": "NotEmpty", "NotEmpty": "Empty"},
    **{"Zero": "NotZero", "NotZero": "Zero", "Greater": "LessOrEqual", "LessOrEqual": "Greater"},
    **{"GreaterOrEqual": "Less", "Less": "GreaterOrEqual", "Regexp": "NotRegexp", "NotRegexp": "Regexp"},
    **{"Panics": "NotPanics", "NotPanics": "Panics", "ErrorIs": "NotErrorIs", "NotErrorIs": "ErrorIs"},
    **{"Same": "NotSame", "NotSame": "Same", "Subset": "NotSubset", "NotSubset": "Subset"},
    **{"FileExists": "NoFileExists", "DirExists": "NoDirExists", "To": "NotTo", "NotTo": "To", "ToNot": "To"},
    **{"Should": "ShouldNot", "ShouldNot": "Should"},
}
_GO_VALUES = (
    *("Equal", "EqualValues", "Exactly", "Len", "EqualError", "ErrorContains", "JSONEq"),
    *("ElementsMatch",),
)
_GO_RECEIVER = re.compile(r"assert|require|must|req|a|r|\w{1,20}\.(?:Require|Assert)\(\)")
_SUITE = ("Equal", "True", "False", "NoError", "Nil", "NotNil", "Len", "Contains")
_TESTING = re.compile(r"\b(\w+)\s+(?:\*testing\.[TBF]|testing\.TB)\b")
_CLIMB = 40


class GoTests(Compiled):
    """Tests of `go test`, with testify or gomega or without."""

    branches = frozenset(("if_statement", "expression_switch_statement", "select_statement"))
    makers = frozenset(("composite_literal", "literal_value", "literal_element", "keyed_element"))

    @classmethod
    def grammar_of(cls, path: str) -> str:
        return "tree_sitter_go"

    def name(self, node: Node) -> str | None:
        functions = ("function_declaration", "method_declaration")
        return self.text(field(node, "name")) if node.type in functions else None

    def is_group(self, node: Node) -> bool:
        return False

    def parts(self, node: Node) -> list[Node]:
        body = field(node, "body") if node.type == "composite_literal" else None
        return [body] if body else node.named_children

    def call(self, node: Node) -> str | None:
        if node.type != "call_expression":
            return None
        function = field(node, "function")
        if function is not None and function.type == "selector_expression":
            function = field(function, "field")
        return self.text(function) if function is not None and function.child_count == 0 else None

    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        package, colons, name = test.rpartition("::")
        folder = self.source.path.rpartition("/")[0].rpartition("/")[2]
        if colons and folder and package.rpartition("/")[2].removesuffix("_test") != folder:
            return []
        first, _, rest = name.partition("/")
        methods = [block for block in blocks if block.node.type == "method_declaration"]
        inner = [block for block in methods if block.names[-1] == rest.partition("/")[0]]
        return inner[:1] or [
            block for block in blocks if block.names == (first,) and block.node.type == "function_declaration"
        ]

    def assertion(self, node: Node) -> bool | None:
        if node.type == "if_statement":
            return False if any(map(self._fails, _statements(field(node, "consequence")))) else None
        return False if self._asserted(node) else None

    def _fails(self, statement: Node) -> bool:
        start = self.source.between(statement.start_byte, min(statement.end_byte, statement.start_byte + 80))
        return statement.type == "expression_statement" and _FAILS.match(start) is not None

    def _asserted(self, node: Node) -> str | None:
        function = field(node, "function") if node.type == "call_expression" else None
        if function is None or function.type != "selector_expression":
            return None
        receiver, name = self.text(field(function, "operand")), self.text(field(function, "field"))
        plain = name.removesuffix("f") if name.removesuffix("f") in _GO_RENAMED else name
        if name in ("To", "NotTo", "ToNot", "Should", "ShouldNot"):
            return name if re.match(r"(?:\w{1,20}\.)?(?:Expect|Ω)\(", receiver) else None
        if plain not in _GO_RENAMED and name not in _GO_VALUES and name != "InDelta":
            return None
        if _GO_RECEIVER.fullmatch(receiver):
            return name
        return name if re.fullmatch(r"s|ts|suite", receiver) and plain in _SUITE else None

    def change(self, node: Node) -> Change | None:
        if node.type == "if_statement":
            condition = field(node, "condition")
            if condition is None or condition.has_error or self.text(condition) in ("true", "false"):
                return None
            return Change(self.true(condition), cut(condition, f"true || ({self.text(condition)})"))
        name, function, statement = self._asserted(node), field(node, "function"), self._statement(node)
        if name is None or function is None or statement is None or node.has_error:
            return None
        mutant = self._of_call(node, name, function)
        failure = f"{self._failure(node)}; "
        return Change(mutant, (statement.start_byte, statement.start_byte, failure)) if mutant else None

    def _of_call(self, call: Node, name: str, function: Node) -> Cut | None:
        given = [one for one in arguments(call) if self.text(one) not in ("t", "b", "tb")]
        if name in _GO_VALUES and (made := self.unequal(given[:2])):
            return made
        if name == "InDelta" and len(given) > 1:
            return cut(given[1], f"({self.text(given[1])}) + 1e9")
        plain = name if name in _GO_RENAMED else name.removesuffix("f")
        if plain not in _GO_RENAMED or b"gotest.tools" in self.source.data[:8_000]:
            return None
        at = function.end_byte - len(name.encode())
        return (at, function.end_byte, _GO_RENAMED[plain] + name[len(plain) :])

    def _statement(self, node: Node) -> Node | None:
        """The statement in a block that holds a node."""
        current: Node | None = node
        for _ in range(_CLIMB):
            above = current.parent if current else None
            if above is not None and above.type in (
                "block",
                "statement_list",
                "expression_case",
                "default_case",
            ):
                return current
            current = above
        return None

    def _failure(self, node: Node | None) -> str:
        for _ in range(_CLIMB):
            if node is None:
                break
            if (
                (given := field(node, "parameters"))
                and (found := _TESTING.search(self.text(given)))
                and found[1] != "_"
            ):
                return f'{found[1]}.Fatal("{MARK}")'
            node = node.parent
        return f'panic("{MARK}")'

    def ending(self, node: Node) -> Cut | None:
        body = field(node, "body")
        if body is None or field(node, "result") is not None:
            return None
        statements = _statements(body)
        if statements and statements[-1].type == "return_statement":
            return (statements[-1].start_byte, statements[-1].start_byte, f"{self._failure(node)}; ")
        return (body.end_byte - 1, body.end_byte - 1, f"\n{self._failure(node)}\n")


def _statements(block: Node | None) -> list[Node]:
    inner = block.named_children if block else []
    return [
        one for part in inner for one in (part.named_children if part.type == "statement_list" else [part])
    ]


# Rust

_RUST_RENAMED = {
    **{"assert_eq": "assert_ne", "assert_ne": "assert_eq"},
    **{"debug_assert_eq": "debug_assert_ne", "debug_assert_ne": "debug_assert_eq"},
    **{"prop_assert_eq": "prop_assert_ne", "prop_assert_ne": "prop_assert_eq"},
    **{f"assert_{kind}_eq": f"assert_{kind}_ne" for kind in ("relative", "abs_diff", "ulps")},
}
_RUST_TRUE = ("assert", "debug_assert", "prop_assert")
_MAKERS = (
    *("Some", "Ok", "Err", "vec", "String", "Vec", "Box", "from", "new", "to_string", "to_owned"),
    *("into", "as_str"),
)
_NEVER = "std::env::args().count() == usize::MAX"
"""It never holds, and the compiler does not know."""
_FILE_ROOTS = ("lib", "main", "mod")


class RustTests(Compiled):
    """Tests of `cargo test`."""

    branches = frozenset(("if_expression", "match_expression", "closure_expression", "function_item"))

    @classmethod
    def grammar_of(cls, path: str) -> str:
        return "tree_sitter_rust"

    def name(self, node: Node) -> str | None:
        return self.text(field(node, "name")) if node.type in ("function_item", "mod_item") else None

    def is_group(self, node: Node) -> bool:
        return node.type == "mod_item"

    def call(self, node: Node) -> str | None:
        if node.type == "call_expression":
            return re.split(r"::|\.", self.text(field(node, "function"))[-200:])[-1]
        if node.type == "identifier" and self.source.data[node.end_byte : node.end_byte + 1] == b"(":
            return self.text(node)  # inside of a macro
        return None

    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        names = tuple(test.split("::"))
        if re.fullmatch(r"case_\d\w*", names[-1]):
            names = names[:-1]
        folders, _, file = self.source.path.removesuffix(".rs").rpartition("/")
        inside = re.split(r"(?:^|/)src(?:/bin)?(?:/|$)", folders)
        own = [] if file in _FILE_ROOTS else [file]
        above = [part for part in inside[-1].split("/") if part] if len(inside) > 1 else []
        around = (*above, *own) if len(inside) > 1 else ()
        return [
            block
            for block in blocks
            if block.node.type == "function_item"
            and (names == (*around, *block.names) or (len(inside) < 2 and names == (file, *block.names)))
        ]

    def assertion(self, node: Node) -> bool | None:
        if node.type == "function_item":
            return False if self._panics(node) else None
        return (
            False
            if node.type == "macro_invocation" and self._macro(node) in (*_RUST_RENAMED, *_RUST_TRUE)
            else None
        )

    def _macro(self, node: Node) -> str:
        return self.text(field(node, "macro")).rpartition(":")[2]

    def _panics(self, function: Node) -> str | None:
        """The attributes of a function that must panic."""
        before = self.source.between(max(0, function.start_byte - 400), function.start_byte)
        lines: list[str] = []
        for line in reversed(before.split("\n")):
            if line.strip() and not line.strip().startswith(("#[", "//")):
                break
            lines.append(line)
        attributes = "\n".join(reversed(lines))
        return attributes[attributes.find("#[") :] if "should_panic" in attributes else None

    def change(self, node: Node) -> Change | None:
        if node.type == "function_item":
            return self._of_panic(node)
        tree = next((child for child in node.named_children if child.type == "token_tree"), None)
        macro = field(node, "macro")
        if node.has_error or tree is None or macro is None:
            return None
        name = self._macro(node)
        pieces = list(_pieces(tree.children[1:-1], self.text))
        if not pieces or not pieces[0]:
            return None
        mutant = self._of_true(pieces[0]) if name in _RUST_TRUE else self._of_two(name, macro, pieces)
        failure = f'{{ assert!({_NEVER}, "{MARK}"); {self.text(node)} }}'
        return Change(mutant, cut(node, failure)) if mutant else None

    def _of_two(self, name: str, macro: Node, pieces: Sequence[Sequence[Node]]) -> Cut | None:
        if name.endswith("assert_eq"):
            for piece in reversed(pieces[:2]):
                if made := self._literal(piece):
                    return made
        at = macro.end_byte - len(name.encode())
        return (at, macro.end_byte, _RUST_RENAMED[name])

    def _of_true(self, piece: Sequence[Node]) -> Cut | None:
        texts = [self.text(one) for one in piece]
        if texts in (["true"], ["false"]):
            return None
        if texts.count("==") == 1 and not {"&&", "||", "!"} & set(texts):
            at = texts.index("==")
            if made := self._literal(piece[at + 1 :]) or self._literal(piece[:at]):
                return made
        start, end = piece[0].start_byte, piece[-1].end_byte
        return (start, end, f"!({self.source.between(start, end)})")

    def _literal(self, piece: Sequence[Node]) -> Cut | None:
        """Another literal in a constant, such as `Some(-5)`, `vec![1, 2]` or `"a".to_string()`."""
        pending: list[Node] = list(piece)
        found: tuple[Node, str] | None = None
        for _ in range(_INNER):
            if not pending:
                return cut(*found) if found else None
            one = pending.pop(0)
            if one.type == "token_tree":
                pending[:0] = one.children
            elif other := self.literal(one):
                found = found or (one, other)
            elif self.text(one) not in (*_MAKERS, *"()[]{}&-!.,", "::") and not _RUST_TYPE.fullmatch(
                self.text(one)
            ):
                return None
        return None

    def _of_panic(self, function: Node) -> Change | None:
        body, attributes = field(function, "body"), self._panics(function)
        if body is None or attributes is None:
            return None
        early = (body.start_byte + 1, body.start_byte + 1, f" if !({_NEVER}) {{ return; }} ")
        expected = re.search(r'expected\s*=\s*"(?:[^"\\]|\\.)*"', attributes)
        if expected is None:
            return Change(early, early)
        after = len(attributes.encode()) - len(attributes[: expected.end() - 1].encode())
        at = function.start_byte - after
        return Change((at, at, "~17"), early)

    def ending(self, node: Node) -> Cut | None:
        body = field(node, "body")
        if body is None:
            return None
        if panics := self._of_panic(node):
            return panics.failure
        failure = f'assert!({_NEVER}, "{MARK}");'
        last = body.named_children[-1] if body.named_children else None
        ends = last is not None and (last.type.endswith(("_statement", "_declaration", "_item", "comment")))
        returns = last is not None and self.text(last).startswith("return")
        if last is None or (ends and not returns):
            return (body.end_byte - 1, body.end_byte - 1, f"\n{failure}\n")
        return (last.start_byte, last.start_byte, f"{failure} ")


def _pieces(tokens: Sequence[Node], text: Callable[[Node], str]) -> Iterator[list[Node]]:
    """The arguments of a macro: tokens between commas that are not inside of `::<…>`."""
    piece: list[Node] = []
    angles, before = 0, ""
    for token in tokens:
        said = text(token) if token.end_byte - token.start_byte < 3 else ""
        if said == "<" and (angles or before == "::"):
            angles += 1
        elif angles and said in (">", ">>"):
            angles = max(0, angles - len(said))
        before = said
        if said == "," and not angles:
            yield piece
            piece = []
        elif token.type not in ("line_comment", "block_comment"):
            piece.append(token)
    if piece:
        yield piece


# C and C++

_C_TEST = re.compile(
    r"\b(?:[A-Z]{1,40}_){0,4}(?:U?TEST|SCENARIO|Test)(?:_[A-Z]{1,40}){0,4}\s{0,40}\(([^;{}]{0,300})\)\s{0,100}\Z"
)
_C_TRUE = {
    *("assert", "ASSERT", "EXPECT", "CHECK", "REQUIRE", "TEST_ASSERT", "TEST_CHECK", "BOOST_CHECK"),
    *("BOOST_REQUIRE",),
    *("BOOST_TEST", "cr_assert", "ck_assert", "g_assert", "mu_check", "mu_assert", "munit_assert"),
}
_C_ASSERT = re.compile(
    r"(?:EXPECT|ASSERT|CHECK|REQUIRE|TEST_ASSERT|BOOST_CHECK|BOOST_REQUIRE|cr_assert|ck_assert|g_assert|assert|munit_assert)"
    r"(?:_[A-Za-z\d]+){1,5}"
)
_C_RENAMED = (
    *(("_NOT_NULL", "_NULL"), ("_NULL", "_NOT_NULL"), ("_non_null", "_null"), ("_null", "_non_null")),
    *(("_not_equal", "_equal"), ("_equal", "_not_equal"), ("_STREQ", "_STRNE"), ("_STRNE", "_STREQ")),
    *(("_EQ", "_NE"), ("_NE", "_EQ"), ("_LT", "_GE"), ("_GE", "_LT"), ("_LE", "_GT"), ("_GT", "_LE")),
    *(("_eq", "_ne"), ("_ne", "_eq"), ("_lt", "_ge"), ("_ge", "_lt"), ("_le", "_gt"), ("_gt", "_le")),
)
_C_EXITS = re.compile(
    r"\breturn\s+(?:-?[1-9]\w*|EXIT_FAILURE|false)\s*;|\b_?exit\(\s*(?:-?[1-9]|EXIT_FAILURE)|\babort\(\)"
    r"|\bfail\w*\s*(?:\(|\+\+|\+=)|\+\+\s*fail|\berrors?\+\+|\bFAIL\("
)
_C_FAILURES = (
    *((rb"gtest/", "FAIL();"), (rb"utest\.h", "ASSERT_TRUE(0);"), (rb"unity", "TEST_FAIL();")),
    *((rb"catch|doctest", f'FAIL("{MARK}");'), (rb"cmocka", "assert_true(0);"), (rb"", "__builtin_trap();")),
)
_FAR = "({0}) + 17 + (({0}) < 0 ? -10 : 10) * ({0})"


class NativeTests(Compiled):
    """Tests in C and C++: gtest, utest, Unity, Catch2, doctest, cmocka, Check, and programs that end with a status."""

    branches = frozenset(("if_statement", "switch_statement", "lambda_expression", "preproc_if"))
    makers = frozenset(("initializer_list", "compound_literal_expression", "parenthesized_expression"))

    @classmethod
    def grammar_of(cls, path: str) -> str:
        return "tree_sitter_c" if path.endswith(".c") else "tree_sitter_cpp"

    def name(self, node: Node) -> str | None:
        if node.type == "function_definition":
            body = field(node, "body")
            end = body.start_byte if body else node.end_byte
            head = self.source.between(node.start_byte, min(end, node.start_byte + 600))
            return _title(found[1]) if (found := _C_TEST.search(head)) else self._declared(node)
        if node.type != "compound_statement":
            return None
        before = self.source.data[max(0, node.start_byte - 400) : node.start_byte].decode(errors="replace")
        found = _C_TEST.search(before) if before.rstrip().endswith(")") else None
        inside = found and node.parent is not None and node.parent.type == "function_definition"
        return _title(found[1]) if found and not inside else None

    def _declared(self, node: Node) -> str | None:
        current: Node | None = node
        for _ in range(8):
            if current is None or current.child_count == 0:
                break
            current = (
                field(current, "name")
                if current.type == "qualified_identifier"
                else field(current, "declarator")
            )
        return self.text(current)[:200] if current is not None else None

    def is_group(self, node: Node) -> bool:
        return False

    def call(self, node: Node) -> str | None:
        function = field(node, "function") if node.type == "call_expression" else None
        return re.split(r"::|\.|->", self.text(function)[-200:])[-1] if function else None

    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        owner, colons, rest = test.partition("::")
        here = bool(colons and re.search(r"\.(?:c|cc|cpp|cxx|h|hpp)$", owner))
        if here and not same_file(owner, self.source.path):
            return []
        name = rest if here else test
        short = next((part for part in name.split("/") if "." in part), name) if "/" in name else name
        found = [block for block in blocks if block.names[-1] in (name, short.partition("(")[0])]
        if found or here:
            return found
        # A program of CTest: its name tells its file.
        stem = _stem(self.source.path.rpartition("/")[2].rpartition(".")[0])
        if len(_stem(test)) < 2 or _stem(test) != stem:
            return []
        tests = [
            block for block in blocks if block.node.type == "compound_statement" or "." in block.names[-1]
        ]
        return [block for block in blocks if block.names == ("main",)] or tests

    def assertion(self, node: Node) -> bool | None:
        if node.type == "if_statement":
            body = field(node, "consequence")
            text = (
                self.source.between(body.start_byte, min(body.end_byte, body.start_byte + 400))
                if body
                else ""
            )
            return (
                False if _C_EXITS.search(text) and not re.search(r"\b(?:if|for|while)\s*\(", text) else None
            )
        return False if self._asserted(node) else None

    def _asserted(self, node: Node) -> str | None:
        function = field(node, "function") if node.type == "call_expression" else None
        name = self.text(function) if function is not None and function.type == "identifier" else ""
        return name if name in _C_TRUE or _C_ASSERT.fullmatch(name) else None

    def change(self, node: Node) -> Change | None:
        if node.type == "if_statement":
            clause = field(node, "condition")
            condition = (
                (field(clause, "value") or clause.named_children[0])
                if clause and clause.named_children
                else None
            )
            if condition is None or condition.has_error or self.literal(condition):
                return None
            return Change(self.true(condition), cut(condition, f"1 || ({self.text(condition)})"))
        name, given, statement = self._asserted(node), arguments(node), node
        for _ in range(_CLIMB):
            if statement.type == "expression_statement" or statement.parent is None:
                break
            statement = statement.parent
        if (
            name is None
            or not given
            or node.has_error
            or name in self.defined
            or statement.type != "expression_statement"
        ):
            return None
        mutant = self._of_call(node, name, given)
        failure = f"{{ {_c_failure(name)} {self.text(statement)} }}"
        return Change(mutant, cut(statement, failure)) if mutant else None

    def _of_call(self, call: Node, name: str, given: Sequence[Node]) -> Cut | None:
        upper, first = name.upper(), given[0]
        if name in _C_TRUE or upper.endswith("_TRUE"):
            return None if self.literal(first) else self.untrue(first)
        if upper.endswith("_FALSE"):
            return cut(first, f"!({self.text(first)})")
        if upper.endswith(("NO_THROW", "NOTHROW")):
            return cut(first, "throw 17")
        if "_THROW" in upper:
            return cut(first, "(void)0")
        if len(given) > 1 and upper.endswith(("_NEAR", "_DOUBLE_EQ", "_FLOAT_EQ", "_WITHIN")):
            return cut(given[1], f"({self.text(given[1])}) + 1e9")
        return self._of_two(call, name, given)

    def _of_two(self, call: Node, name: str, given: Sequence[Node]) -> Cut | None:
        upper = name.upper()
        equal = upper.endswith(("_EQ", "_STREQ")) or ("_EQUAL" in upper and "NOT" not in upper)
        if equal and len(given) > 1 and (made := self.unequal(given[:2])):
            return made
        if name.startswith("TEST_ASSERT_NOT_EQUAL") and len(given) > 1:
            return cut(given[1], self.text(given[0]))
        if name.startswith(("TEST_ASSERT_EQUAL", "BOOST_")) and equal:
            numeric = not re.search("STRING|MEMORY|ARRAY|PTR|BOOST", name)
            return cut(given[0], _FAR.format(self.text(given[0]))) if numeric else None
        function = field(call, "function")
        for old, new in _C_RENAMED:
            if name.endswith(old) and function is not None:
                return (function.end_byte - len(old), function.end_byte, new)
        return None

    def ending(self, node: Node) -> Cut | None:
        body = node if node.type == "compound_statement" else field(node, "body")
        if body is None:
            return None
        head = self.source.data[:8_000].lower()
        failure = next(text for mark, text in _C_FAILURES if re.search(mark, head))
        last = body.named_children[-1] if body.named_children else None
        if last is not None and last.type == "return_statement":
            return (last.start_byte, last.start_byte, f"{failure} ")
        return (body.end_byte - 1, body.end_byte - 1, f"\n{failure}\n")


def _title(given: str) -> str:
    """`"title", "[tag]"` → title; `Suite, Name` → Suite.Name."""
    said = re.match(r'\s*"((?:[^"\\]|\\.)*)"', given)
    return said[1] if said else ".".join(part.strip() for part in given.split(",")[:2])


def _stem(name: str) -> str:
    return re.sub(r"[-_. ]|tests?|unit", "", name.lower())


def _c_failure(name: str) -> str:
    """A call of the same framework that must fail."""
    if name.startswith(("EXPECT", "ASSERT")) and name not in _C_TRUE:
        return f"{name[:6]}_TRUE(0);"
    if name.startswith(("CHECK", "REQUIRE")):
        return f"{name.partition('_')[0]}(0 == 1);"
    start = next(
        (one for one in ("TEST_ASSERT", "BOOST_CHECK", "cr_assert", "ck_assert") if name.startswith(one)), ""
    )
    if start or name in _C_TRUE:
        return f"{start or name}(0 == 1);"
    return "assert_true(0);" if name.startswith("assert_") else "__builtin_trap();"
