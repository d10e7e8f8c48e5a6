"""`cloister skills`: what models can open beside their tasks."""

from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import check_shared_path, perform
from cloister.cli.options import AsJson, put, put_json, put_list
from cloister.core.errors import UserError
from cloister.core.text import harmless, one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.knowledge import SkillInfo, SkillList, SkillText

app = typer.Typer(
    help="Skills that models can open: list, show.", no_args_is_help=True, rich_markup_mode=None
)

Repo = Annotated[
    str | None,
    typer.Option(
        "--repo",
        metavar="PATH",
        help="Add the skills of this repository's HEAD. Default: the current directory's.",
    ),
]


@app.command("list")
def list_skills(ctx: typer.Context, repo: Repo = None, as_json: AsJson = False) -> None:
    """List the skills that a run would have, and what is wrong with the others."""

    async def work(verbs: "Verbs") -> "SkillList":
        return await verbs.knowledge.skills(await _path(ctx, repo))

    def line(one: "SkillInfo") -> str:
        return f"{one.name:<24} {one.layer:<13} {one.digest[:12]}  {one_line(one.description, 300)}"

    found = perform(ctx, work)
    if as_json:
        put_json(found)
        return
    none = "No skills. Put folders with a SKILL.md into .cloister/skills (docs/guide/company/knowledge.md)."
    put_list(found.skills, False, f"{'NAME':<24} {'FROM':<13} {'CONTENT':<13} DESCRIPTION", line, none)
    for problem in found.problems:
        put(f"! {one_line(problem, 400)}")


@app.command("show")
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A skill.")],
    repo: Repo = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model reads of a skill, with its files and the hash that runs pin."""

    async def work(verbs: "Verbs") -> "SkillText":
        return await verbs.knowledge.skill(name, await _path(ctx, repo))

    found = perform(ctx, work)
    if as_json:
        put_json(found)
        return
    put(f"{found.name}: {one_line(found.description, 1_024)}")
    put(f"from     {found.layer} {one_line(found.source, 400)}")
    put(f"content  {found.digest}")
    for path in found.files:
        put(f"file     {one_line(path, 200)}")
    put("")
    put(harmless(found.text))


async def _path(ctx: typer.Context, repo: str | None) -> str | None:
    """The repository, as its path on the server's machine; None if the current directory is in none."""
    from cloister.cli.request import repository
    from cloister.forge.plain_git import find_checkout

    try:
        path = repository(repo or ".")
        find_checkout(path)
        await check_shared_path(ctx, path)
    except UserError:
        if repo is not None:
            raise
        return None
    return path
