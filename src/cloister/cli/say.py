"""`cloister say`: talk to a run while it works."""

from typing import Annotated

import typer

from cloister.cli.options import RunName, resolve_run, settings_of


def say(
    ctx: typer.Context,
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the run should know or do.")],
) -> None:
    """Say something to a run; it hears it before its next step."""
    from cloister.cli.speak import add, not_empty, typed
    from cloister.core.events import PromptReceived

    settings = settings_of(ctx)
    found = resolve_run(settings, run)
    event = add(settings, found, PromptReceived(not_empty(typed(text)), settings.user))
    print(f"Said to {found} (event {event.seq}).")
