"""`cloister token`: named tokens for the server, each with a role."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, put, put_json, put_list

if TYPE_CHECKING:
    from cloister.app.verbs.records import LoginInfo, TokenInfo

app = typer.Typer(
    help="Named tokens for the server, each with a role: add, list, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The holder of the token; the log and the audit use this name.")
]


@app.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(
            "--role", help="A viewer reads, an operator starts and steers runs, an admin does everything."
        ),
    ] = "viewer",
    as_json: AsJson = False,
) -> None:
    """Create a token and print it once; only its hash is stored."""
    made = perform(ctx, lambda verbs: verbs.tokens.add(name, role))
    if as_json:
        put_json(made)
        return
    put(made.token)
    put(f"This is the token of {name} ({role}). It is not shown again.", file=sys.stderr)


@app.command("list")
def list_tokens(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the named tokens. The data directory's own admin token is not one of them."""

    def line(token: "TokenInfo") -> str:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(token.made_at))
        return f"{token.name:<41} {token.role:<9} {made}"

    found = perform(ctx, lambda verbs: verbs.tokens.list())
    none = "No named tokens. Create one: cloister token add NAME --role viewer"
    put_list(found, as_json, f"{'NAME':<41} {'ROLE':<9} CREATED", line, none)


@app.command("rm")
def rm(ctx: typer.Context, name: Name) -> None:
    """Remove a token; the server rejects it from now on."""
    perform(ctx, lambda verbs: verbs.tokens.remove(name))
    put(f"Removed the token of {name}.")


@app.command("logins")
def logins(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the browsers that are logged in: your own, and as an admin all."""

    def line(login: "LoginInfo") -> str:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(login.until))
        return f"{login.id:<15} {login.name:<41} {login.role:<9} {until}"

    found = perform(ctx, lambda verbs: verbs.tokens.logins())
    none = "No browser is logged in. Log one in: cloister open"
    put_list(found, as_json, f"{'LOGIN':<15} {'NAME':<41} {'ROLE':<9} UNTIL", line, none)


@app.command("logout")
def logout(
    ctx: typer.Context,
    login: Annotated[str, typer.Argument(metavar="LOGIN", help="As `cloister token logins` lists it.")],
) -> None:
    """End a browser's login; the server rejects its cookie from now on."""
    perform(ctx, lambda verbs: verbs.tokens.end_login(login))
    put(f"Ended {login}.")
