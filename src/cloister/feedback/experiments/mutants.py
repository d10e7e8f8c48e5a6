"""Change single assertions of tests. An honest test that passed must fail with each change.

Pure: source text in, edits out. The proof applies one edit to the test's file and runs the test. If the test still
passes, it shows nothing: an equality lies, an assertion function is patched, or the assertion is never reached.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from cloister.feedback.experiments.compiled_asserts import GoTests, RustTests
from cloister.feedback.experiments.python_asserts import PythonTests
from cloister.feedback.experiments.script_asserts import ScriptTests
from cloister.feedback.experiments.syntax import (
    Assertion,
    Block,
    Call,
    Cut,
    Dialect,
    Outline,
    Source,
    outline,
    parsed,
)

_BYTES = 512 * 1024
_TESTS = 500
_TRIES = 40
"""Assertions of one test that are tried until enough of them can be changed."""
_HELPER_LEVELS = 2
_WAS_CHARS = 160
_DIALECTS: dict[str, type[Dialect]] = {
    **{"py": PythonTests, "go": GoTests, "rs": RustTests},
    **dict.fromkeys(("js", "cjs", "mjs", "jsx", "ts", "cts", "mts", "tsx"), ScriptTests),
}

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
    kind = _DIALECTS.get(path.rpartition(".")[2].lower())
    data = text.encode(errors="surrogatepass")
    if kind is None or len(data) > _BYTES:
        return {}
    source = Source(path, data)
    dialect = kind(source)
    found = outline(dialect, parsed(kind.grammar_of(path), data))
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
    for assertion in islice(_candidates(found, blocks), _TRIES):
        if len(edits) >= limit:
            break
        changed = dialect.change(assertion.node)
        if changed is None or any(_overlap(changed.mutant, edit) for edit in edits):
            continue
        edits.append(
            _edit(dialect.source, changed.mutant, assertion.node.start_byte, assertion.node.end_byte)
        )
        reached.append(
            _edit(dialect.source, changed.failure, assertion.node.start_byte, assertion.node.end_byte)
        )
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
