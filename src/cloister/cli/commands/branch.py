"""`cloister fork`: a new run that goes on from a save point of another."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, RunName, open_log, settings_of

if TYPE_CHECKING:
    from cloister.runs.attempts.tree import NodeView, PointView, TreeView


def fork(
    ctx: typer.Context,
    run: RunName,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="SEQ",
            min=1,
            help="The save point; else where its result or furthest work stands.",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="What the new run is told at that point.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Let a server do it and return at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on from a save point in a new run, with its files and its conversation; also of a run that works."""
    from cloister.cli.client.speak import typed
    from cloister.cli.commands.run import attend_run, detach_run
    from cloister.runs.attempts.tree import fork_request

    settings = settings_of(ctx)
    with open_log(settings) as log:
        events = log.events(log.resolve(run))
    new = fork_request(events, at, None if prompt is None else typed(prompt))
    if detach:
        detach_run(settings, new, as_json)
        return
    raise typer.Exit(attend_run(settings, new, as_json))


# `cloister rewind`: let a run go on from an earlier save point.


def rewind(
    ctx: typer.Context,
    run: RunName,
    to: Annotated[int, typer.Option("--to", metavar="SEQ", min=1, help="The save point to go back to.")],
    detach: Annotated[
        bool, typer.Option("--detach", help="For a finished run: let a server do it and return at once.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a run go on from an earlier save point; one that is finished is forked there."""
    from cloister.core.events import RewindRequested, RunFinished
    from cloister.runs.attempts.tree import rewindable

    settings = settings_of(ctx)
    with open_log(settings) as log:
        events = log.events(log.resolve(run))
    rewindable(events, to)
    if isinstance(events[-1].body, RunFinished):
        pass

        fork(ctx, run, at=to, prompt=None, detach=detach, as_json=as_json)
        return
    from cloister.cli.client.speak import add

    found = events[0].run
    event = add(settings, found, RewindRequested(to, settings.user))
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(event)
    else:
        print(f"{found} goes on from event {to}. Watch it: cloister watch {found}")


# `cloister tree`: a run's attempts, where they were forked, and their save points.


_REASON = 100
"""What is shown of why an attempt was forked or ended."""


def tree(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Show a run's attempts, where each was forked, and the save points to fork from. Needs no server."""
    from cloister.runs.attempts.tree import tree as fold

    with open_log(settings_of(ctx)) as log:
        found = fold(log.events(log.resolve(run)))
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(found)
        return
    from cloister.cli.screen.terminal import columns

    for line in tree_lines(found, columns(10_000)):
        print(line)


def tree_lines(found: "TreeView", columns: int) -> Iterator[str]:
    """The tree as text, at most so many columns wide; children stand below their parent."""
    origin = found.forked_from
    yield f"{found.run}" + (f"  goes on from event {origin.seq} of {origin.run}" if origin else "")
    if found.inherited:
        yield from _listed("│ inherited  ", "│            ", found.inherited, columns)
    roots = [node for node in found.nodes if node.parent is None]
    for place, node in enumerate(roots):
        yield from _branch(found, node, "", columns, last=place + 1 == len(roots))


def _branch(found: "TreeView", node: "NodeView", indent: str, columns: int, *, last: bool) -> Iterator[str]:
    from cloister.core.text import one_line

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
    """Save points in as many lines as it takes."""
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
    from cloister.core.text import one_line

    won = " ★" if node.attempt == found.winner else ""
    warm = f" at {node.temperature:g}" if node.temperature is not None else ""
    model = f"  {one_line(node.model, 60)}{warm}" if node.model else ""
    state = node.outcome or "works"
    point = f"event {node.at}" if node.at else "the base"
    where = "" if node.at is None else f"  from {point}"
    cost = f"  {node.tokens:,} tokens" if node.tokens else ""
    cost += f", ${node.dollars:.4f}" if node.dollars is not None else ""
    return f"attempt {node.attempt} {state}{won}{where}{model}{cost}"


def _points(points: "tuple[PointView, ...]") -> list[str]:
    """`17 (3 red)`: the number to fork from, and how far from green it is. Those that changed nothing are left out."""
    shown: list[str] = []
    commit = None
    for point in points:
        if point.commit != commit:
            shown.append(f"{point.seq}" + (f" ({point.red} red)" if point.red is not None else ""))
        commit = point.commit
    return shown
