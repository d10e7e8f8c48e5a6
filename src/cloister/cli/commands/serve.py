"""`cloister serve`: the server of a data directory, in front or in the background."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, settings_of

if TYPE_CHECKING:
    from cloister.app.settings import Settings


def serve(
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Port on loopback; 0 takes any. Default: the setting `port`."
        ),
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Start it detached, return when it is ready.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Say whether one runs; exit 1 when none does.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the one that runs and wait for it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve HTTP and WebSocket on loopback and drive every run of this data directory."""
    from cloister.core.errors import UserError

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
    from cloister.runs.words.lines import seconds

    place = living(settings.data_dir)
    if as_json:
        from cloister.cli.screen.shows import put_json

        known = (
            {"pid": place.pid, "port": place.port, "url": place.url, "since": place.since} if place else {}
        )
        put_json({"running": place is not None, **known})
    elif place is None:
        print(f"not running on {settings.data_dir}. Start it: cloister serve --background")
    else:
        up = seconds(max(0.0, time.time() - place.since))
        print(f"running: {place.url}, process {place.pid}, port {place.port}, up {up}")
    if place is None:
        raise typer.Exit(1)


def _stop(settings: "Settings") -> None:
    from cloister.cli.client.background import stop

    place = stop(settings.data_dir)
    if place is None:
        print("No server was running.")
    else:
        print(f"Stopped the server (process {place.pid}). Unfinished runs go on when it starts again.")


def _background(settings: "Settings", port: int | None) -> None:
    from cloister.cli.client.background import ensure

    place, started = ensure(settings, port)
    if started:
        print(
            f"The server is ready: {place.url} (process {place.pid}, log {settings.data_dir / 'server.log'})"
        )
    else:
        print(f"A server already runs: {place.url} (process {place.pid})")


def _foreground(settings: "Settings", port: int | None) -> None:
    from functools import partial

    import anyio

    from cloister.cli.failures import log_to
    from cloister.server.serve import serve as serve_here

    log_to(sys.stderr)

    def ready(url: str) -> None:
        print(f"Cloister listens on {url}; the token is in {settings.data_dir / 'token'}.", file=sys.stderr)

    anyio.run(partial(serve_here, settings, port=port, ready=ready))
