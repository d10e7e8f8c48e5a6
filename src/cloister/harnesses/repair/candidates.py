"""Enumerates the changes of suspicious places, best first. Pure: the same input gives the same order."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, overload

from tree_sitter import Node

from cloister.harnesses.repair.api import Candidate, Flag, Hunk, Suspect
from cloister.harnesses.repair.rules.api import Facts, Rule
from cloister.harnesses.repair.rules.table import RULES
from cloister.harnesses.repair.suite import is_test, language_of
from cloister.harnesses.repair.syntax import (
    BLOCKS,
    LISTS,
    LITERALS,
    NUMBERS,
    STRINGS,
    TERNARIES,
    Cut,
    File,
    header_end,
    operation,
    own,
)

_FILES = 60
_MOST = 12_000
_LIKELY = 0.2
"""Rules with such a prior come first, for so many candidates; then the others, for `_DEEPER` more."""
_DEEPER = 6_000
_DEFINITION = 0.3
"""How suspicious a definition at module level is, beside the lines that use its name."""
_UNUSED = 0.08
"""How suspicious other code is that runs at import time, beside the most suspicious line."""
_SAID = 1.15
"""How much more suspicious a statement is that holds a value of a failing assertion."""
_PAIRED = 24
_ALIKE = 3
"""Singles that repair the same tests and are combined with others."""
_LATER = 64
_CONSTANT = re.compile(
    r"""\(?(-?\d[\d.]*|None|True|False|true|false|null|nil|undefined|\[\]|\{\}|""|'[^']*'|"[^"]*")\)?"""
)
_NESTED = frozenset(("not_operator", "parenthesized_expression"))
_EVERYWHERE = frozenset(("", "0", "1", "2", "-1"))
_USUAL = frozenset(("", "0", "1"))
"""What functions return for nothing, for none and for one: no value of a test in particular."""
_VALUE = r"""(-?\d[\d.]*|'[^'\n]*'|"[^"\n]*")"""
_VALUES = re.compile(_VALUE)
_DIRECT = re.compile(
    rf"(?:\breturn|\bis(?: not)?|[=!]=|=>)\s*\(?{_VALUE}(?=\)?\s*(?:[;:,)}}\n]|$|and\b|or\b|&&|\|\|))"
)
"""A constant that is returned, or that something must be the same as."""
_SAME = frozenset(("==", "!=", "===", "!==", "is", "is not", "in", "not in"))
_AROUND = (
    LISTS | TERNARIES | _NESTED | frozenset(("expression_list", "pair", "unary_operator", "unary_expression"))
)
_DIRECTLY = frozenset(
    ("return_statement", "lambda", "arrow_function", "case_pattern", "switch_case", "expression_case")
)
_CHECKS = frozenset(("raise_statement", "assert_statement", "throw_statement"))
_GO_CHECK = re.compile(r"panic\(|return\b[^\n]*\b(?:err|errors\.New|fmt\.Errorf)\b")
_LOOSENING = frozenset(("one side of an operation", "missing condition", "deleted statement"))


class _Found(NamedTuple):
    score: float
    rule: Rule
    file: File
    cut: Cut
    flags: tuple[Flag, ...]


class Ordered(Sequence[Candidate]):
    """Changes, best first. A search tries a part of them, so each becomes a candidate when it is asked for."""

    def __init__(self, found: Sequence[_Found]) -> None:
        self._found = found
        self._order: list[int | tuple[int, int]] = list(range(len(found)))
        """Singles by their rank, and pairs of them."""
        self._helpful: dict[int, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> "list[Candidate]": ...
    def __getitem__(self, index: int | slice) -> "Candidate | list[Candidate]":
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        ranks = self._order[index]
        if isinstance(ranks, int):
            return self._single(ranks, index)
        return _joined(self._single(ranks[0]), self._single(ranks[1]), index)

    def _single(self, rank: int, number: int = 0) -> Candidate:
        one = self._found[rank]
        score = (round(one.rule.prior, 6), round(one.score, 6))
        return Candidate(
            number, one.rule.name, one.file.path, hunks_of(one.file, (one.cut,)), *score, one.flags
        )

    def with_pairs(self) -> "Ordered":
        """The same, and then combinations of two of the best."""
        made = Ordered(self._found)
        made._order += [(a.number, b.number) for a, b in _both(self[:_PAIRED])]
        return made

    def helps(self, number: int, fixed: Collection[str]) -> bool:
        """Learn that a candidate repairs just these of the failing tests; True if it was not known that something does.

        Its combinations with those that repair other ones come a little later: those in between may be on trial already.
        """
        rank, tests = self._order[number], frozenset(fixed)
        alike = [*self._helpful.values()].count(tests)
        if (
            not isinstance(rank, int)
            or self._found[rank].flags
            or alike >= _ALIKE
            or len(self._helpful) >= _PAIRED
        ):
            return False
        one = self._single(rank)
        others = [other for other, known in self._helpful.items() if known != tests]
        both = [other for other in others if _fit(self._single(other), one)]
        self._order[number + _LATER : number + _LATER] = [(other, rank) for other in both]
        self._helpful[rank] = tests
        return True


def candidates(
    sources: Mapping[str, str], suspects: Sequence[Suspect], facts: Facts, seed: int = 0
) -> Ordered:
    """The single changes, best first. Files of tests are never changed."""
    found: dict[tuple[str, int, int, str], _Found] = {}
    known = dict.fromkeys((*(one.path for one in suspects), *sources))
    paths = [path for path in known if path in sources and language_of(path) and not is_test(path)]
    files = [File(path, sources[path]) for path in paths[:_FILES]]
    scored = _scored(files, suspects, frozenset(one.strip("\"'") for one in facts.values) - _EVERYWHERE)
    for deep, most in ((False, _MOST), (True, _MOST + _DEEPER)):
        for score, file, statement in scored:
            for one in _of_statement(file, statement, score, facts, deep=deep):
                key = (file.path, *one.cut)
                # The same text by two rules: a flag of either counts.
                if key not in found or _rank(found[key]) < _rank(one):
                    found[key] = one
            if len(found) > most:
                break
    return Ordered(sorted(found.values(), key=lambda one: (-round(one.score, 9), _tie(one, seed))))


def _rank(one: _Found) -> tuple[bool, float]:
    return bool(one.flags), one.score


def _tie(one: _Found, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{one.file.path}:{one.cut}".encode(errors="surrogatepass")).digest()


def _of_statement(file: File, statement: Node, score: float, facts: Facts, *, deep: bool) -> Iterator[_Found]:
    for node in own(statement):
        for rule in RULES:
            if (rule.place == "statement" and node != statement) or deep != (rule.likely(facts) < _LIKELY):
                continue
            for prior, cut in rule.changes(node, file, facts):
                marks = (*rule.flags, *_weakened(rule, statement, file, cut), *_decided(node, cut))
                flags = tuple(dict.fromkeys((*marks, *_taken(node, cut, file, facts))))
                weight = 0.02 if flags else 1.0
                yield _Found(score * prior * weight, rule, file, cut, flags)


def _weakened(rule: Rule, statement: Node, file: File, cut: Cut) -> tuple[Flag, ...]:
    """Whether a change makes a check of the product demand less: a raise, an assert, or a condition around one."""
    if rule.name not in _LOOSENING:
        return ()
    first = _first(statement)
    if not (first.type in _CHECKS or (file.language == "go" and _GO_CHECK.match(file.text(first)))):
        return ()
    word = file.words.either if first.type == "assert_statement" else file.words.both
    before = file.data[cut[0] : cut[1]].decode(errors="surrogatepass")
    demands_more = rule.name == "missing condition" and cut[2].count(word) == before.count(word)
    return () if demands_more else ("weakens_check",)


def _first(statement: Node) -> Node:
    """The first statement under a condition; the statement itself if it has none."""
    inside = statement.child_by_field_name("consequence")
    while inside is not None and inside.type in BLOCKS:
        inside = inside.named_children[0] if inside.named_children else None
    return inside or statement


def _taken(node: Node, cut: Cut, file: File, facts: Facts) -> tuple[Flag, ...]:
    """Whether a change returns a value of the failing assertion, or compares with it, where the code did not name it."""
    new = {_plain(one) for one in _DIRECT.findall(cut[2])}
    if cut[:2] == (node.start_byte, node.end_byte) and _CONSTANT.fullmatch(cut[2]) and _is_direct(node, file):
        new.add(_plain(cut[2].strip("()")))
    if not (new := new & {_plain(one) for one in facts.values} - _USUAL):
        return ()
    before = file.data[cut[0] : cut[1]].decode(errors="surrogatepass")
    return ("special_case",) if new - {_plain(one) for one in _VALUES.findall(before)} else ()


def _plain(literal: str) -> str:
    return literal.strip("\"'").lstrip("-")


def _is_direct(node: Node, file: File) -> bool:
    """True for what a function returns, and for what something must be the same as."""
    while (above := node.parent) is not None:
        if above.type in _DIRECTLY:
            return True
        parts = operation(above)
        if parts and " ".join(file.text(parts[1]).split()) in _SAME:
            return True
        if (
            not (above.type in _AROUND or _is_logical(above))
            or above.child_by_field_name("condition") == node
        ):
            return False
        node = above
    return False


def _decided(node: Node, cut: Cut) -> tuple[Flag, ...]:
    """Whether a change puts a constant in place of a condition or of its part: code is then never reached."""
    other = cut[:2] != (node.start_byte, node.end_byte) or node.type in LITERALS
    if other or not _CONSTANT.fullmatch(cut[2]):
        return ()
    above = node.parent
    while above is not None and (above.type in _NESTED or _is_logical(above)):
        node, above = above, above.parent
    decides = above is not None and (
        above.type == "return_statement" or above.child_by_field_name("condition") == node
    )
    return ("deletes_code",) if decides else ()


def _scored(
    files: Sequence[File], suspects: Sequence[Suspect], said: frozenset[str]
) -> list[tuple[float, File, Node]]:
    """Statements with their suspicion, best first.

    Code that runs at import time has no coverage: it is as suspicious as the lines that use what it defines, and less.
    """
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for one in suspects:
        lines[one.path][one.line] = one.score
    found = [
        (
            score * (_SAID if said and not said.isdisjoint(_literals(file, statement)) else 1.0),
            file,
            statement,
        )
        for file in files
        for statement, score in _covered(file, lines[file.path])
    ]
    used: dict[str, float] = defaultdict(float)
    for score, file, statement in found:
        for name in _names(file, statement):
            used[name] = max(used[name], score)
    best = max((score for score, _, _ in found), default=0.0)
    covered = {(file.path, statement.id) for _, file, statement in found}
    for file in files:
        known = lines[file.path]
        for statement in file.at_import:
            last = (
                header_end(statement) if statement.type == "class_definition" else statement.end_point[0] + 1
            )
            inside = [known[line] for line in range(statement.start_point[0] + 1, last + 1) if line in known]
            use = used.get(next(iter(_names(file, statement)), ""), 0.0)
            score = max(_DEFINITION * max((*inside, use)), _UNUSED * best if known else 0.0)
            if score and (file.path, statement.id) not in covered:
                found.append((score, file, statement))
    return sorted(found, key=lambda one: (-one[0], one[1].path, one[2].start_byte))


def _literals(file: File, statement: Node) -> Iterator[str]:
    return (file.text(node).strip("\"'`") for node in own(statement) if node.type in NUMBERS | STRINGS)


def _is_logical(node: Node) -> bool:
    operator = node.child_by_field_name("operator")
    return operator is not None and operator.type in ("and", "or", "&&", "||", "not", "!")


def _covered(file: File, lines: Mapping[int, float]) -> Iterator[tuple[Node, float]]:
    for statement in file.statements if lines else ():
        span = {node.start_point[0] + 1 for node in own(statement)}
        if (first := _first(statement)).type in ("raise_statement", "throw_statement"):
            span.add(first.start_point[0] + 1)  # its condition is as suspicious
        if score := max(lines.get(line, 0.0) for line in span):
            yield statement, score


def _names(file: File, statement: Node) -> Iterator[str]:
    return (file.text(node) for node in own(statement) if node.type.endswith("identifier"))


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
    return (_joined(a, b, number + index) for index, (a, b) in enumerate(_both(singles)))


def _both(singles: Sequence[Candidate]) -> list[tuple[Candidate, Candidate]]:
    best = sorted(singles, key=lambda one: (-one.score, one.number))[:_PAIRED]
    both = [(a, b) for a, b in combinations(best, 2) if _fit(a, b)]
    return sorted(both, key=lambda two: (-two[0].score * two[1].score, two[0].number, two[1].number))


def _fit(a: Candidate, b: Candidate) -> bool:
    return a.path == b.path and not _touch(a.hunks, b.hunks)


def _joined(a: Candidate, b: Candidate, number: int) -> Candidate:
    flags: tuple[Flag, ...] = ("pair", *dict.fromkeys((*a.flags, *b.flags)))
    hunks = tuple(sorted((*a.hunks, *b.hunks), key=lambda hunk: hunk.line))
    prior, score = a.prior * b.prior, a.score * b.score
    return Candidate(number, f"{a.rule}; {b.rule}", a.path, hunks, round(prior, 6), round(score, 6), flags)


def _touch(a: tuple[Hunk, ...], b: tuple[Hunk, ...]) -> bool:
    return any(
        x.line <= y.line + max(1, y.height) - 1 and y.line <= x.line + max(1, x.height) - 1
        for x in a
        for y in b
    )
