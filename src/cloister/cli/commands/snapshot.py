"""`cloister snapshot`: the files of sandboxes, kept."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import AsJson, SandboxName, complete_snapshot, settings_of

if TYPE_CHECKING:
    from cloister.cli.client.http import Client
    from cloister.sandbox.api import SnapshotInfo

app = typer.Typer(
    help="The files of sandboxes, kept: take, ls, show, rm.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TAKE_SECONDS = 300.0
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
        str | None, typer.Option("--name", help="A name for it; without one it is removed when it is old.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep the files of a sandbox as they are now, and print the snapshot's id."""
    from cloister.cli.client.http import no_such_sandbox
    from cloister.sandbox.api import SNAPSHOT_PREFIX, SnapshotInfo

    client = _client(ctx)
    if client is None:
        raise no_such_sandbox(sandbox)
    found = client.find_sandbox(sandbox)
    reply = client.ask("POST", f"/v1/sandboxes/{found.id}/snapshots", {"name": name}, seconds=TAKE_SECONDS)
    info = client.decoded(SnapshotInfo, reply)
    if as_json:
        _put(info)
        return
    print(info.id)
    opened = f"cloister sandbox create --template {SNAPSHOT_PREFIX}{info.name or info.id}"
    print(f"Open it: {opened}", file=sys.stderr)


@app.command("ls")
def ls(
    ctx: typer.Context,
    sandbox: Annotated[
        str | None,
        typer.Option("--sandbox", metavar="ID", help="Only those of this sandbox, by its whole id."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the snapshots, oldest first. Needs no server."""
    found = [info for info in _all(ctx) if sandbox in (None, info.sandbox)]
    if as_json:
        for info in found:
            _put(info)
        return
    if not found:
        print("No snapshots. Take one: cloister snapshot take ID")
        return
    print(f"{'SNAPSHOT':<16} {'NAME':<20} {'OF':<15} {'TIER':<10} {'SIZE':>9} {'PARENT':<16} AGE")
    now = time.time()
    for info in found:
        print(_line(info, now))


@app.command("show")
def show(ctx: typer.Context, snapshot: Reference, as_json: AsJson = False) -> None:
    """Show one snapshot. Needs no server."""
    from cloister.core.text import one_line
    from cloister.sandbox.providers import which

    info = which(snapshot, _all(ctx))
    if as_json:
        _put(info)
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
        print(f"{label:<9} {one_line(value, 100)}")


@app.command("rm")
def rm(ctx: typer.Context, snapshot: Reference) -> None:
    """Delete a snapshot; sandboxes that were made from it stay. Needs no server."""
    client = _client(ctx)
    if client is not None:
        client.ask("DELETE", f"/v1/snapshots/{_quoted(snapshot)}", seconds=TAKE_SECONDS)
    else:
        import anyio

        from cloister.app.wiring import open_app

        async def work() -> None:
            async with open_app(settings_of(ctx), role="embedded") as opened:
                await opened.host.delete_snapshot(snapshot)

        anyio.run(work)
    print(f"Removed {snapshot}.")


def _client(ctx: typer.Context) -> "Client | None":
    from cloister.cli.client.discover import living
    from cloister.cli.client.http import Client

    place = living(settings_of(ctx).data_dir)
    return Client(place) if place else None


def _all(ctx: typer.Context) -> "tuple[SnapshotInfo, ...]":
    """From the server, or from the store itself where none runs."""
    client = _client(ctx)
    if client is not None:
        return client.snapshots()
    import anyio

    from cloister.app.wiring import open_app

    async def work() -> "tuple[SnapshotInfo, ...]":
        async with open_app(settings_of(ctx), role="embedded") as opened:
            return await opened.host.snapshots()

    return anyio.run(work)


def _quoted(reference: str) -> str:
    from urllib.parse import quote

    from cloister.sandbox.snapshots import unknown

    if reference in ("", ".", ".."):
        raise unknown(reference)
    return quote(reference, safe="")


def _put(info: "SnapshotInfo") -> None:
    from cloister.cli.screen.shows import put_json

    put_json(info)


def _line(info: "SnapshotInfo", now: float) -> str:
    from cloister.core.text import one_line
    from cloister.runs.words.lines import seconds

    size = f"{info.size_bytes / 1e6:,.1f}M"
    name, age = one_line(info.name or "-", 20), seconds(max(0.0, now - info.created_at))
    return f"{info.id:<16} {name:<20} {info.sandbox:<15} {info.tier:<10} {size:>9} {info.parent or '-':<16} {age}"
