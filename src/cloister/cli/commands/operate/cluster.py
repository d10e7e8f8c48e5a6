"""`cloister cluster`: begin a cluster of machines, let machines in, and look at them."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, local_only, put, put_list, settings_of

if TYPE_CHECKING:
    from cloister.log.api import Peer

app = typer.Typer(
    help="Machines that share one log: init, invite, join, status, drain.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The machine's name in the cluster.")]


@app.command("init")
def init(
    ctx: typer.Context,
    hosts: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST...", help="The hosts of the NATS servers: 1, 3 or 5 names or addresses."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="The name of the cluster.")] = "cloister",
) -> None:
    """Make the keys of a cluster and a folder of files for each of its NATS servers."""
    local_only(ctx, "cluster init")
    from cloister.app.cluster.joining import begin

    folder = begin(settings_of(ctx).data_dir, hosts, name)
    for number, host in enumerate(hosts, start=1):
        put(f"Copy {folder}/nats-{number} to {host}, and there: nats-server -c nats.conf")
    put("Then let each machine in: cloister cluster invite NAME > NAME.join")


@app.command("invite")
def invite(
    ctx: typer.Context,
    machine: Name,
    role: Annotated[
        Literal["api", "worker", "both"],
        typer.Option("--role", help="Whether it will serve people (api), drive runs (worker), or both."),
    ] = "both",
) -> None:
    """Print what a machine joins with. It is a secret: it holds the machine's key and that of the audit."""
    local_only(ctx, "cluster invite")
    import msgspec

    from cloister.app.cluster.joining import invite as make
    from cloister.log.jetstream.link import Cluster, check

    made = make(settings_of(ctx).data_dir, machine, role)
    check(Cluster(made.servers, made.name, made.replicas, machine))
    put(msgspec.json.encode(made).decode())
    put(f"On {machine}: cloister cluster join FILE, then cloister serve.", file=sys.stderr)


@app.command("join")
def join(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `cloister cluster invite` printed.")],
) -> None:
    """Keep the credentials of this machine, and add the table `[cluster]` to its settings."""
    local_only(ctx, "cluster join")
    from cloister.app.cluster.joining import join as take

    settings = settings_of(ctx)
    given = take(settings.data_dir, settings.config_path, file)
    put(f"This machine is {given.machine} of the cluster {given.name}. Start it: cloister serve")


@app.command("status")
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the machines, with what they do."""

    def line(one: "Peer") -> str:
        state = "draining" if one.draining else "up" if one.lives else "lost"
        busy = f"{one.running} of {one.slots}"
        seen = f"{max(0.0, time.time() - one.at):.0f} s ago"
        memory = f"{one.memory_bytes / 2**30:.0f} GiB"
        return f"{one.name:<24} {state:<9} {one.role:<7} {busy:<9} {one.cpus:<5} {memory:<9} {one.version:<9} {seen}"

    found = perform(ctx, lambda verbs: verbs.machine.all())
    head = (
        f"{'MACHINE':<24} {'STATE':<9} {'ROLE':<7} {'RUNS':<9} {'CPUS':<5} {'MEMORY':<9} {'VERSION':<9} SEEN"
    )
    put_list(
        found,
        as_json,
        head,
        line,
        "This server works alone: `cloister serve --cluster` starts one of several.",
    )


@app.command("drain")
def drain(
    ctx: typer.Context,
    machine: Name,
    off: Annotated[bool, typer.Option("--off", help="Let it take runs again.")] = False,
) -> None:
    """Have a machine take no more runs; those that it drives go on elsewhere from their next save points."""
    perform(ctx, lambda verbs: verbs.machine.drain(machine, not off))
    if off:
        put(f"{machine} takes runs again.")
    else:
        put(f"{machine} takes no more runs. Watch it become empty: cloister cluster status")
