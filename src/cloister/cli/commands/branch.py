"""`cloister tree`, `fork`, `rewind` and `rebase`: the attempts of a run, and other ways to continue it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, RunName, put, put_json, typed
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.core.events import Event
    from cloister.runs.attempts.tree import NodeView, PointView, TreeView

_REASON = 100
"""Characters of an attempt's reason that are shown."""


def fork(
    ctx: typer.Context,
    run: RunName,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="SEQ",
            min=1,
            help="The save point. Default: the result of the run, or its most advanced save point.",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="A message to the new run.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Hand it to a server and return at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a new run from a save point of another, with its files and its conversation."""
    from cloister.cli.commands.run import start

    message = None if prompt is None else typed(prompt)
    start(ctx, lambda verbs: verbs.runs.fork(run, at, message), detach=detach, as_json=as_json)


def rewind(
    ctx: typer.Context,
    run: RunName,
    to: Annotated[int, typer.Option("--to", metavar="SEQ", min=1, help="The save point to return to.")],
    detach: Annotated[
        bool, typer.Option("--detach", help="For a finished run: hand it to a server and return at once.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run from an earlier save point; a finished run is forked there."""

    async def work(verbs: "Verbs") -> "Event | None":
        row = await verbs.runs.row(run)
        if row.state == "finished":
            return None
        found = await verbs.runs.rewind(row.id, to)
        return (await verbs.runs.events(found, row.last_seq))[-1]

    event = perform(ctx, work)
    if event is None:
        fork(ctx, run, at=to, prompt=None, detach=detach, as_json=as_json)
    elif as_json:
        put_json(event)
    else:
        put(f"{event.run} continues from event {to}. Watch it: cloister watch {event.run}")


def rebase(ctx: typer.Context, run: RunName) -> None:
    """Replay the change of a finished run on the newest commit of its base, and prove it again there."""
    event = perform(ctx, lambda verbs: verbs.runs.rebase(run), serve=True)
    put(f"{event.run} is replayed on its base. Watch it: cloister watch {event.run}")


def tree(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Show the attempts of a run, where each was forked, and its save points."""
    found = perform(ctx, lambda verbs: verbs.runs.tree(run), quick=True)
    if as_json:
        put_json(found)
        return
    from cloister.cli.screen.terminal import columns

    for line in tree_lines(found, columns(10_000)):
        put(line)


def tree_lines(found: "TreeView", columns: int) -> Iterator[str]:
    """The tree as text, at most `columns` wide; children are below their parent."""
    origin = found.forked_from
    yield f"{found.run}" + (f"  forked from event {origin.seq} of {origin.run}" if origin else "")
    if found.inherited:
        yield from _listed("│ inherited  ", "│            ", found.inherited, columns)
    roots = [node for node in found.nodes if node.parent is None]
    for place, node in enumerate(roots):
        yield from _branch(found, node, "", columns, last=place + 1 == len(roots))


def _branch(found: "TreeView", node: "NodeView", indent: str, columns: int, *, last: bool) -> Iterator[str]:
    head = f"{indent}{'└─' if last else '├─'} {_head(found, node)}"
    why = one_line(node.reason or node.ended or "", _REASON)
    beside = len(head) + 2 + len(why) <= columns
    yield f"{head}  {why}".rstrip() if beside else head
    children = [child for child in found.nodes if child.parent == node.attempt]
    below = indent + ("   " if last else "│  ")
    bar = "│" if children else " "
    if not beside:
        yield f"{below}{bar} {one_line(why, max(20, columns - len(below) - 2))}"
    yield from _listed(f"{below}{bar} saved  ", f"{below}{bar}        ", node.points, columns)
    for place, child in enumerate(children):
        yield from _branch(found, child, below, columns, last=place + 1 == len(children))


def _listed(first: str, then: str, points: "tuple[PointView, ...]", columns: int) -> Iterator[str]:
    """Save points, wrapped to the width."""
    lines: list[list[str]] = []
    room = 0
    for text in _points(points):
        room -= len(text) + 2
        if room < 0 or not lines:
            lines.append([])
            room = columns - len(first) - len(text)
        lines[-1].append(text)
    for place, line in enumerate(lines):
        yield (then if place else first) + "  ".join(line)


def _head(found: "TreeView", node: "NodeView") -> str:
    won = " ★" if node.attempt == found.winner else ""
    warm = f" at {node.temperature:g}" if node.temperature is not None else ""
    model = f"  {one_line(node.model, 60)}{warm}" if node.model else ""
    state = node.outcome or "active"
    if node.helper:
        state = "done" if state == "unproven" else state
    point = f"event {node.at}" if node.at else "the base"
    where = "" if node.at is None else f"  from {point}"
    cost = f"  {node.tokens:,} tokens" if node.tokens else ""
    cost += f", ${node.dollars:.4f}" if node.dollars is not None else ""
    what = "helper" if node.helper else "attempt"
    return f"{what} {node.attempt} {state}{won}{where}{model}{cost}"


def _points(points: "tuple[PointView, ...]") -> list[str]:
    """`17 (3 red)`: the save point and its number of failing tests. Unchanged ones are skipped."""
    shown: list[str] = []
    commit = None
    for point in points:
        if point.commit != commit:
            shown.append(f"{point.seq}" + (f" ({point.red} red)" if point.red is not None else ""))
        commit = point.commit
    return shown
