"""`cloister audit`: the signed record of every action on the data directory."""

import sys
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import RUN_HELP, AsJson, complete_run, put, put_json

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.log.audit.entry import AuditEntry, Checkpoint
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
                put_json(entry) if as_json else put(entry_line(entry))
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
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="FILE|REPO",
            help="Exported heads: a file of them, an export, receipts, or a repository with delivered branches.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry, signature and event; report each edit, deletion, reordering and truncation."""
    if sys.stderr.isatty():
        put("Checking the audit …", file=sys.stderr)

    async def work(verbs: "Verbs") -> "Verdict":
        heads = [head for place in other or () for head in await _exported(place)]
        verdict = await verbs.audit.verify(key)
        return await _compared(verbs, verdict, heads) if heads else verdict

    verdict = perform(ctx, work)
    if as_json:
        put_json(verdict)
    else:
        from cloister.cli.screen.tables import verdict_lines

        for line in verdict_lines(verdict):
            put(line)
    raise typer.Exit(0 if verdict.ok else 1)


async def _exported(place: str) -> "list[Checkpoint]":
    """Read the heads in a file, or in the notes of a repository. Raises `UserError`."""
    from anyio import to_thread

    from cloister.core.errors import UserError
    from cloister.core.text import decode
    from cloister.log.audit.export import find_heads

    data = await to_thread.run_sync(_content, place)
    if data is None:
        from cloister.forge.change import NOTES_REF
        from cloister.forge.host import in_checkout
        from cloister.forge.plain_git import find_checkout

        checkout = await to_thread.run_sync(find_checkout, place)
        data = (await in_checkout(checkout, "grep", "-a", "-h", "--no-color", "-e", "", NOTES_REF)).out
    if not (heads := find_heads(decode(data))):
        raise UserError("no_heads", f"{place} holds no signed head of an audit.")
    return heads


def _content(place: str) -> bytes | None:
    """Return the content of a file; None for a directory."""
    from pathlib import Path

    from cloister.core.errors import UserError

    path = Path(place).expanduser()
    try:
        return None if path.is_dir() else path.read_bytes()
    except OSError as error:
        raise UserError("no_file", f"{place} cannot be read: {error.strerror}.") from None


async def _compared(verbs: "Verbs", verdict: "Verdict", heads: "list[Checkpoint]") -> "Verdict":
    import msgspec

    from cloister.log.audit.verify import PROBLEMS, against

    wanted = {head.number for head in heads}
    hashes = {
        entry.number: entry.hash
        async for entry in _entries(verbs, min(wanted) - 1, None)
        if entry.number in wanted
    }
    found = (*verdict.problems, *against(heads, hashes, verdict))
    return msgspec.structs.replace(verdict, ok=not found, problems=found[:PROBLEMS])


@app.command("accept")
def accept(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option("--reason", help="Why, such as the backup that was restored.")],
) -> None:
    """Accept the audit as it is, after a restore or a lost key. An entry names what was lost."""
    from cloister.cli.client.open import perform

    perform(ctx, lambda verbs: verbs.audit.accept(reason))
    put("Accepted. `cloister audit verify` now starts from this head, and shows that it was accepted.")


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
        put(f"Sent {sent:,} entries.")


@app.command("key")
def key(
    ctx: typer.Context,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace the key; the old key signs the change.")
    ] = False,
) -> None:
    """Print the public key of the audit. Keep it elsewhere, for `verify --key`."""
    put(perform(ctx, lambda verbs: verbs.audit.rotate() if rotate else verbs.audit.key()))
