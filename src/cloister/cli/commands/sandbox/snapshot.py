"""`cloister snapshot`: saved files of sandboxes."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, SandboxName, complete_snapshot, put, put_json, put_list
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.sandbox.api import SnapshotInfo

app = typer.Typer(
    help="Saved files of sandboxes: take, ls, show, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Reference = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT", help="A snapshot: its name or its id.", autocompletion=complete_snapshot
    ),
]


@app.command("take")
def take(
    ctx: typer.Context,
    sandbox: SandboxName,
    name: Annotated[
        str | None,
        typer.Option("--name", help="A name for it; unnamed snapshots are deleted after two weeks."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save the files of a sandbox and print the snapshot's id."""
    from cloister.sandbox.api import SNAPSHOT_PREFIX

    async def work(verbs: "Verbs") -> "SnapshotInfo":
        return await verbs.snapshots.take((await verbs.sandboxes.resolve(sandbox)).id, name)

    info = perform(ctx, work)
    if as_json:
        put_json(info)
        return
    put(info.id)
    opened = f"cloister sandbox create --template {SNAPSHOT_PREFIX}{info.name or info.id}"
    put(f"Open it: {opened}", file=sys.stderr)


@app.command("ls")
def ls(
    ctx: typer.Context,
    sandbox: Annotated[
        str | None,
        typer.Option("--sandbox", metavar="ID", help="Only those of this sandbox, by its full id."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the snapshots, oldest first."""
    found = perform(ctx, lambda verbs: verbs.snapshots.list(sandbox))
    head = f"{'SNAPSHOT':<16} {'NAME':<20} {'OF':<15} {'TIER':<10} {'SIZE':>9} {'PARENT':<16} AGE"
    put_list(found, as_json, head, _line, "No snapshots. Take one: cloister snapshot take ID")


@app.command("show")
def show(ctx: typer.Context, snapshot: Reference, as_json: AsJson = False) -> None:
    """Show one snapshot."""
    info = perform(ctx, lambda verbs: verbs.snapshots.get(snapshot))
    if as_json:
        put_json(info)
        return
    taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created_at))
    for label, value in (
        ("snapshot", info.id),
        ("name", info.name or "-"),
        ("parent", info.parent or "-"),
        ("sandbox", f"{info.sandbox} ({info.tier})"),
        ("template", info.template),
        ("taken", taken),
        ("size", f"{info.size_bytes:,} bytes"),
    ):
        put(f"{label:<9} {one_line(value, 100)}")


@app.command("rm")
def rm(ctx: typer.Context, snapshot: Reference) -> None:
    """Delete a snapshot; sandboxes made from it stay."""
    perform(ctx, lambda verbs: verbs.snapshots.remove(snapshot))
    put(f"Removed {snapshot}.")


def _line(info: "SnapshotInfo") -> str:
    from cloister.runs.event_text.lines import seconds

    size = f"{info.size_bytes / 1e6:,.1f}M"
    name, age = one_line(info.name or "-", 20), seconds(max(0.0, time.time() - info.created_at))
    return f"{info.id:<16} {name:<20} {info.sandbox:<15} {info.tier:<10} {size:>9} {info.parent or '-':<16} {age}"
