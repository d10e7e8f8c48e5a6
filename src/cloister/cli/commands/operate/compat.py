"""`cloister compat env`: the variables that lead the clients of other services to this server."""

from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import typer

from cloister.cli.client.open import named_server, transport
from cloister.cli.options import AsJson, put, put_json, settings_of

if TYPE_CHECKING:
    from cloister.cli.client.http import Server

app = typer.Typer(
    help="Programs that were written for other sandbox services: env.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """Programs that were written for other sandbox services: env."""


VARIABLES: dict[str, dict[str, str]] = {
    "e2b": {
        "E2B_API_KEY": "{token}",
        "E2B_API_URL": "{url}/compat/e2b",
        "E2B_SANDBOX_URL": "{url}/compat/e2b",
    },
    "pandastack": {"PANDASTACK_API_KEY": "{token}", "PANDASTACK_API": "{url}/compat/pandastack"},
    # Its client reads no variables: a program passes them on.
    "modbox": {"MODBOX_TOKEN": "{token}", "MODBOX_BASE_URL": "{url}/compat/modbox"},
}
"""Service → variable → value, of the server's address and a token."""


@app.command("env")
def env(
    ctx: typer.Context,
    service: Annotated[
        Literal["e2b", "pandastack", "modbox"],
        typer.Argument(metavar="SERVICE", help="Whose client the program uses: e2b, pandastack or modbox."),
    ],
    as_json: AsJson = False,
) -> None:
    """Print the variables to set: `eval "$(cloister compat env SERVICE)"`. They hold a token."""
    if named_server(ctx) is None:
        from cloister.cli.client.discover import ensure

        ensure(settings_of(ctx))
    server: Server = anyio.run(transport(ctx).find)
    told = {
        name: value.format(url=server.url, token=server.token) for name, value in VARIABLES[service].items()
    }
    if as_json:
        put_json(told)
        return
    for name, value in told.items():
        put(f"export {name}={value}")
