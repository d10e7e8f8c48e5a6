"""`cloister env` and `cloister init`: what a repository needs, and the file that says so."""

from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, put, put_json

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.environment.api import Plan

app = typer.Typer(
    help="What a repository needs to run its checks: show.", no_args_is_help=True, rich_markup_mode=None
)

Repo = Annotated[str, typer.Option("--repo", metavar="PATH", help="A git repository on this machine.")]


@app.command("show")
def show(ctx: typer.Context, repo: Repo = ".", as_json: AsJson = False) -> None:
    """Show the toolchains, packages, set-up and checks of a repository, each with its reason."""
    from cloister.environment.explain import explain

    plan = _plan(ctx, repo)
    if as_json:
        put_json(plan)
        return
    for line in explain(plan):
        put(line)


def init(
    ctx: typer.Context,
    repo: Repo = ".",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write `.cloister/config.toml` from what is detected in a repository."""
    from cloister.core.errors import UserError
    from cloister.core.repository import FILES
    from cloister.environment.explain import settings_text
    from cloister.forge.plain_git import find_checkout

    plan = _plan(ctx, repo)
    top = find_checkout(repo).top
    if not force and (there := [name for name in FILES if (top / name).exists()]):
        raise UserError("file_exists", f"{top / there[0]} exists: edit it, or give --force to replace it.")
    path = top / FILES[1]
    if path.is_symlink() or path.parent.is_symlink():
        raise UserError("bad_path", f"{path} is a link: remove it first.")
    path.parent.mkdir(exist_ok=True)
    path.write_text(settings_text(plan), encoding="utf-8")
    put(f"Wrote {path}. Commit it: runs read it from the commit they start from.")
    for note in plan.notes:
        put(f"Note: {note}.")


def _plan(ctx: typer.Context, repo: str) -> "Plan":
    from cloister.environment.listing import collect, wanted
    from cloister.forge.read import working_files

    async def work(verbs: "Verbs") -> "Plan":
        names, texts = await working_files(repo, wanted)
        return await verbs.environments.plan(collect(names, texts.get))

    return perform(ctx, work)
