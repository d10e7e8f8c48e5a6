"""Change single assertions of tests. An honest test that passed must fail with each change.

Pure: source text in, edits out. The proof applies one edit to the test's file and runs the test. If the test still
passes, it shows nothing: an equality lies, an assertion function is patched, or the assertion is never reached.

The source is hostile. Trees are walked without recursion, and all lists are bounded.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import islice
from time import thread_time
from typing import ClassVar, NamedTuple, TypeVar, cast

import msgspec
from tree_sitter import Language, Node, Parser

Cut = tuple[int, int, str]
"""Start and end in bytes, and the replacement."""
COMMENTS = ("comment", "line_comment", "block_comment")
MARK = "this line is reached"
"""The message of an unconditional failure."""
_NAMES = 24
_BLOCKS = 20_000
_BYTES = 512 * 1024
_PARTS = (16 * 1024, 64 * 1024, 256 * 1024)
_SECONDS_PER_BYTE = 8e-6
"""Source takes about a microsecond of processor time for a byte."""
_TESTS = 500
_TRIES = 40
"""Assertions of one test that are tried until enough of them can be changed."""
_HELPER_LEVELS = 2
_WAS_CHARS = 160
_DIALECTS = {
    **{"py": "python_asserts:PythonTests", "java": "java_asserts:JavaTests"},
    **{"go": "compiled_asserts:GoTests", "rs": "compiled_asserts:RustTests"},
    **dict.fromkeys(("c", "h", "cc", "cpp", "cxx", "hpp"), "compiled_asserts:NativeTests"),
    **dict.fromkeys(("js", "cjs", "mjs", "jsx", "ts", "cts", "mts", "tsx"), "script_asserts:ScriptTests"),
}
"""Loaded when the first file of the language comes, with its grammar."""


class Source(NamedTuple):
    """A file of tests."""

    path: str
    data: bytes

    def text(self, node: Node | None) -> str:
        """The source of a node."""
        return "" if node is None else self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        """The text between two offsets, which can cut a character."""
        try:
            return self.data[start:end].decode(errors="surrogatepass")
        except UnicodeDecodeError:
            return self.data[start:end].decode(errors="replace")

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
    near: Cut | None = None
    """A second mutant, for equalities that only tell distant values apart."""


class Outline(NamedTuple):
    """What is in a file, each list in the order of the text."""

    blocks: Sequence[Block]
    assertions: Sequence[Assertion]
    calls: Sequence[Call]
    named: Mapping[str, Sequence[Block]]
    """The functions and classes by their own names."""


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


def parsed(grammar: str, data: bytes) -> Node | None:
    """The root of the tree of a source text. Wrong syntax becomes nodes of errors.

    The parser needs quadratic time for some texts that are no source of its language. It reads a part of a long text
    first, and None is the answer if that takes far longer than source takes.
    """
    parser = _parser(grammar)
    for size in (part for part in _PARTS if part < len(data)):
        begin = thread_time()
        parser.parse(data[:size])
        if thread_time() - begin > size * _SECONDS_PER_BYTE:
            return None
    return parser.parse(data).root_node


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
            if node.type != "call_expression":  # the title of a suite is no function that a test calls
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


@cache
def _dialect(extension: str) -> type[Dialect] | None:
    module, _, name = _DIALECTS.get(extension, "").partition(":")
    return cast(type[Dialect], getattr(import_module(f"{__package__}.{module}"), name)) if module else None


_Item = TypeVar("_Item", Assertion, Call)


class Edit(msgspec.Struct, frozen=True):
    """One replacement in a file."""

    start: int
    """Byte offsets in the UTF-8 text."""
    end: int
    text: str
    line: int
    """The line of the assertion, from 1."""
    was: str
    """The assertion on one line, bounded."""


class Mutants(msgspec.Struct, frozen=True):
    """The changes for one test."""

    edits: tuple[Edit, ...]
    """Each must make an honest test fail."""
    reached: tuple[Edit, ...]
    """For each of `edits`: an unconditional failure at the same place. A test that passes with it never got there."""
    end: Edit | None
    """An unconditional failure at the end of the test."""


def mutants(path: str, text: str, tests: Collection[str], limit: int = 3) -> dict[str, Mutants]:
    """The changes for those of the named tests that are in this file."""
    kind = _dialect(path.rpartition(".")[2].lower())
    data = text.encode(errors="surrogatepass")
    if kind is None or len(data) > _BYTES:
        return {}
    source = Source(path, data)
    dialect = kind(source)
    root = parsed(kind.grammar_of(path), data)
    if root is None:
        return {}
    found = outline(dialect, root)
    ranges: dict[str, tuple[Block, ...]] = {}
    for test in islice(tests, _TESTS):
        if blocks := dialect.blocks_of(test, found.blocks):
            ranges[test] = tuple(blocks)
    made: dict[tuple[Block, ...], Mutants] = {}
    for blocks in ranges.values():
        if blocks not in made:
            made[blocks] = _of_blocks(dialect, found, blocks, limit)
    return {test: made[blocks] for test, blocks in ranges.items()}


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap, in any order."""
    data = text.encode(errors="surrogatepass")
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        data = data[: edit.start] + edit.text.encode(errors="surrogatepass") + data[edit.end :]
    return data.decode(errors="surrogatepass")


def _of_blocks(dialect: Dialect, found: Outline, blocks: Sequence[Block], limit: int) -> Mutants:
    edits: list[Edit] = []
    reached: list[Edit] = []
    more: list[tuple[Edit, Edit]] = []
    for assertion in islice(_candidates(found, blocks), _TRIES):
        if len(edits) >= limit:
            break
        changed = dialect.change(assertion.node)
        if changed is None or any(_overlap(changed.mutant, edit) for edit in edits):
            continue
        node, source = assertion.node, dialect.source
        edits.append(_edit(source, changed.mutant, node.start_byte, node.end_byte))
        reached.append(_edit(source, changed.failure, node.start_byte, node.end_byte))
        if changed.near is not None:
            more.append((_edit(source, changed.near, node.start_byte, node.end_byte), reached[-1]))
    for edit, failure in more[: max(0, limit - len(edits))]:
        edits.append(edit)
        reached.append(failure)
    ends = [cut for block in blocks if (cut := dialect.ending(block.node))]
    end = _edit(dialect.source, ends[-1], ends[-1][0], ends[-1][1]) if ends else None
    return Mutants(tuple(edits), tuple(reached), end)


def _candidates(found: Outline, blocks: Sequence[Block]) -> Iterator[Assertion]:
    """Assertions that surely run first; those of the test before those of the functions that it calls."""
    groups = [_inside(found, blocks)]
    seen = set(blocks)
    for _ in range(_HELPER_LEVELS):
        names = {call.name for block in blocks for call in _between(found.calls, block)}
        blocks = [block for name in names for block in found.named.get(name, ()) if block not in seen]
        blocks.sort(key=lambda block: block.node.start_byte)
        seen.update(blocks)
        groups.append(_inside(found, blocks))
    for sure in (True, False):
        for group in groups:
            yield from _spread([assertion for assertion in group if assertion.sure is sure])


def _inside(found: Outline, blocks: Sequence[Block]) -> list[Assertion]:
    return [assertion for block in blocks for assertion in _between(found.assertions, block)]


def _between(items: Sequence[_Item], block: Block) -> Sequence[_Item]:
    """The items, which are in the order of the text, that begin inside the block."""
    first = bisect_left(items, block.node.start_byte, key=lambda item: item.at)
    return items[first : bisect_left(items, block.node.end_byte, key=lambda item: item.at)]


def _spread(assertions: Sequence[Assertion]) -> Iterator[Assertion]:
    """The first, the last, the one in the middle, then the others."""
    order = dict.fromkeys((0, len(assertions) - 1, len(assertions) // 2, *range(len(assertions))))
    return (assertions[index] for index in order if 0 <= index < len(assertions))


def _overlap(cut: Cut, edit: Edit) -> bool:
    return (cut[0] < edit.end and edit.start < cut[1]) or cut[0] == edit.start


def _edit(source: Source, cut: Cut, start: int, end: int) -> Edit:
    was = " ".join(source.data[start : min(end, start + 4 * _WAS_CHARS)].decode(errors="replace").split())
    line = source.data.count(b"\n", 0, start) + 1
    return Edit(cut[0], cut[1], cut[2], line, was[:_WAS_CHARS])
