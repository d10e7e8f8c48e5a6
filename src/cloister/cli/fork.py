"""`cloister fork`: a new run that goes on from a save point of another."""

from typing import Annotated

import typer

from cloister.cli.options import AsJson, RunName, open_log, settings_of


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
    from cloister.cli.run import attend_run, detach_run
    from cloister.cli.speak import typed
    from cloister.runs.forking import fork_request

    settings = settings_of(ctx)
    with open_log(settings) as log:
        events = log.events(log.resolve(run))
    new = fork_request(events, at, None if prompt is None else typed(prompt))
    if detach:
        detach_run(settings, new, as_json)
        return
    raise typer.Exit(attend_run(settings, new, as_json))
