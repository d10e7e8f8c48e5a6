"""`cloister template`: the file systems that sandboxes start from."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import check_shared_path, perform
from cloister.cli.options import AsJson, put, put_json, put_list
from cloister.core.text import harmless, one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.sandbox.templates.catalog import TemplateInfo
    from cloister.sandbox.templates.recipes import Recipe

app = typer.Typer(
    help="The file systems that sandboxes start from: ls, build, show, log, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A template's name.")]
ReplaceBuiltIn = Annotated[
    bool, typer.Option("--replace-built-in", help="Let the recipe take the place of a built-in template.")
]
NoTls = Annotated[bool, typer.Option("--no-tls", help="Connect to the registry over plain HTTP.")]
Network = Annotated[
    bool,
    typer.Option("--network", help="Let the steps of a Dockerfile reach the hosts that the policy allows."),
]


@app.command("ls")
def ls(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the templates."""
    found = perform(ctx, lambda verbs: verbs.templates.list())
    put_list(found, as_json, f"{'TEMPLATE':<22} {'KIND':<13} {'READY':<14} FROM", _line)


@app.command("show")
def show(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show one template: its recipe and its newest build."""
    from cloister.runs.event_text.lines import seconds
    from cloister.sandbox.templates.recipes import to_toml

    info = perform(ctx, lambda verbs: verbs.templates.get(name))
    if as_json:
        put_json(info)
        return
    put(to_toml(info.recipe), end="")
    if info.about is None:
        put(f"# not built yet: cloister template build {name}")
        return
    about = info.about
    put(f"# built {time.strftime('%Y-%m-%d %H:%M', time.localtime(about.built_at))}", end="")
    put(f" in {seconds(about.seconds)}; home {one_line(about.home, 80)}", end="")
    put(f"; {'git' if about.git else 'no git'}, {'bash' if about.bash else 'no bash'}")
    for label, value in (("image", about.digest), ("commit", about.commit)):
        if value is not None:
            put(f"# {label} {one_line(value, 100)}")
    for key, value in about.env.items():
        put(f"# env {one_line(f'{key}={value}', 200)}")


@app.command("build")
def build(  # noqa: PLR0913  (each parameter is an option of the command)
    ctx: typer.Context,
    name: Name,
    packages: Annotated[
        str | None, typer.Option("--packages", metavar="'A B'", help="Install these Debian packages.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image", metavar="IMAGE", help="An image: registry/name:tag, an OCI layout, a tar file."
        ),
    ] = None,
    dockerfile: Annotated[
        str | None, typer.Option("--dockerfile", metavar="PATH", help="A Dockerfile, or its directory.")
    ] = None,
    devcontainer: Annotated[
        str | None,
        typer.Option("--devcontainer", metavar="REPO", help="Use the devcontainer.json of this repository."),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option("--repository", metavar="REPO", help="Clone it, set it up and run its checks once."),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="SNAPSHOT", help="The files of a snapshot, by name or id."),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", help="With --repository: the template it starts from.")
    ] = "default",
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit of the repository.")] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="With --repository: its maximum age while a server runs.")
    ] = 30.0,
    user: Annotated[
        str | None, typer.Option("--user", help="The user of the image that the agent works as.")
    ] = None,
    network: Network = False,
    no_tls: NoTls = False,
    replace_built_in: ReplaceBuiltIn = False,
    again: Annotated[bool, typer.Option("--again", help="Rebuild it even if it is ready.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build a template; an option that names its kind stores the recipe first."""
    from cloister.cli.request import TemplateOptions, recipe_of

    kinds = (packages, image, dockerfile, devcontainer, repository, snapshot)
    options = TemplateOptions(*kinds, base, ref, minutes, user, network=network, tls=not no_tls)
    info = _build(ctx, name, recipe_of(options), again=again, replace_built_in=replace_built_in)
    if as_json:
        put_json(info)
        return
    put(f"The template {name} is ready. Use it: cloister sandbox create --template {name}")
    if info.about is not None and not info.about.git:
        put("It has no git: sandboxes can start from it, runs cannot.", file=sys.stderr)


def _build(
    ctx: typer.Context, name: str, recipe: "Recipe | None", *, again: bool, replace_built_in: bool
) -> "TemplateInfo":
    from cloister.cli.failures import log_to
    from cloister.cli.request import paths
    from cloister.cli.screen.screen import Progress

    log_to(sys.stderr)

    async def work(verbs: "Verbs") -> "TemplateInfo":
        if recipe is not None:
            await check_shared_path(ctx, *paths(recipe))
            await verbs.templates.describe(name, recipe, replace_built_in=replace_built_in)
        return await verbs.templates.build(name, again=again, report=Progress())

    return perform(ctx, work)


@app.command("log")
def log(ctx: typer.Context, name: Name) -> None:
    """Print the output of the last build of a template."""
    put(harmless(perform(ctx, lambda verbs: verbs.templates.log(name))), end="")


@app.command("rm")
def rm(ctx: typer.Context, name: Name) -> None:
    """Remove a template and its recipe; rejected while a sandbox uses it."""
    perform(ctx, lambda verbs: verbs.templates.remove(name))
    put(f"Removed {name}.")


def _line(info: "TemplateInfo") -> str:
    from cloister.cli.request import source
    from cloister.runs.event_text.lines import seconds

    kind, origin = source(info.recipe)
    ready = "failed" if info.failed else "no"
    if info.about is not None and not info.about.git:
        origin = f"{origin} (no git: no run can start from it)"
    if info.about is not None:
        ready = (
            "yes"
            if not info.about.built_at
            else f"{seconds(max(0.0, time.time() - info.about.built_at))} ago"
        )
    return f"{info.name:<22} {kind:<13} {ready:<14} {one_line(origin, 96)}"
