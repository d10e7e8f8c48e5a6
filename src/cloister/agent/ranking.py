"""Which of several attempts is the result: evidence decides, and only where it cannot, a judge."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cloister.core import limits
from cloister.core.attempts import Score, Search, part_of
from cloister.core.diagnosis import Comparison
from cloister.core.events import AttemptEnded
from cloister.core.log import SavePoint
from cloister.core.requests import Budget, Outcome

_CLASS: dict[str, int] = {"green": 0, "unproven": 1, "red": 2, "budget": 2, "failed": 2, "stopped": 3}
"""Proven first; of those that got nowhere the evidence tells more than how they ended."""

_ORDER: tuple[Outcome, ...] = ("green", "unproven", "red", "budget", "failed", "stopped")

_WORDS = {
    "red": "still red",
    "new": "new failures",
    "weakened": "weakened tests",
    "lines": "changed lines",
    "dollars": "dollars",
    "tokens": "tokens",
}

_DECIDES = ("outcome", "red", "new", "weakened", "outcome", "lines", "dollars", "tokens")
"""What each part of `_evidence` is about."""


def unmet(found: Comparison) -> int:
    """What was asked for and is not green; where nobody could tell what was, all that is still red."""
    return len(found.asked if found.asked or found.unrelated else found.still)


def lost(found: Comparison) -> int:
    """Tests that are less than they were."""
    return len(found.missing) + len(found.skipped) + len(found.weakened)


def score(ended: AttemptEnded, *, lines: int, tokens: int, dollars: float | None = None) -> Score:
    """What the evidence says of an attempt. `lines` is the size of its diff, the rest what it cost."""
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
    )


def rank(scores: Sequence[Score]) -> tuple[tuple[Score, ...], tuple[int, ...]]:
    """The scores with their reasons, best first, and the attempts that tie with the best.

    The order: proven; what was asked for is green; no new failures; fewer weakened tests; how it ended; the smaller
    diff; the lower cost, in dollars where they are known of all, else in tokens. Among equals the earlier attempt comes
    first.
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
    return (_CLASS.get(one.outcome, 3), one.red, one.new, one.weakened, order, one.lines, cost, one.tokens)


def _because(one: Score, other: Score) -> Score:
    """`one` with the first thing in which it differs from `other`, in words."""
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


# Going on from a save point when an attempt is stuck: which one, and with what budget. Pure.


@dataclass(frozen=True, slots=True)
class Node:
    """One attempt of the tree, as a planner sees it."""

    attempt: int
    root: int
    """The attempt, among those the run began with, that it descends from."""
    depth: int
    live: bool
    """At work; the one that is stuck is not."""
    stuck: bool
    """It is, or it ended because it was: its save points may be gone on from."""
    points: tuple[SavePoint, ...] = ()
    """Made or inherited, oldest first."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A new attempt that the plan wants."""

    parent: int
    point: SavePoint
    budget: Budget


@dataclass(frozen=True, slots=True)
class Tree:
    """All attempts of a run at a moment."""

    nodes: tuple[Node, ...]
    base: SavePoint
    """The untouched base, from which one can always begin anew."""
    red_before: int
    """How much is red there."""
    taken: frozenset[tuple[int, str]]
    """Roots and commits that were gone on from before: in one line no files are tried twice."""


def plan(search: Search, tree: Tree, stuck: int, left: Budget) -> tuple[Fork, ...]:
    """What to begin now that attempt `stuck` cannot go on; nothing when the tree may not grow.

    `greedy` goes on from the best save point of the stuck attempt: the fewest red, then the earliest, because what
    came after it led nowhere. `beam:K` fills K places with the best save points of all attempts that are stuck.
    What is begun divides what the stuck attempt has left, so a tree never spends more than its roots were given.
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
    """What is left of `budget` after these."""
    return msgspec.structs.replace(
        budget,
        steps=max(0, budget.steps - steps),
        tokens=max(0, budget.tokens - tokens),
        dollars=None if budget.dollars is None else max(0.0, budget.dollars - dollars),
    )


def _red(point: SavePoint, before: int) -> int:
    found = point.comparison
    return before if found is None else unmet(found) + len(found.new) + lost(found)
