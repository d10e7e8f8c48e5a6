"""Test code as syntax trees: which blocks have names, which assertions are in them, which functions they call.

The source is hostile. Trees are walked without recursion, and all lists are bounded.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import ClassVar, NamedTuple

from tree_sitter import Language, Node, Parser

Cut = tuple[int, int, str]
"""Start and end in bytes, and the replacement."""
COMMENTS = ("comment", "line_comment", "block_comment")
MARK = "this line is reached"
"""The message of an unconditional failure."""
_NAMES = 24
_BLOCKS = 20_000


class Source(NamedTuple):
    """A file of tests."""

    path: str
    data: bytes

    def text(self, node: Node | None) -> str:
        """The source of a node."""
        return "" if node is None else self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode(errors="surrogatepass")

    def indent(self, at: int) -> str | None:
        """The white space before a place on its line, or None if other text is there."""
        line = self.data[self.data.rfind(b"\n", 0, at) + 1 : at]
        return None if line.strip() else line.decode(errors="replace")


class Block(NamedTuple):
    """A function, class or suite. `names` begins with those around it and ends with its own."""

    names: tuple[str, ...]
    node: Node


class Call(NamedTuple):
    """A call of a function, by its last name."""

    at: int
    name: str


class Assertion(NamedTuple):
    """An assertion. It is `sure` if no condition and no callback is between it and its block."""

    at: int
    node: Node
    sure: bool


class Change(NamedTuple):
    """An assertion that must fail, and a failure in its place."""

    mutant: Cut
    failure: Cut


class Outline(NamedTuple):
    """What is in a file, each list in the order of the text."""

    blocks: Sequence[Block]
    assertions: Sequence[Assertion]
    calls: Sequence[Call]
    named: Mapping[str, Sequence[Block]]
    """The blocks by their own names."""


class Dialect(ABC):
    """The tests of one language in one file."""

    branches: ClassVar[frozenset[str]] = frozenset()
    """Kinds of nodes whose parts may not run."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.defined: Collection[str] = ()
        """Names of functions of the file. A function of the file is no assertion, even if its name is that of one."""

    def replaced(self, whole: Node, part: Node, text: str) -> str:
        """The source of a node with another text in place of a part."""
        before = self.source.between(whole.start_byte, part.start_byte)
        return before + text + self.source.between(part.end_byte, whole.end_byte)

    @classmethod
    @abstractmethod
    def grammar_of(cls, path: str) -> str:
        """The module of the grammar, and `:` and its function if that is not `language`."""

    @abstractmethod
    def name(self, node: Node) -> str | None:
        """The name of a function, class or suite."""

    @abstractmethod
    def is_group(self, node: Node) -> bool:
        """Whether a named node holds tests and is none itself, as a class."""

    @abstractmethod
    def call(self, node: Node) -> str | None:
        """The last name of a called function."""

    @abstractmethod
    def assertion(self, node: Node) -> bool | None:
        """None if it is no assertion, else whether assertions inside it count too."""

    def hides(self, node: Node) -> bool:
        """Whether failures of assertions inside a node are expected."""
        return False

    @abstractmethod
    def change(self, node: Node) -> Change | None:
        """The change of an assertion, or None if none is certain to make an honest test fail."""

    @abstractmethod
    def ending(self, node: Node) -> Cut | None:
        """A failure at the end of a block."""

    @abstractmethod
    def blocks_of(self, test: str, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of a test, by its name in reports; empty if it is in another file."""


@cache
def _parser(grammar: str) -> Parser:
    module, _, function = grammar.partition(":")
    pointer: object = getattr(import_module(module), function or "language")()
    return Parser(Language(pointer))


def parsed(grammar: str, data: bytes) -> Node:
    """The root of the tree of a source text. Wrong syntax becomes nodes of errors."""
    return _parser(grammar).parse(data).root_node


def outline(dialect: Dialect, root: Node) -> Outline:
    """Walk a tree once, in the order of the text."""
    blocks: list[Block] = []
    assertions: list[Assertion] = []
    calls: list[Call] = []
    named: dict[str, list[Block]] = {}
    stack = [_Place(root, (), free=True, sure=True, counts=True)]
    while stack:
        node, names, free, sure, counts = stack.pop()
        name = dialect.name(node)
        outer, sure = sure, sure and node.type not in dialect.branches
        if name is not None and len(names) < _NAMES and len(blocks) < _BLOCKS:
            names, outer, sure = (*names, name), outer or free, sure or free
            free = free and dialect.is_group(node)
            blocks.append(Block(names, node))
            named.setdefault(name, []).append(blocks[-1])
        if counts and (inner := dialect.assertion(node)) is not None:
            assertions.append(Assertion(node.start_byte, node, outer))
            counts = inner
        if called := dialect.call(node):
            calls.append(Call(node.start_byte, called))
        counts = counts and not dialect.hides(node)
        stack.extend(_Place(child, names, free, sure, counts) for child in reversed(node.named_children))
    dialect.defined = named.keys()
    return Outline(blocks, assertions, calls, named)


class _Place(NamedTuple):
    """A node to visit. It is `free` if no function is around it."""

    node: Node
    names: tuple[str, ...]
    free: bool
    sure: bool
    counts: bool


def same_file(one: str, other: str) -> bool:
    """Whether two paths can be the same file, seen from different folders."""
    one, other = one.removeprefix("./"), other.removeprefix("./")
    return one == other or one.endswith("/" + other) or other.endswith("/" + one)


def field(node: Node, name: str) -> Node | None:
    return node.child_by_field_name(name)


def cut(node: Node, text: str) -> Cut:
    """The text in place of a node."""
    return (node.start_byte, node.end_byte, text)


def arguments(call: Node) -> list[Node]:
    """The arguments of a call."""
    given = call.child_by_field_name("arguments")
    return [one for one in given.named_children if one.type not in COMMENTS] if given else []
