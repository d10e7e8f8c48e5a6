"""`cloister model`: models on this machine, and who goes on with a run."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, RunName, resolve_run, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from cloister.model.local.files import Shelf

app = typer.Typer(
    help="Models on this machine (fetch, list, rm, serve), and who goes on with a run (use).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Local = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="A local model; without a name the usual one.")
]


@app.command("fetch")
def fetch(ctx: typer.Context, name: Local = None) -> None:
    """Fetch the file of a local model, or verify the one that is there; goes on where it stopped."""
    import anyio

    from cloister.app.wiring import model_shelf
    from cloister.cli.screen.shows import Bar
    from cloister.model.local.fetch import Sources
    from cloister.model.local.fetch import fetch as fetch_file

    settings = settings_of(ctx)
    shelf = model_shelf(settings)
    wanted = _name(shelf, name)
    bar = Bar(wanted, sys.stderr)

    async def main() -> "Path":
        return await fetch_file(shelf, wanted, Sources(settings.file.model_hub), bar.show)

    try:
        path = anyio.run(main)
    finally:
        bar.close()
    print(f"{wanted} is at {path}, verified. Use it: cloister run … --model local:{wanted}")


@app.command("list")
def list_models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models that can run on this machine."""
    from cloister.app.wiring import model_shelf

    shelf = model_shelf(settings_of(ctx))
    rows = [
        {
            "name": file.name,
            "title": file.title,
            "license": file.license,
            "bytes": file.bytes,
            "path": str(shelf.place(file.name)),
            "here": shelf.place(file.name).is_file(),
        }
        for file in shelf.files.values()
    ]
    if as_json:
        from cloister.cli.screen.shows import put_json

        for row in rows:
            put_json(row)
        return
    print(f"{'MODEL':<20} {'SIZE':<9} {'HERE':<5} WHAT")
    for row in rows:
        size = f"{int(str(row['bytes'])) / 1e9:.1f} GB"
        print(f"{row['name']:<20} {size:<9} {'yes' if row['here'] else 'no':<5} {row['title']}")


@app.command("rm")
def rm(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="A local model.")]
) -> None:
    """Remove the file of a local model, also one that arrived in part. A file of your own stays."""
    from cloister.app.wiring import model_shelf
    from cloister.core.errors import UserError

    shelf = model_shelf(settings_of(ctx))
    if shelf.entry(name).name in shelf.own:
        raise UserError("own_file", f"{shelf.place(name)} is yours (local_models): remove it yourself.")
    files = [path for path in (shelf.place(name), shelf.place(name).with_suffix(".part")) if path.exists()]
    for path in files:
        path.unlink()
    print(f"Removed {', '.join(map(str, files))}." if files else f"{name} is not here.")


@app.command("serve")
def serve(
    ctx: typer.Context,
    name: Local = None,
    port: Annotated[int, typer.Option("--port", help="On loopback; 0 takes a free one.")] = 0,
) -> None:
    """Serve a local model to other programs on this machine until Ctrl-C: OpenAI's API, with a key."""
    import anyio

    from cloister.app.wiring import model_shelf
    from cloister.model.local._spawn import serving
    from cloister.model.local.host import order_for

    shelf = model_shelf(settings_of(ctx))
    order = order_for(shelf, name if name and name.startswith("/") else _name(shelf, name), port)

    async def main() -> int:
        shelf.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with serving(order, shelf.folder / "serve.log") as running:
            print(f"CLOISTER_MODEL_URL={running.url}\nCLOISTER_MODEL_KEY={running.key}", flush=True)
            return await running.process.wait()

    raise typer.Exit(1 if anyio.run(main) else 0)


@app.command("use")
def use(
    ctx: typer.Context,
    run: RunName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="provider:name, as for run --model.")],
) -> None:
    """Let another model go on with a run from its next step; it sees the same conversation."""
    from cloister.app.wiring import usual_model
    from cloister.cli.client.speak import add
    from cloister.cli.request import model_name
    from cloister.core.events import ModelChosen

    settings = settings_of(ctx)
    found = resolve_run(settings, run)
    chosen = usual_model(settings, model_name(name))
    event = add(settings, found, ModelChosen(chosen, settings.user))
    print(f"{chosen} goes on with {found} (event {event.seq}).")


def _name(shelf: "Shelf", name: str | None) -> str:
    return shelf.entry(name or next(iter(shelf.files))).name
