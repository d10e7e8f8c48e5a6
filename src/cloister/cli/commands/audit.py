"""`cloister audit`: the signed record of every action on the data directory."""

import sys
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import RUN_HELP, AsJson, complete_run, put_json

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.log.audit.entry import AuditEntry
    from cloister.log.audit.verify import Verdict

PAGE = 1_000
LOOK_SECONDS = 0.3

app = typer.Typer(
    help="The signed record of every action, decision, login and change.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("show")
def show(
    ctx: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help=RUN_HELP, autocompletion=complete_run)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new entries until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the entries of the audit, of all runs or of one, oldest first."""
    from cloister.cli.screen.tables import entry_line

    async def work(verbs: "Verbs") -> None:
        import anyio

        last = 0
        while True:
            async for entry in _entries(verbs, last, run):
                put_json(entry) if as_json else print(entry_line(entry))
                last = entry.number
            if not follow:
                return
            sys.stdout.flush()
            await anyio.sleep(LOOK_SECONDS)

    perform(ctx, work)


async def _entries(verbs: "Verbs", after: int, run: str | None) -> "AsyncGenerator[AuditEntry]":
    while page := await verbs.audit.page(after, PAGE, run):
        for entry in page:
            yield entry
        if len(page) < PAGE:
            return
        after = page[-1].number


@app.command("verify")
def verify(
    ctx: typer.Context,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="PUB", help="The public key to trust. Default: the first one in the audit."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry, signature and event; report each edit, deletion, reordering and truncation."""
    if sys.stderr.isatty():
        print("Checking the audit …", file=sys.stderr)

    async def work(verbs: "Verbs") -> "Verdict":
        return await verbs.audit.verify(key)

    verdict = perform(ctx, work)
    if as_json:
        put_json(verdict)
    else:
        from cloister.cli.screen.tables import verdict_lines

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
            help="Only entries since: 2026-01-31, 2026-01-31T12:00, 36h or 7d.",
        ),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help=RUN_HELP, autocompletion=complete_run)] = None,
    form: Annotated[
        Literal["jsonl", "otel"],
        typer.Option(
            "--format", help="JSON Lines on stdout, or OpenTelemetry logs to the configured collector."
        ),
    ] = "jsonl",
) -> None:
    """Write entries and signatures as JSON Lines, or send the entries to an OpenTelemetry collector."""
    from cloister.cli.screen.tables import read_since

    since_us = 0 if since is None else read_since(since, time.time())

    async def lines(verbs: "Verbs") -> None:
        last = 0
        while page := await verbs.audit.page(last, PAGE, run):
            signed = await verbs.audit.checkpoints(last, page[-1].number)
            last = page[-1].number
            for entry in page:
                if entry.at_us >= since_us:
                    # The signatures over an entry follow it, so that others can check them.
                    put_json(entry, *(each for each in signed if each.number == entry.number))

    if form == "jsonl":
        perform(ctx, lines)
    else:
        sent = perform(ctx, lambda verbs: verbs.audit.send_logs(run, since_us))
        print(f"Sent {sent:,} entries.")


@app.command("key")
def key(
    ctx: typer.Context,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace the key; the old key signs the change.")
    ] = False,
) -> None:
    """Print the public key of the audit. Keep it elsewhere, for `verify --key`."""
    print(perform(ctx, lambda verbs: verbs.audit.rotate() if rotate else verbs.audit.key()))
