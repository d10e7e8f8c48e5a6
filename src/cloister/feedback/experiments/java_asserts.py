"""Assertions of Java tests: JUnit 4 and 5, AssertJ, Truth and Hamcrest."""

import re
from collections.abc import Sequence

from tree_sitter import Node

from cloister.feedback.experiments.compiled_asserts import Compiled
from cloister.feedback.experiments.mutants import MARK, Block, Change, Cut, arguments, cut, field

_FAIL = f'if (true) throw new AssertionError("{MARK}");'
_EQUAL = ("assertEquals", "assertArrayEquals", "assertIterableEquals", "assertLinesMatch")
_SIZES = {
    **dict.fromkeys(
        (*_EQUAL, "assertSame", "assertNotSame", "assertNotEquals", "assertThat", "assertInstanceOf"), 2
    ),
    **dict.fromkeys(("assertTrue", "assertFalse", "assertNull", "assertNotNull", "assertDoesNotThrow"), 1),
    **dict.fromkeys(("assertThrows", "assertThrowsExactly"), 2),
}
"""The number of arguments, without a message."""
_FIRST = {
    "assertFalse": "!({0})",
    "assertNull": "new Object()",
    "assertNotNull": "(Object) null",
    "assertSame": "new Object()",
    "assertDoesNotThrow": '(org.junit.jupiter.api.function.Executable) () -> {{ throw new RuntimeException("~17"); }}',
}
"""The first argument with which it must fail."""
_SECOND = {"assertThrows": "() -> {}", "assertThrowsExactly": "() -> {}", "assertInstanceOf": "new Object()"}
_VALUES = (
    *("isEqualTo", "hasSize", "hasMessage", "containsExactly", "hasToString"),
    *("hasMessageContaining", "hasLength"),
)
_RENAMED = {
    **{"isEqualTo": "isNotEqualTo", "isNotEqualTo": "isEqualTo", "isTrue": "isFalse", "isFalse": "isTrue"},
    **{"isNull": "isNotNull", "isNotNull": "isNull", "isEmpty": "isNotEmpty", "isNotEmpty": "isEmpty"},
    **{"contains": "doesNotContain", "doesNotContain": "contains", "isSameAs": "isNotSameAs"},
    **{"isNotSameAs": "isSameAs", "isInstanceOf": "isNotInstanceOf", "isNotInstanceOf": "isInstanceOf"},
    **{"isGreaterThan": "isLessThanOrEqualTo", "isLessThanOrEqualTo": "isGreaterThan"},
    **{"isLessThan": "isGreaterThanOrEqualTo", "isGreaterThanOrEqualTo": "isLessThan"},
    **{"startsWith": "doesNotStartWith", "endsWith": "doesNotEndWith", "matches": "doesNotMatch"},
    **{"isPresent": "isNotPresent", "isNotPresent": "isPresent", "isIn": "isNotIn", "isNotIn": "isIn"},
}
_CONSTRUCTORS = ("of", "asList", "valueOf", "singletonList", "singleton", "is", "equalTo")
_EXPECTED = re.compile(r"\bexpected\s*=\s*([\w.]{1,200}\.class)\b")
_OTHER = "java.util.zip.DataFormatException.class"
_CLIMB = 40


class JavaTests(Compiled):
    """Tests of JUnit."""

    branches = frozenset(("if_statement", "switch_expression", "try_statement", "ternary_expression"))
    makers = frozenset(
        (
            *("method_invocation", "object_creation_expression", "array_creation_expression"),
            *("array_initializer", "parenthesized_expression"),
        )
    )

    @classmethod
    def grammar_of(cls, path: str) -> str:
        return "tree_sitter_java"

    def name(self, node: Node) -> str | None:
        kinds = ("method_declaration", "class_declaration", "record_declaration", "interface_declaration")
        return self.text(field(node, "name")) if node.type in kinds else None

    def is_group(self, node: Node) -> bool:
        return node.type != "method_declaration"

    def call(self, node: Node) -> str | None:
        return self.text(field(node, "name")) if node.type == "method_invocation" else None

    def parts(self, node: Node) -> list[Node]:
        if node.type == "method_invocation":
            return arguments(node) if self.call(node) in _CONSTRUCTORS else []
        if node.type == "object_creation_expression":
            return arguments(node)
        value = field(node, "value") if node.type == "array_creation_expression" else None
        return [value] if value else node.named_children

    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        owner, _, method = test.partition("::")
        names = owner.rpartition(".")[2].split("$")
        short = re.split(r"[({\[ ]", method, maxsplit=1)[0]
        package = re.search(
            rb"^[ \t]{0,40}package[ \t]{1,40}([\w.]{1,300})[ \t]{0,40};", self.source.data, re.MULTILINE
        )
        stated = owner.rpartition(".")[0]
        if stated and stated != (package[1].decode() if package else ""):
            return []
        methods = [block for block in blocks if block.node.type == "method_declaration"]
        found = [block for block in methods if block.names == (*names, short)]
        return found or self._inherited(names, short, blocks)

    def _inherited(self, names: Sequence[str], short: str, blocks: Sequence[Block]) -> list[Block]:
        """The method of a base class in the same file."""
        for owner in blocks:
            if owner.names == tuple(names) and (base := field(owner.node, "superclass")):
                above = re.sub(r"^extends\s+|<.*", "", self.text(base)).strip()
                return [block for block in blocks if block.names[-2:] == (above, short)]
        return []

    def assertion(self, node: Node) -> bool | None:
        if node.type == "method_declaration":
            return False if self._expected(node) else None
        if node.type == "assert_statement":
            return False
        if node.type != "method_invocation":
            return None
        if self.call(node) in _SIZES and self._static(node):
            return False if self.call(node) != "assertThat" or len(arguments(node)) > 1 else None
        return False if self._chained(node) else None

    def _static(self, node: Node) -> bool:
        return self.text(field(node, "object")).rpartition(".")[2] in (
            "",
            "Assert",
            "Assertions",
            "MatcherAssert",
        )

    def _chained(self, node: Node) -> bool:
        """`assertThat(x).isEqualTo(y)`"""
        current = field(node, "object")
        for _ in range(_CLIMB):
            if current is None or current.type != "method_invocation":
                return False
            if self.call(current) in ("assertThat", "assertThatThrownBy") and self._static(current):
                return True
            current = field(current, "object")
        return False

    def _expected(self, method: Node) -> re.Match[str] | None:
        """`@Test(expected = X.class)`"""
        first = method.named_children[0] if method.named_children else None
        return _EXPECTED.search(self.text(first)) if first is not None and first.type == "modifiers" else None

    def change(self, node: Node) -> Change | None:
        if node.type == "method_declaration":
            return self._of_expected(node)
        if node.has_error or self.call(node) in self.defined:
            return None
        if node.type == "assert_statement":
            mutant = self.untrue(node.named_children[0]) if node.named_children else None
        elif self.call(node) in _SIZES and self._static(node):
            mutant = self._of_call(node, self.call(node) or "", arguments(node))
        else:
            mutant = self._of_chain(node, self.call(node) or "")
        failure = self._failure(node)
        return Change(mutant, failure) if mutant and failure else None

    def _of_expected(self, method: Node) -> Change | None:
        body, found = field(method, "body"), self._expected(method)
        if body is None or found is None:
            return None
        at = method.start_byte + len(found.string[: found.start(1)].encode())
        early = (body.start_byte + 1, body.start_byte + 1, " if (true) return; ")
        return Change((at, at + len(found[1].encode()), _OTHER), early)

    def _of_call(self, call: Node, name: str, given: Sequence[Node]) -> Cut | None:
        size = _SIZES[name]
        inexact = name == "assertEquals" and len(given) > 2 and "floating" in given[-1].type
        if len(given) > size and b"jupiter" not in self.source.data[:16_000] and not inexact:
            given = given[len(given) - size :]  # the message comes first in JUnit 4
        if len(given) < size:
            return None
        first = given[0]
        if name == "assertTrue":
            return None if self.literal(first) else self.untrue(first)
        if name in _FIRST:
            return cut(first, _FIRST[name].format(self.text(first)))
        if name in _SECOND:
            return cut(given[1], _SECOND[name])
        if inexact:
            return cut(given[-3], f"({self.text(given[-3])}) + 1e9")
        if name in ("assertNotEquals", "assertNotSame"):
            simple = first.type == "identifier" or self.literal(first) is not None
            return cut(given[1], self.text(first)) if simple else None
        if name == "assertThat":
            made = self.unequal(given[1:2])
            return made or cut(given[1], f"org.hamcrest.CoreMatchers.not({self.text(given[1])})")
        return self.unequal(given[:2]) or (cut(first, "new Object()") if name == "assertEquals" else None)

    def _of_chain(self, node: Node, name: str) -> Cut | None:
        given, at = arguments(node), field(node, "name")
        if name in _VALUES and given and (made := self.unequal(given[:1])):
            return made
        return cut(at, _RENAMED[name]) if at is not None and name in _RENAMED else None

    def _failure(self, node: Node) -> Cut | None:
        """Before the statement, or in place of the body of a lambda."""
        current = node
        for _ in range(_CLIMB):
            above = current.parent
            if above is None:
                return None
            if above.type == "lambda_expression":
                return cut(current, f"{{ {_FAIL} }}")
            if above.type in ("block", "switch_block_statement_group"):
                return (current.start_byte, current.start_byte, f"{_FAIL} ")
            if current.type.endswith("_statement"):
                return cut(current, f"{{ {_FAIL} {self.text(current)} }}")
            current = above
        return None

    def ending(self, node: Node) -> Cut | None:
        body = field(node, "body")
        if body is None:
            return None
        if node.type == "method_declaration" and (expected := self._of_expected(node)):
            return expected.failure
        last = body.named_children[-1] if body.named_children else None
        if last is not None and last.type in ("return_statement", "throw_statement"):
            return (last.start_byte, last.start_byte, f"{_FAIL} ")
        return (body.end_byte - 1, body.end_byte - 1, f"\n{_FAIL}\n")
