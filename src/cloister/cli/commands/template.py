"""`cloister template`: what sandboxes start from."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, settings_of

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.sandbox.templates.catalog import TemplateInfo, Templates
    from cloister.sandbox.templates.recipes import Recipe

app = typer.Typer(
    help="What sandboxes start from: ls, build, show, log, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A template's name.")]


@app.command("ls")
def ls(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the templates. Needs no server."""
    found = _templates(ctx).all()
    if as_json:
        from cloister.cli.screen.shows import put_json

        for info in found:
            put_json(info)
        return
    print(f"{'TEMPLATE':<20} {'KIND':<13} {'READY':<14} FROM")
    for info in found:
        print(_line(info, time.time()))


@app.command("show")
def show(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show one template: its recipe and what is known of its newest build."""
    from cloister.core.text import one_line
    from cloister.runs.words.lines import seconds
    from cloister.sandbox.templates.recipes import to_toml

    info = _templates(ctx).info(name)
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(info)
        return
    print(to_toml(info.recipe), end="")
    if info.about is None:
        print(f"# not built yet: cloister template build {name}")
        return
    about = info.about
    print(f"# built {time.strftime('%Y-%m-%d %H:%M', time.localtime(about.built_at))}", end="")
    print(f" in {seconds(about.seconds)}; home {one_line(about.home, 80)}", end="")
    print(f"; {'git' if about.git else 'no git'}, {'bash' if about.bash else 'no bash'}")
    for label, value in (("image", about.digest), ("commit", about.commit)):
        if value is not None:
            print(f"# {label} {one_line(value, 100)}")
    for key, value in about.env.items():
        print(f"# env {one_line(f'{key}={value}', 200)}")


@app.command("build")
def build(  # noqa: PLR0913  (each parameter is an option of the command)
    ctx: typer.Context,
    name: Name,
    packages: Annotated[
        str | None, typer.Option("--packages", metavar="'A B'", help="Made of these Debian packages.")
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
        typer.Option("--devcontainer", metavar="REPO", help="What this repository's file asks for."),
    ] = None,
    repository: Annotated[
        str | None, typer.Option("--repository", metavar="REPO", help="Warmed: cloned, set up, checked once.")
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="SNAPSHOT", help="The files that a snapshot kept, by name or id."),
    ] = None,
    base: Annotated[str, typer.Option("--base", help="With --repository: what it is made from.")] = "default",
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit of the repository.")] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="With --repository: how old it may get while a server runs.")
    ] = 30.0,
    user: Annotated[str | None, typer.Option("--user", help="A user of the image to work as.")] = None,
    network: Annotated[
        bool, typer.Option("--network", help="The steps of a Dockerfile may use this machine's network.")
    ] = False,
    no_tls: Annotated[bool, typer.Option("--no-tls", help="The registry speaks plain HTTP.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Build it anew although it is ready.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a template, if a kind is given, and build it. Needs no server."""
    from cloister.cli.recipe import Asked, recipe_of

    asked = Asked(
        packages=packages,
        image=image,
        dockerfile=dockerfile,
        devcontainer=devcontainer,
        repository=repository,
        snapshot=snapshot,
        base=base,
        ref=ref,
        minutes=minutes,
        user=user,
        network=network,
        tls=not no_tls,
    )
    _say_ready(_build(settings_of(ctx), name, recipe_of(asked), again=again), name, as_json=as_json)


def _say_ready(info: "TemplateInfo", name: str, *, as_json: bool) -> None:
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(info)
        return
    print(f"The template {name} is ready. Use it: cloister sandbox create --template {name}")
    if info.about is not None and not info.about.git:
        print("It has no git, so sandboxes can start from it and runs cannot.", file=sys.stderr)


@app.command("log")
def log(ctx: typer.Context, name: Name) -> None:
    """Print what the last build of a template said."""
    from cloister.core.text import harmless

    print(harmless(_templates(ctx).log(name)), end="")


@app.command("rm")
def rm(ctx: typer.Context, name: Name) -> None:
    """Remove a template and forget its recipe; refused while a sandbox uses it."""
    import anyio

    from cloister.runs.templates import forget, repositories

    count = anyio.run(forget, _templates(ctx), repositories(settings_of(ctx).data_dir), name)
    print(f"Removed {name} ({count} built).")


def _templates(ctx: typer.Context) -> "Templates":
    from cloister.sandbox.templates.catalog import Templates

    settings = settings_of(ctx)
    return Templates(settings.data_dir / "templates", settings.path)


def _build(settings: "Settings", name: str, recipe: "Recipe | None", *, again: bool) -> "TemplateInfo":
    import anyio

    from cloister.app.wiring import open_app
    from cloister.cli.failures import log_to

    log_to(sys.stderr)

    async def work() -> "TemplateInfo":
        async with open_app(settings, role="embedded") as app:
            templates = app.workshop.templates
            if recipe is not None:
                templates.keep_recipe(name, recipe)
            templates.recipe(name)
            await app.workshop.prepare(name, Shown(), again=again)
            return templates.info(name)

    return anyio.run(work)


class Shown:
    """Progress on stderr: one line that changes on a terminal, a line per step elsewhere."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, fraction: float | None, note: str) -> None:
        from cloister.core.text import one_line

        share = "     " if fraction is None else f"{fraction:4.0%} "
        line = f"{share} {one_line(note, 70)}"
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{line}", end="\n" if fraction == 1.0 else "", file=sys.stderr, flush=True)
        elif line != self._last:
            print(line, file=sys.stderr, flush=True)
        self._last = line


def _line(info: "TemplateInfo", now: float) -> str:
    from cloister.cli.recipe import source
    from cloister.core.text import one_line
    from cloister.runs.words.lines import seconds

    kind, origin = source(info.recipe)
    ready = "no"
    if info.about is not None:
        ready = "yes" if not info.about.built_at else f"{seconds(max(0.0, now - info.about.built_at))} ago"
    return f"{info.name:<20} {kind:<13} {ready:<14} {one_line(origin, 72)}"
