"""Going on from a save point when an attempt is stuck: which one, and with what budget. Pure."""

from dataclasses import dataclass

import msgspec

from cloister.agent.tournament import lost, unmet
from cloister.core import limits
from cloister.core.attempts import Search, part_of
from cloister.core.lineage import SavePoint
from cloister.core.records import Budget


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
