"""`cloister tools`: what is added to the tools of models."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.client.open import check_shared_path, perform
from cloister.cli.options import AsJson, complete_tool, put, put_json, put_list
from cloister.core.errors import UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.tools import ToolInfo, ToolList, ToolTried

app = typer.Typer(help="Tools of your own: list, try.", no_args_is_help=True, rich_markup_mode=None)

Repo = Annotated[
    str | None,
    typer.Option(
        "--repo", metavar="PATH", help="Add the tools of this repository. Default: the current directory's."
    ),
]


@app.command("list")
def list_tools(ctx: typer.Context, repo: Repo = None, as_json: AsJson = False) -> None:
    """List the tools and MCP servers that a run would have, what the rules say of each, and what cannot be used."""

    async def work(verbs: "Verbs") -> "ToolList":
        return await verbs.tools.list(await _path(ctx, repo))

    def line(one: "ToolInfo") -> str:
        where = one_line(one.where, 20)
        return f"{one.name:<20} {one.kind:<9} {where:<20} {one.effect:<6} {one_line(one.source, 60)}"

    found = perform(ctx, work)
    if as_json:
        put_json(found)
        return
    none = "No tools. Declare one in .cloister/tools (docs/guide/company/tools.md)."
    put_list(found.tools, False, f"{'NAME':<20} {'KIND':<9} {'RUNS IN':<20} {'RULES':<6} FROM", line, none)
    for problem in found.problems:
        put(f"! {one_line(problem, 400)}")


@app.command("try")
def try_tool(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A tool, or SERVER.TOOL.", autocompletion=complete_tool),
    ],
    arguments: Annotated[
        str,
        typer.Argument(metavar="[JSON]", help="Its arguments as a JSON object; `-` reads them from stdin."),
    ] = "{}",
    repo: Repo = None,
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool once as a run would, in a sandbox of the repository's environment; exit 1 if it fails."""
    given = _arguments(sys.stdin.read(1_048_576) if arguments == "-" else arguments)

    async def work(verbs: "Verbs") -> "ToolTried":
        return await verbs.tools.call(name, given, await _path(ctx, repo), ref)

    done = perform(ctx, work)
    if as_json:
        put_json(done)
    else:
        put(done.text.rstrip("\n"))
        put(f"{'ok' if done.ok else 'failed'} after {done.seconds:.1f} s ({done.rule})", file=sys.stderr)
    raise typer.Exit(0 if done.ok else 1)


def _arguments(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        why = one_line(str(error), 200)
        raise UserError(
            "bad_arguments", f"The arguments are a JSON object, as in '{{\"n\": 1}}': {why}."
        ) from None


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
