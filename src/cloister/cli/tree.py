"""`cloister tree`: a run's attempts, where they were forked, and their save points."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from cloister.cli.options import AsJson, RunName, open_log, settings_of

if TYPE_CHECKING:
    from cloister.runs.tree import NodeView, PointView, TreeView


def tree(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Show a run's attempts, where each was forked, and the save points to fork from. Needs no server."""
    from cloister.runs.tree import tree as fold

    with open_log(settings_of(ctx)) as log:
        found = fold(log.events(log.resolve(run)))
    if as_json:
        from cloister.cli.jsonl import put_json

        put_json(found)
        return
    for line in tree_lines(found):
        print(line)


def tree_lines(found: "TreeView") -> Iterator[str]:
    """The tree as text; children stand below their parent."""
    origin = found.forked_from
    yield f"{found.run}" + (f"  goes on from event {origin.seq} of {origin.run}" if origin else "")
    if found.inherited:
        yield f"│ inherited  {_points(found.inherited)}"
    roots = [node for node in found.nodes if node.parent is None]
    for place, node in enumerate(roots):
        yield from _branch(found, node, "", last=place + 1 == len(roots))


def _branch(found: "TreeView", node: "NodeView", indent: str, *, last: bool) -> Iterator[str]:
    yield f"{indent}{'└─' if last else '├─'} {_head(found, node)}"
    children = [child for child in found.nodes if child.parent == node.attempt]
    below = indent + ("   " if last else "│  ")
    bar = "│" if children else " "
    if node.points:
        yield f"{below}{bar} saved  {_points(node.points)}"
    for place, child in enumerate(children):
        yield from _branch(found, child, below, last=place + 1 == len(children))


def _head(found: "TreeView", node: "NodeView") -> str:
    from cloister.core.text import one_line

    won = " ★" if node.attempt == found.winner else ""
    warm = f" at {node.temperature:g}" if node.temperature is not None else ""
    model = f"  {one_line(node.model, 60)}{warm}" if node.model else ""
    state = node.outcome or "works"
    point = f"event {node.at}" if node.at else "the base"
    where = "" if node.at is None else f"  from {point}"
    cost = f"  {node.tokens:,} tokens" if node.tokens else ""
    cost += f", ${node.dollars:.4f}" if node.dollars is not None else ""
    why = node.reason if node.reason else node.ended
    return f"attempt {node.attempt} {state}{won}{where}{model}{cost}  {one_line(why or '', 100)}".rstrip()


def _points(points: "tuple[PointView, ...]") -> str:
    """`17 (3 red)`: the number to fork from, and how far from green it is. Those that changed nothing are left out."""
    shown: list[str] = []
    commit = None
    for point in points:
        if point.commit != commit:
            shown.append(f"{point.seq}" + (f" ({point.red} red)" if point.red is not None else ""))
        commit = point.commit
    return "  ".join(shown)
