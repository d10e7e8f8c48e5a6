"""Enumerates the changes of suspicious places, best first. Pure: the same input gives the same order."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from tree_sitter import Node

from cloister.repair.api import Candidate, Flag, Hunk, Suspect
from cloister.repair.rules.api import Facts, Rule
from cloister.repair.rules.table import RULES
from cloister.repair.suite import is_test, language_of
from cloister.repair.syntax import FUNCTIONS, NAMES, Cut, File, header_end, own

_FILES = 25
_MOST = 40_000
_DEFINITION = 0.4
"""How suspicious a definition at module level is, beside the lines that use its name."""
_PAIRED = 24
_LOOSENING = frozenset(("one side of an operation", "missing condition", "deleted statement"))


class _Found(NamedTuple):
    score: float
    rule: Rule
    file: File
    cut: Cut
    flags: tuple[Flag, ...]


def candidates(
    sources: Mapping[str, str], suspects: Sequence[Suspect], facts: Facts, seed: int = 0
) -> Iterator[Candidate]:
    """The single changes, best first. Files of tests are never changed."""
    found: dict[tuple[str, int, int, str], _Found] = {}
    paths = [path for path in dict.fromkeys(one.path for one in suspects) if path in sources]
    for path in [path for path in paths if language_of(path) and not is_test(path)][:_FILES]:
        file = File(path, sources[path])
        for one in _of_file(file, {s.line: s.score for s in suspects if s.path == path}, facts):
            key = (path, *one.cut)
            # The same text by two rules: a flag of either counts.
            if key not in found or _rank(found[key]) < _rank(one):
                found[key] = one
        if len(found) > _MOST:
            break
    order = sorted(found.values(), key=lambda one: (-round(one.score, 9), _tie(one, seed)))
    number = 0
    for one in order[:_MOST]:
        if not one.file.parses(one.cut):
            continue
        number += 1
        yield _candidate(
            number - 1, one.rule.name, one.file, (one.cut,), (one.rule.prior, one.score), one.flags
        )


def _rank(one: _Found) -> tuple[bool, float]:
    return bool(one.flags), one.score


def _tie(one: _Found, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{one.file.path}:{one.cut}".encode(errors="surrogatepass")).digest()


def _of_file(file: File, lines: Mapping[int, float], facts: Facts) -> Iterator[_Found]:
    for statement, score in _scored(file, lines):
        for node in own(statement):
            for rule in RULES:
                if rule.place == "statement" and node != statement:
                    continue
                for prior, cut in rule.changes(node, file, facts):
                    flags = (*rule.flags, *_weakened(rule, statement))
                    weight = 0.02 if flags else 1.0
                    yield _Found(score * prior * weight, rule, file, cut, flags)


def _weakened(rule: Rule, statement: Node) -> tuple[Flag, ...]:
    """Whether a change makes a check of the product demand less: a raise, an assert, or a condition around one."""
    inside = statement.child_by_field_name("consequence")
    first = inside.named_children[0] if inside is not None and inside.named_children else statement
    checks = first.type in ("raise_statement", "assert_statement", "throw_statement")
    return ("weakens_check",) if checks and rule.name in _LOOSENING else ()


def _scored(file: File, lines: Mapping[int, float]) -> Iterator[tuple[Node, float]]:
    """Statements with their suspicion: their own lines, or the lines that use what they define at import time."""
    used: dict[str, float] = defaultdict(float)
    scores: dict[int, float] = {}
    for statement in file.statements:
        span = range(statement.start_point[0] + 1, header_end(statement) + 1)
        score = max((lines.get(line, 0.0) for line in span), default=0.0)
        scores[statement.id] = score
        if score:
            for node in own(statement):
                if node.type in NAMES or node.type.endswith("identifier"):
                    name = file.text(node)
                    used[name] = max(used[name], score)
    for statement in file.statements:
        score = scores[statement.id]
        if not score:
            inside = [
                lines[line]
                for line in range(statement.start_point[0] + 1, statement.end_point[0] + 2)
                if line in lines
            ]
            if statement.type in FUNCTIONS or statement.type == "decorated_definition":
                score = _DEFINITION * max(inside, default=0.0)
            elif _is_import_time(statement):
                names = [file.text(node) for node in own(statement) if node.type.endswith("identifier")][:1]
                score = _DEFINITION * max((used.get(name, 0.0) for name in names), default=0.0)
        if score:
            yield statement, score


def _is_import_time(statement: Node) -> bool:
    node = statement.parent
    while node is not None:
        if node.type in FUNCTIONS:
            return False
        node = node.parent
    return statement.type not in ("import_statement", "import_from_statement", "class_definition")


def _candidate(
    number: int,
    rule: str,
    file: File,
    cuts: Sequence[Cut],
    weights: tuple[float, float],
    flags: tuple[Flag, ...],
) -> Candidate:
    prior, score = weights
    return Candidate(number, rule, file.path, hunks_of(file, cuts), round(prior, 6), round(score, 6), flags)


def hunks_of(file: File, cuts: Sequence[Cut]) -> tuple[Hunk, ...]:
    """Cuts that do not overlap as whole lines."""
    hunks: list[Hunk] = []
    groups: list[list[Cut]] = []
    last = -1
    for cut in sorted(cuts):
        first = file.data.count(b"\n", 0, cut[0])
        if groups and first <= last:
            groups[-1].append(cut)
        else:
            groups.append([cut])
        last = file.data.count(b"\n", 0, cut[1])
    for group in groups:
        start = file.data.rfind(b"\n", 0, group[0][0]) + 1
        end = group[-1][1]
        if not (end == start and group[-1][2].endswith("\n")):  # an insertion of whole lines touches none
            at = file.data.find(b"\n", end)
            end = len(file.data) if at < 0 else at + 1
        before = file.data[start:end]
        after, at = b"", start
        for a, b, text in group:
            after += file.data[at:a] + text.encode(errors="surrogatepass")
            at = b
        after += file.data[at:end]
        line = file.data.count(b"\n", 0, start) + 1
        hunks.append(Hunk(line, before.decode(errors="surrogatepass"), after.decode(errors="surrogatepass")))
    return tuple(hunks)


def pairs(singles: Sequence[Candidate], number: int) -> Iterator[Candidate]:
    """Combinations of two of the best singles in the same file, on different lines; their numbers start at `number`."""
    best = sorted(singles, key=lambda one: (-one.score, one.number))[:_PAIRED]
    both = [(a, b) for a, b in combinations(best, 2) if a.path == b.path and not _touch(a.hunks, b.hunks)]
    both.sort(key=lambda two: (-two[0].score * two[1].score, two[0].number, two[1].number))
    for index, (a, b) in enumerate(both):
        flags: tuple[Flag, ...] = ("pair", *dict.fromkeys((*a.flags, *b.flags)))
        hunks = tuple(sorted((*a.hunks, *b.hunks), key=lambda hunk: hunk.line))
        prior, score = a.prior * b.prior, a.score * b.score
        yield Candidate(
            number + index, f"{a.rule}; {b.rule}", a.path, hunks, round(prior, 6), round(score, 6), flags
        )


def _touch(a: tuple[Hunk, ...], b: tuple[Hunk, ...]) -> bool:
    return any(
        x.line <= y.line + max(1, y.height) - 1 and y.line <= x.line + max(1, x.height) - 1
        for x in a
        for y in b
    )
