"""`cloister rewind`: let a run go on from an earlier save point."""

from typing import Annotated

import typer

from cloister.cli.options import AsJson, RunName, open_log, settings_of


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
    from cloister.runs.tree import rewindable

    settings = settings_of(ctx)
    with open_log(settings) as log:
        events = log.events(log.resolve(run))
    rewindable(events, to)
    if isinstance(events[-1].body, RunFinished):
        from cloister.cli.fork import fork

        fork(ctx, run, at=to, prompt=None, detach=detach, as_json=as_json)
        return
    from cloister.cli.speak import add

    found = events[0].run
    event = add(settings, found, RewindRequested(to, settings.user))
    if as_json:
        from cloister.cli.jsonl import put_json

        put_json(event)
    else:
        print(f"{found} goes on from event {to}. Watch it: cloister watch {found}")
