"""Trees and comparisons as a person reads them, on a narrow terminal and on a wide one."""

import pytest

from cloister.cli.commands.branch import tree_lines
from cloister.cli.commands.result import table
from cloister.core.diagnosis import Comparison
from cloister.core.ids import RunId
from cloister.core.requests import FileChange, Usage
from cloister.runs.attempts.compare import Compared, Side
from cloister.runs.attempts.tree import NodeView, PointView, TreeView

WHY = "The attempt went round in circles: 4 turns in a row: bash make all → the same three lines of output"


def side(attempt: int, outcome: str, found: Comparison) -> Side:
    return Side(
        name=f"r-1egwfgfb71jv/{attempt}",
        run=RunId("r-1egwfgfb71jv"),
        attempt=attempt,
        prompt="p",
        outcome=outcome,  # pyright: ignore[reportArgumentType]
        reason=WHY,
        comparison=found,
        steps=12,
        usage=Usage(25_000, 960),
        cost=0.25,
        seconds=61.0,
        commit="c",
        files=(FileChange("a.py", 2, 1, "modified"),),
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_two_sides_stay_beside_each_other_and_nothing_is_cut_off(columns: int) -> None:
    cheat = Comparison(still=("a",), missing=("b",), weakened=("c",), new=("d",))
    found = Compared(side(0, "proven", Comparison(fixed=("a",), green=True)), side(1, "red", cheat), True, "")
    lines = list(table(found, columns))
    assert max(map(len, lines)) <= columns
    middle = lines[0].index("r-1egwfgfb71jv/1")
    assert all(line[middle - 2 : middle] == "  " for line in lines if len(line) > middle), "one column each"
    left = " ".join(line[10:middle].strip() for line in lines).split()
    right = " ".join(line[middle:] for line in lines).split()
    assert " ".join(WHY.split()) in " ".join(left)
    assert " ".join(WHY.split()) in " ".join(right)
    assert "1 new, 2 deleted, skipped or weakened" in " ".join(right)
    assert "weakened" not in " ".join(left)
    assert "25,960 tokens, $0.2500" in " ".join(left)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_tree_with_many_save_points_keeps_its_shape(columns: int) -> None:
    points = tuple(PointView(seq, seq, f"{seq:040}", 2) for seq in range(100, 140))
    root = NodeView(0, None, None, None, "anthropic:claude", 0.7, "red", WHY, points, 48_210, 0.1622)
    child = NodeView(1, 0, 110, f"attempt 0 is stuck: {WHY}", "anthropic:claude", None, None, None, points)
    tree = TreeView(RunId("r-1"), None, (), None, (root, child))
    lines = list(tree_lines(tree, columns))
    assert max(map(len, lines)) <= columns
    assert [line for line in lines if "attempt 1 active  from event 110" in line]
    text = " ".join(lines)
    assert all(text.count(f"{point.seq} (2 red)") == 2 for point in points)
    below = lines[lines.index(next(line for line in lines if "attempt 0" in line)) + 1 :]
    assert all(line.startswith(("   │", "   └─", "        ")) for line in below), (
        "the lines of the tree do not break"
    )
