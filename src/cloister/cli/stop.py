"""`cloister stop`: end a run; what it has done so far is kept."""

import typer

from cloister.cli.options import RunName, resolve_run, settings_of


def stop(ctx: typer.Context, run: RunName) -> None:
    """Ask a run to stop; what it did up to its last save point is kept."""
    from cloister.cli.speak import add
    from cloister.core.events import StopRequested

    settings = settings_of(ctx)
    found = resolve_run(settings, run)
    add(settings, found, StopRequested(settings.user))
    print(f"Asked {found} to stop. See it end: cloister watch {found}")
