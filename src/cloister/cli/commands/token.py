"""`cloister token`: named tokens for the server, each with a role."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.options import AsJson, settings_of

if TYPE_CHECKING:
    from cloister.app.tokens import Tokens

app = typer.Typer(
    help="Named tokens for the server, each with a role: add, list, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; what they do is recorded under it.")]


@app.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(
            "--role", help="A viewer looks, an operator works with runs, an admin may do everything."
        ),
    ] = "viewer",
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once; only its hash is kept. Takes effect at once."""
    settings = settings_of(ctx)
    secret = _tokens(ctx).add(name, role, settings.user)
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json({"name": name, "role": role, "token": secret})
        return
    print(secret)
    print(f"The token of {name} ({role}). It is not shown again.", file=sys.stderr)


@app.command("list")
def list_tokens(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the named tokens; the one in the data directory's `token` is an admin's and not among them."""
    found = _tokens(ctx).all()
    if as_json:
        from cloister.cli.screen.shows import put_json

        for token in found:
            put_json({"name": token.name, "role": token.role, "made_at": token.made_at})
        return
    if not found:
        print("No named tokens. Make one: cloister token add NAME --role viewer")
        return
    print(f"{'NAME':<41} {'ROLE':<9} MADE")
    for token in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(token.made_at))
        print(f"{token.name:<41} {token.role:<9} {made}")


@app.command("rm")
def rm(ctx: typer.Context, name: Name) -> None:
    """Remove a token; who holds it is refused from now on."""
    _tokens(ctx).remove(name)
    print(f"Removed the token of {name}.")


def _tokens(ctx: typer.Context) -> "Tokens":
    from cloister.app.tokens import Tokens

    return Tokens(settings_of(ctx).data_dir)
