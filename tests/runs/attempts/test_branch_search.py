"""Branch search: the save point from which a stuck attempt continues."""

from hypothesis import given
from hypothesis import strategies as st

from cloister.core import limits
from cloister.core.attempts import Search
from cloister.core.diagnosis import Comparison
from cloister.core.log import SavePoint
from cloister.core.requests import Budget
from cloister.runs.attempts.scores import Node, Tree, plan, unspent

GREEDY = Search("greedy", 1)
BASE = SavePoint(0, 0, "base", None)
LEFT = unspent(Budget(steps=20, tokens=1_000), 8, 400, 0.0)


def point(seq: int, red: int) -> SavePoint:
    still = tuple(f"t{n}" for n in range(red))
    return SavePoint(seq, 1, f"c{seq}", Comparison(still=still))


def tree(*nodes: Node, taken: tuple[str, ...] = ()) -> Tree:
    return Tree(nodes, BASE, red_before=5, taken=frozenset((0, commit) for commit in taken))


def stuck(attempt: int, *points: SavePoint, depth: int = 0) -> Node:
    return Node(attempt, attempt, depth, live=False, stuck=True, points=points)


def test_greedy_picks_the_earliest_save_point_with_the_fewest_failures() -> None:
    node = stuck(0, point(10, 4), point(20, 2), point(30, 2), point(40, 3))
    (fork,) = plan(GREEDY, tree(node), 0, LEFT)
    assert (fork.parent, fork.point.seq) == (0, 20)


def test_no_save_point_is_tried_twice_and_the_base_comes_last() -> None:
    node = stuck(0, point(10, 4), point(20, 2))
    chosen: list[str] = []
    for _ in range(4):
        forks = plan(GREEDY, tree(node, taken=tuple(chosen)), 0, LEFT)
        chosen += [fork.point.commit for fork in forks]
    assert chosen == ["c20", "c10", "base"]


def test_attempt_without_improvement_restarts_from_the_base() -> None:
    (fork,) = plan(GREEDY, tree(stuck(0, point(10, 9))), 0, LEFT)
    assert fork.point == BASE
    assert fork.budget == Budget(steps=12, tokens=600)


def test_fork_gets_the_unspent_budget_of_the_stuck_attempt() -> None:
    (fork,) = plan(GREEDY, tree(stuck(0, point(10, 1))), 0, LEFT)
    assert fork.budget == Budget(steps=12, tokens=600)
    assert plan(GREEDY, tree(stuck(0, point(10, 1))), 0, unspent(Budget(steps=8), 8, 0, 0.0)) == ()
    broke = unspent(Budget(dollars=1.0), 1, 1, 1.5)
    assert broke.dollars == 0
    assert plan(GREEDY, tree(stuck(0, point(10, 1))), 0, broke) == ()


def test_beam_fills_its_places_with_the_best_points_of_all_stuck_attempts() -> None:
    live = Node(2, 2, 0, live=True, stuck=False, points=(point(50, 0),))
    nodes = (stuck(0, point(10, 3), point(20, 1)), stuck(1, point(30, 2)), live)
    forks = plan(Search("beam", 3), tree(*nodes), 1, LEFT)
    assert [(fork.parent, fork.point.seq) for fork in forks] == [(0, 20), (1, 30)]
    assert [fork.budget.steps for fork in forks] == [6, 6]
    assert plan(Search("beam", 1), tree(*nodes), 1, LEFT) == ()


def test_two_roots_may_fork_from_the_same_commit() -> None:
    nodes = (stuck(0, point(10, 1)), stuck(1, point(10, 1)))
    (fork,) = plan(GREEDY, tree(*nodes, taken=("c10", "base")), 1, LEFT)
    assert (fork.parent, fork.point.seq) == (1, 10)


def test_tree_is_limited_in_depth_and_size() -> None:
    assert plan(GREEDY, tree(stuck(0, point(10, 1), depth=limits.SEARCH_DEPTH)), 0, LEFT) == ()
    many = (Node(n, n, 0, live=False, stuck=False) for n in range(1, limits.SEARCH_NODES))
    assert plan(GREEDY, tree(stuck(0, point(10, 1)), *many), 0, LEFT) == ()


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 6)), max_size=8, unique_by=lambda p: p[0]),
    st.integers(1, 200),
    st.integers(0, 200),
)
def test_plan_never_spends_more_than_is_left(
    width: int, found: list[tuple[int, int]], steps: int, used: int
) -> None:
    left = unspent(Budget(steps=steps), used, 0, 0.0)
    points = tuple(point(seq, red) for seq, red in sorted(found))
    forks = plan(Search("beam", width), tree(stuck(0, *points)), 0, left)
    assert len(forks) <= width
    assert sum(fork.budget.steps for fork in forks) <= max(0, steps - used)
    assert all(fork.budget.steps >= 1 for fork in forks)
