"""`cloister serve`: the server of a data directory, in the foreground or in the background."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, local_only, put, put_json, settings_of
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.settings import Settings


def serve(
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Port on loopback; 0 takes any free port. Default: the setting `port`.",
        ),
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Start it detached and return when it is ready.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print whether a server is running; exit 1 if not.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running server and wait for it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve HTTP and WebSocket on loopback and drive every run of this data directory."""
    local_only(ctx, "serve")
    if background + status + stop > 1:
        raise UserError("bad_options", "Give one of --background, --status and --stop.")
    settings = settings_of(ctx)
    if status:
        _status(settings, as_json)
    elif stop:
        _stop(settings)
    elif background:
        _background(settings, port)
    else:
        _foreground(settings, port)


def _status(settings: "Settings", as_json: bool) -> None:
    from cloister.cli.client.discover import living
    from cloister.runs.event_text.lines import seconds

    found = living(settings.data_dir)
    if as_json:
        known = (
            {"pid": found.pid, "port": found.port, "url": found.url, "since": found.since} if found else {}
        )
        put_json({"running": found is not None, **known})
    elif found is None:
        put(f"not running on {settings.data_dir}. Start it: cloister serve --background")
    else:
        up = seconds(max(0.0, time.time() - found.since))
        put(f"running: {found.url}, process {found.pid}, port {found.port}, up {up}")
    if found is None:
        raise typer.Exit(1)


def _stop(settings: "Settings") -> None:
    from cloister.cli.client.discover import stop

    found = stop(settings.data_dir)
    if found is None:
        put("No server was running.")
    else:
        put(f"Stopped the server (process {found.pid}). Unfinished runs resume when it starts again.")


def _background(settings: "Settings", port: int | None) -> None:
    from cloister.cli.client.discover import ensure

    found, started = ensure(settings, port)
    if started:
        put(f"The server is ready: {found.url} (process {found.pid}, log {settings.data_dir / 'server.log'})")
    else:
        put(f"A server is already running: {found.url} (process {found.pid})")


def _foreground(settings: "Settings", port: int | None) -> None:
    from functools import partial

    import anyio

    from cloister.cli.failures import log_to
    from cloister.server.serve import serve as serve_here

    log_to(sys.stderr)

    def ready(url: str) -> None:
        put(f"Cloister listens on {url}; the token is in {settings.data_dir / 'token'}.", file=sys.stderr)

    anyio.run(partial(serve_here, settings, port=port, ready=ready))
