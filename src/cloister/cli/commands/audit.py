"""`cloister audit`: who did what on this data directory, and whether that is what was written."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.options import AsJson, complete_run, resolve_run, settings_of

if TYPE_CHECKING:
    from cloister.app.settings import Settings
    from cloister.core.ids import RunId
    from cloister.log.audit.entry import AuditEntry
    from cloister.log.sqlite.audit_reader import AuditReader

LOOK_SECONDS = 0.3

app = typer.Typer(
    help="The audit: a signed chain of every action, decision, login and change.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_RUN = "A run: its id, a unique beginning of it, or 'last'."


@app.command("show")
def show(
    ctx: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help=_RUN, autocompletion=complete_run)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is added, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the entries of the audit, of all runs or of one, oldest first. Needs no server."""
    settings = settings_of(ctx)
    found = None if run is None else resolve_run(settings, run)
    last = 0
    while True:
        with _open(settings) as audit:
            for entry in audit.entries(last, found):
                _put(entry, as_json)
                last = entry.number
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(LOOK_SECONDS)


@app.command("verify")
def verify(
    ctx: typer.Context,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="PUB", help="The public key to trust; else the first one in the audit."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry, signature and event; says what was edited, removed, reordered or cut off, and where."""
    from cloister.log.audit.keys import check_public

    pinned = None if key is None else check_public(key)
    settings = settings_of(ctx)
    with _open(settings) as audit:
        if (count := audit.newest()) > 100_000 and sys.stderr.isatty():
            print(f"Checking {count:,} entries …", file=sys.stderr)
        verdict = audit.verify(pinned)
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(verdict)
    else:
        from cloister.cli.screen.audit import verdict_lines

        for line in verdict_lines(verdict):
            print(line)
    raise typer.Exit(0 if verdict.ok else 1)


@app.command("export")
def export(
    ctx: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only what happened since: 2026-01-31, 2026-01-31T12:00, 36h or 7d.",
        ),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help=_RUN, autocompletion=complete_run)] = None,
    form: Annotated[
        Literal["jsonl", "otel"],
        typer.Option(
            "--format", help="JSON Lines on stdout, or OpenTelemetry logs to the configured collector."
        ),
    ] = "jsonl",
) -> None:
    """Write the entries and the signatures as JSON Lines, or send the entries to an OpenTelemetry collector."""
    from cloister.cli.screen.audit import read_since

    settings = settings_of(ctx)
    found = None if run is None else resolve_run(settings, run)
    since_us = 0 if since is None else read_since(since, time.time())
    with _open(settings) as audit:
        if form == "jsonl":
            _export_lines(audit, found, since_us)
        else:
            _export_logs(settings, audit, found, since_us)


@app.command("key")
def key(
    ctx: typer.Context,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace it; the old one signs that, and its signatures stay.")
    ] = False,
) -> None:
    """Print the public key that the audit is signed with. Keep it elsewhere, for `verify --key`."""
    from cloister.log.audit.keys import KEY_FILE, HostKey
    from cloister.log.sqlite.audit_reader import rotate_key

    settings = settings_of(ctx)
    print(rotate_key(settings.log_path) if rotate else HostKey(settings.data_dir / KEY_FILE).public())


def _open(settings: "Settings") -> "AuditReader":
    from cloister.log.sqlite.audit_reader import AuditReader

    return AuditReader(settings.log_path)


def _put(entry: "AuditEntry", as_json: bool) -> None:
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(entry)
        return
    from cloister.cli.screen.audit import entry_line

    print(entry_line(entry))


def _export_lines(audit: "AuditReader", run: "RunId | None", since_us: int) -> None:
    """Each entry, and after it the signatures over it: all that somebody else needs to check them."""
    from cloister.cli.screen.shows import put_json

    last = 0
    for entry in audit.entries(0, run, since_us):
        put_json(entry)
        for checkpoint in audit.checkpoints(entry.number - 1 if run or since_us else last, entry.number):
            put_json(checkpoint)
        last = entry.number


def _export_logs(settings: "Settings", audit: "AuditReader", run: "RunId | None", since_us: int) -> None:
    import anyio

    from cloister.core.errors import UserError
    from cloister.log.audit.export import PAGE, Collector, check_endpoint, client, send

    if settings.file.otlp_endpoint is None:
        raise UserError(
            "no_collector",
            "No collector is configured: set OTEL_EXPORTER_OTLP_ENDPOINT, or otlp_endpoint in the settings.",
        )
    collector = Collector(check_endpoint(settings.file.otlp_endpoint), settings.otlp_headers)
    sent = 0

    async def send_all() -> None:
        nonlocal sent
        batch: list[AuditEntry] = []
        async with client() as http:
            for entry in audit.entries(0, run, since_us):
                batch.append(entry)
                if len(batch) == PAGE:
                    await send(http, collector, batch)
                    sent += len(batch)
                    batch = []
                    if sys.stderr.isatty():
                        print(f"\r{sent:,} sent", end="", file=sys.stderr, flush=True)
            if batch:
                await send(http, collector, batch)
                sent += len(batch)

    anyio.run(send_all)
    print(f"Sent {sent:,} entries.")
