"""Choose the result among several attempts, by evidence. A judge decides ties only."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cloister.core import limits
from cloister.core.attempts import Score, Search, part_of
from cloister.core.diagnosis import Comparison
from cloister.core.events import AttemptEnded
from cloister.core.log import SavePoint
from cloister.core.requests import Budget, Outcome

_CLASS: dict[str, int] = {
    **{"proven": 0, "green": 0, "unbroken": 1, "unproven": 2},
    **{"red": 3, "budget": 3, "failed": 3, "stopped": 4},
}
"""Proven first. Among failed attempts the evidence counts before the outcome."""

_ORDER: tuple[Outcome, ...] = (
    "proven",
    "green",
    "unbroken",
    "unproven",
    "red",
    "budget",
    "failed",
    "stopped",
)

_WORDS = {
    "red": "still red",
    "new": "new failures",
    "weakened": "weakened tests",
    "doubts": "doubts about the patch",
    "lines": "changed lines",
    "dollars": "dollars",
    "tokens": "tokens",
}

_DECIDES = ("outcome", "red", "new", "weakened", "outcome", "doubts", "lines", "dollars", "tokens")
"""The names of the parts of `_evidence`."""


def unmet(found: Comparison) -> int:
    """Goals that are not green; without known goals, everything still red."""
    return len(found.asked if found.asked or found.unrelated else found.still)


def lost(found: Comparison) -> int:
    """Tests that are missing, skipped or weakened."""
    return len(found.missing) + len(found.skipped) + len(found.weakened)


def score(
    ended: AttemptEnded, *, lines: int, tokens: int, dollars: float | None = None, doubts: int = 0
) -> Score:
    """Score an attempt. `lines` is the size of its diff; `tokens` and `dollars` are its cost."""
    found = ended.comparison
    return Score(
        attempt=ended.attempt,
        outcome=ended.outcome,
        red=unmet(found),
        new=len(found.new),
        weakened=lost(found),
        lines=lines,
        tokens=tokens,
        dollars=dollars,
        doubts=doubts,
    )


def rank(scores: Sequence[Score]) -> tuple[tuple[Score, ...], tuple[int, ...]]:
    """The scores with their reasons, best first, and the attempts that tie with the best.

    The order: proven; goals green; fewer new failures; fewer weakened tests; outcome; fewer doubts; smaller diff; lower cost, in
    dollars if known for all, else in tokens. Among equals the earlier attempt comes first.
    """
    if any(one.dollars is None for one in scores):
        by_price = {one.attempt: one.dollars for one in scores}
        scores = [msgspec.structs.replace(one, dollars=None) for one in scores]
        ordered, tied = _ranked(scores)
        return tuple(msgspec.structs.replace(one, dollars=by_price[one.attempt]) for one in ordered), tied
    return _ranked(scores)


def _ranked(scores: Sequence[Score]) -> tuple[tuple[Score, ...], tuple[int, ...]]:
    ordered = sorted(scores, key=lambda one: (_evidence(one), one.attempt))
    if len(ordered) < 2:
        return tuple(ordered), ()
    best = ordered[0]
    explained = [_because(best, ordered[1]), *(_because(one, best) for one in ordered[1:])]
    tied = tuple(one.attempt for one in ordered if _evidence(one) == _evidence(best))
    return tuple(explained), tied if len(tied) > 1 else ()


def _evidence(one: Score) -> tuple[float, ...]:
    order = _ORDER.index(one.outcome) if one.outcome in _ORDER else len(_ORDER)
    cost = one.dollars or 0.0
    evidence = (_CLASS.get(one.outcome, 4), one.red, one.new, one.weakened, order)
    return (*evidence, one.doubts, one.lines, cost, one.tokens)


def _because(one: Score, other: Score) -> Score:
    """`one` with the first difference from `other`, in words."""
    decided = next(
        (n for n, (a, b) in enumerate(zip(_evidence(one), _evidence(other), strict=True)) if a != b), None
    )
    name = None if decided is None else _DECIDES[decided]
    if name is None:
        why = f"the same evidence as attempt {other.attempt}"
    elif name == "outcome":
        why = f"{one.outcome}, attempt {other.attempt} {other.outcome}"
    else:
        mine, theirs = getattr(one, name) or 0, getattr(other, name) or 0
        why = f"{_WORDS[name]}: {mine:,}, attempt {other.attempt} {theirs:,}"
    return msgspec.structs.replace(one, why=why)


# Branch search: from which save point to continue when an attempt is stuck, and with what budget.


@dataclass(frozen=True, slots=True)
class Node:
    """One attempt of the tree."""

    attempt: int
    root: int
    """The first attempt that it descends from."""
    depth: int
    live: bool
    """At work and not stuck."""
    stuck: bool
    """Stuck now, or ended because it was. Its save points are candidates."""
    points: tuple[SavePoint, ...] = ()
    """Made or inherited, oldest first."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A new attempt to start."""

    parent: int
    point: SavePoint
    budget: Budget


@dataclass(frozen=True, slots=True)
class Tree:
    """All attempts of a run."""

    nodes: tuple[Node, ...]
    base: SavePoint
    """The untouched base, always a candidate."""
    red_before: int
    """The number of failures on the base."""
    taken: frozenset[tuple[int, str]]
    """Roots and commits that a fork has already started from. A root tries no commit twice."""


def plan(search: Search, tree: Tree, stuck: int, left: Budget) -> tuple[Fork, ...]:
    """The attempts to start now that attempt `stuck` cannot continue; empty if the tree may not grow.

    `greedy` takes the best save point of the stuck attempt: fewest failures, then the earliest. `beam:K` fills K places
    with the best save points of all stuck attempts. The new attempts share the budget that the stuck one has left, so
    a tree never spends more than its roots.
    """
    room = limits.SEARCH_NODES - len(tree.nodes)
    if search.kind == "beam":
        room = min(room, search.width - sum(node.live for node in tree.nodes))
        sources = [node for node in tree.nodes if node.stuck]
    else:
        room = min(room, 1)
        sources = [node for node in tree.nodes if node.attempt == stuck]
    found = [
        (node, point)
        for node in sources
        if node.depth < limits.SEARCH_DEPTH
        for point in (tree.base, *node.points)
        if (node.root, point.commit) not in tree.taken
    ]
    found.sort(key=lambda one: (_red(one[1], tree.red_before), one[1].seq, one[0].attempt))
    first: dict[tuple[int, str], tuple[Node, SavePoint]] = {}
    for node, point in found:
        first.setdefault((node.root, point.commit), (node, point))
    picked = list(first.values())[: max(0, room)]
    part = part_of(left, 1 / len(picked)) if picked else left
    if part.steps < 1 or part.tokens < 1 or part.dollars == 0:
        return ()
    return tuple(Fork(node.attempt, point, part) for node, point in picked)


def unspent(budget: Budget, steps: int, tokens: int, dollars: float) -> Budget:
    """`budget` minus the given amounts."""
    return msgspec.structs.replace(
        budget,
        steps=max(0, budget.steps - steps),
        tokens=max(0, budget.tokens - tokens),
        dollars=None if budget.dollars is None else max(0.0, budget.dollars - dollars),
    )


def _red(point: SavePoint, before: int) -> int:
    found = point.comparison
    return before if found is None else unmet(found) + len(found.new) + lost(found)
