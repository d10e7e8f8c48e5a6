"""`cloister model`: which model goes on with a run."""

from typing import Annotated

import typer

from cloister.cli.options import RunName, resolve_run, settings_of

app = typer.Typer(help="Models: who goes on with a run.", no_args_is_help=True)


@app.command("use")
def use(
    ctx: typer.Context,
    run: RunName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="provider:name, as for run --model.")],
) -> None:
    """Let another model go on with a run from its next step; it sees the same conversation."""
    from cloister.app import usual_model
    from cloister.cli.request import model_name
    from cloister.cli.speak import add
    from cloister.core.events import ModelChosen

    settings = settings_of(ctx)
    found = resolve_run(settings, run)
    chosen = usual_model(settings, model_name(name))
    event = add(settings, found, ModelChosen(chosen, settings.user))
    print(f"{chosen} goes on with {found} (event {event.seq}).")
