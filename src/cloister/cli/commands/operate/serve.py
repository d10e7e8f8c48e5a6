"""`cloister serve`: the server of a data directory; `cloister open`: its page in a browser."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec import structs

from cloister.cli.options import RUN_HELP, AsJson, complete_run, local_only, put, put_json, settings_of
from cloister.core.errors import UserError

if TYPE_CHECKING:
    from cloister.app.settings import MachineRole, Settings
    from cloister.app.verbs.api import Verbs


ClusterServers = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NATS",
        help="Work with the other machines on these NATS servers, nats://host:4222, comma-separated.",
    ),
]
MachineName = Annotated[
    str | None, typer.Option("--name", help="This machine's name in the cluster. Default: its host name.")
]
RoleHere = Annotated[
    Literal["api", "worker", "both"] | None,
    typer.Option("--role", help="Serve people (api), drive runs (worker), or both."),
]


def serve(  # noqa: PLR0913  (each is one option)
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Port; 0 takes any free port. Default: the setting `port`.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="Listen on this address of the machine, e.g. 0.0.0.0 or [::1]:8443, instead of loopback; needs TLS or `proxies`.",
        ),
    ] = None,
    cert: Annotated[
        str | None,
        typer.Option(
            "--tls-cert", metavar="FILE", help="Serve https with this certificate and its chain (PEM)."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM, not encrypted)."),
    ] = None,
    cluster: ClusterServers = None,
    name: MachineName = None,
    role: RoleHere = None,
    background: Annotated[
        bool, typer.Option("--background", help="Start it detached and return when it is ready.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print whether a server is running; exit 1 if not.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running server and wait for it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve HTTP and WebSocket, on loopback unless told otherwise, and drive every run of this data directory."""
    local_only(ctx, "serve")
    if background + status + stop > 1:
        raise UserError("bad_options", "Give one of --background, --status and --stop.")
    files = [str(Path(one).expanduser().absolute()) if one else None for one in (cert, key)]
    chosen = {"listen": listen, "tls_cert": files[0], "tls_key": files[1]}
    settings = _with(settings_of(ctx), {key: value for key, value in chosen.items() if value is not None})
    settings = _among(settings, cluster, name, role)
    if status:
        _status(settings, as_json)
    elif stop:
        _stop(settings)
    elif background:
        _background(settings, port)
    else:
        _foreground(settings, port)


def _with(settings: "Settings", chosen: dict[str, Any]) -> "Settings":
    return structs.replace(settings, file=structs.replace(settings.file, **chosen))


def _among(
    settings: "Settings", cluster: str | None, name: str | None, role: "MachineRole | None"
) -> "Settings":
    """The settings with what the options say of the cluster."""
    from cloister.app.settings import ClusterEntry

    entry = settings.file.cluster
    if cluster is not None:
        servers = tuple(one.strip() for one in cluster.split(",") if one.strip())
        entry = structs.replace(entry, servers=servers) if entry else ClusterEntry(servers)
    if entry is None:
        if name is not None or role is not None:
            raise UserError(
                "bad_options", "--name and --role need --cluster, or the settings' table [cluster]."
            )
        return settings
    chosen = {key: value for key, value in (("machine", name), ("role", role)) if value is not None}
    return _with(settings, {"cluster": structs.replace(entry, **chosen)})


def _status(settings: "Settings", as_json: bool) -> None:
    from cloister.cli.client.discover import living
    from cloister.runs.event_text.lines import seconds

    found = living(settings.data_dir)
    if as_json:
        known = (
            {"pid": found.pid, "port": found.port, "url": found.url, "since": found.since} if found else {}
        )
        if found and found.public:
            known["public"] = found.public
        put_json({"running": found is not None, **known})
    elif found is None:
        put(f"not running on {settings.data_dir}. Start it: cloister serve --background")
    else:
        up = seconds(max(0.0, time.time() - found.since))
        public = f", for others {found.public}" if found.public else ""
        put(f"running: {found.url}{public}, process {found.pid}, port {found.port}, up {up}")
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
        at = found.public or found.url
        put(f"The server is ready: {at} (process {found.pid}, log {settings.data_dir / 'server.log'})")
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


def open_page(
    ctx: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help=RUN_HELP, autocompletion=complete_run)
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Also open it, where there is a desktop.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print the address of the web page, which logs one browser in for a day. It works once, within a minute."""
    from cloister.cli._spawn import show_page
    from cloister.cli.client.open import perform, transport

    async def offer(verbs: "Verbs") -> tuple[str, float]:
        page = f"/runs/{(await verbs.runs.row(run)).id}" if run else "/"
        made = await verbs.tokens.offer_login()
        server = await transport(ctx).find()
        return f"{server.url}{page}#login={made.secret}", made.seconds

    url, seconds = perform(ctx, offer, serve=True)
    if as_json:
        put_json({"url": url, "seconds": seconds})
    else:
        put(url)
        put(f"It logs one browser in, once and within {seconds:.0f} s.", file=sys.stderr)
    if browser and settings_of(ctx).desktop:
        show_page(url)
