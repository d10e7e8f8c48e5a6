"""`cloister model`: local models, and the model of a run."""

from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import check_shared_path, perform
from cloister.cli.options import (
    AsJson,
    RunName,
    complete_model,
    local_only,
    put,
    put_json,
    put_list,
    settings_of,
)

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import LocalModel

app = typer.Typer(
    help="Local models (fetch, add, list, rm, serve), roles and prices (roles, try), and the model of a run (use).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Local = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="A local model. Default: the first of the list.",
        autocompletion=complete_model,
    ),
]


@app.command("fetch")
def fetch(ctx: typer.Context, name: Local = None) -> None:
    """Download the file of a local model, or verify it; resumes an interrupted download."""
    from cloister.cli.screen.screen import Progress

    model = perform(ctx, lambda verbs: verbs.models.fetch(name, Progress()))
    put(f"{model.name} is at {model.path}, verified. Use it: cloister run … --model local:{model.name}")


@app.command("add")
def add(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="A GGUF file, or the https:// address of one.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The model's name. Default: the file's name.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="The SHA-256 that the file must have.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy or download a GGUF file and keep it as a local model; resumes an interrupted download."""
    from pathlib import Path

    from cloister.cli.screen.screen import Progress

    wanted = source if "://" in source else str(Path(source).expanduser().absolute())

    async def work(verbs: "Verbs") -> "LocalModel":
        await check_shared_path(ctx, wanted)
        return await verbs.models.add(wanted, name, sha256, Progress())

    model = perform(ctx, work)
    if as_json:
        put_json(model)
        return
    put(f"{model.name} is at {model.path}, SHA-256 {model.sha256}{' as given' if sha256 else ''}.")
    put(f"Use it: cloister run … --model local:{model.name}")


@app.command("list")
def list_models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models that can run on this machine."""
    found = perform(ctx, lambda verbs: verbs.models.list())
    wide = max(20, *(len(model.name) for model in found))

    def line(model: "LocalModel") -> str:
        size = f"{model.bytes / 1e9:.1f} GB"
        return f"{model.name:<{wide}} {size:<9} {'yes' if model.here else 'no':<5} {model.title}"

    put_list(found, as_json, f"{'MODEL':<{wide}} {'SIZE':<9} {'HERE':<5} DESCRIPTION", line)


@app.command("rm")
def rm(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A local model.", autocompletion=complete_model)
    ],
) -> None:
    """Remove the file of a local model, fetched or added, complete or not. Files named in the settings stay."""
    files = perform(ctx, lambda verbs: verbs.models.remove(name))
    put(f"Removed {', '.join(files)}." if files else f"{name} is not downloaded.")


@app.command("roles")
def roles(
    ctx: typer.Context,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="REPO", help="For this repository. Default: in general.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List which models serve which role, with prices in dollars per million tokens."""
    found = perform(ctx, lambda verbs: verbs.models.roles(repo))
    if as_json:
        put_json(*found)
        return
    wide = max(20, *(len(model.name) for role in found for model in role.models), 20)
    put(f"{'ROLE':<10} {'MODEL':<{wide}} {'IN':>8} {'OUT':>8} {'WINDOW':>10}  NOTE")
    for role in found:
        if not role.models:
            put(f"{role.role:<10} {role.problem}")
        for model in role.models:
            prices = [
                "?" if price is None else f"{price:.2f}" for price in (model.input_price, model.output_price)
            ]
            size = "?" if model.window is None else f"{model.window:,}"
            put(
                f"{role.role:<10} {model.name:<{wide}} {prices[0]:>8} {prices[1]:>8} {size:>10}  {model.problem}"
            )


@app.command("try")
def try_out(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="provider:name, as for run --model.")],
    as_json: AsJson = False,
) -> None:
    """Ask a model for one word, which costs what it costs; exit 1 if it does not answer."""
    from cloister.cli.request import model_name

    found = perform(ctx, lambda verbs: verbs.models.try_out(model_name(name) or name))
    if as_json:
        put_json(found)
    else:
        cost = "" if found.cost is None else f", ${found.cost:.4f}"
        put(
            f"{found.name} {'answered' if found.ok else 'failed'} after {found.seconds:.1f} s{cost}: {found.text}"
        )
    if not found.ok:
        raise typer.Exit(1)


@app.command("serve")
def serve(
    ctx: typer.Context,
    name: Local = None,
    port: Annotated[int, typer.Option("--port", help="Port on loopback; 0 takes any free port.")] = 0,
) -> None:
    """Serve a local model to other programs on this machine until Ctrl-C: OpenAI's API, with a key."""
    import anyio

    from cloister.app.config import model_shelf
    from cloister.model.local._spawn import serving
    from cloister.model.local.host import order_for

    local_only(ctx, "model serve")
    shelf = model_shelf(settings_of(ctx))
    wanted = name if name and name.startswith("/") else shelf.entry(name or next(iter(shelf.files))).name
    order = order_for(shelf, wanted, port)

    async def main() -> int:
        shelf.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with serving(order, shelf.folder / "serve.log") as running:
            put(f"CLOISTER_MODEL_URL={running.url}\nCLOISTER_MODEL_KEY={running.key}", flush=True)
            return await running.process.wait()

    raise typer.Exit(1 if anyio.run(main) else 0)


@app.command("use")
def use(
    ctx: typer.Context,
    run: RunName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="provider:name, as for run --model.")],
) -> None:
    """Switch a run to another model from its next step; the conversation stays the same."""
    from cloister.cli.request import model_name
    from cloister.core.events import Event, ModelChosen

    wanted = model_name(name) or name

    async def work(verbs: "Verbs") -> Event:
        await check_shared_path(ctx, wanted.removeprefix("script:"))
        return await verbs.runs.use_model(run, wanted)

    event = perform(ctx, work)
    chosen = event.body.model if isinstance(event.body, ModelChosen) else wanted
    put(f"{event.run} continues with {chosen} (event {event.seq}).")
