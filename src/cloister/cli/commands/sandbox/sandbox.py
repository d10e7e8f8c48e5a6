"""`cloister sandbox`: sandboxes made by hand."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from cloister.cli.commands.sandbox import copy, detached, port
from cloister.cli.options import AsJson, SandboxName, TierWish, settings_of

if TYPE_CHECKING:
    from cloister.cli.client.discover import Place
    from cloister.cli.client.http import Client
    from cloister.cli.commands.sandbox.process import Wanted
    from cloister.sandbox.api import SandboxInfo

app = typer.Typer(
    help="Sandboxes made by hand, the commands and the files in them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("create")
def create(
    ctx: typer.Context,
    template: Annotated[
        str, typer.Option("--template", help="What it starts from: a template, or snapshot:NAME.")
    ] = "default",
    tier: TierWish = "auto",
    ttl: Annotated[
        float, typer.Option("--ttl", metavar="SECONDS", help="It ends by itself after this.")
    ] = 3600.0,
    task_id: Annotated[
        str | None, typer.Option("--task-id", help="Your name for it: the same one gives the same sandbox.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open a sandbox and print its id. Starts a background server if none runs."""
    from cloister.cli.client.background import ensure
    from cloister.cli.client.http import Client

    place, _ = ensure(settings_of(ctx))
    wanted: dict[str, object] = {"template": template, "tier": tier, "ttl_seconds": ttl, "task_id": task_id}
    info = Client(place).create_sandbox(wanted)
    if as_json:
        from cloister.cli.screen.shows import put_json

        put_json(info)
    else:
        print(info.id)
        print(f"Look inside: cloister sandbox shell {info.id}", file=sys.stderr)


@app.command("exec")
def exec_command(  # noqa: PLR0913  one parameter per option
    ctx: typer.Context,
    sandbox: SandboxName,
    argv: Annotated[list[str], typer.Argument(metavar="-- ARGV...", help="The program and its arguments.")],
    cwd: Annotated[str, typer.Option("--cwd", help="Directory inside.")] = "/work",
    user: Annotated[Literal["agent", "root"], typer.Option("--user", help="Who runs it inside.")] = "agent",
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Wall-clock limit; else as long as the sandbox lives.")
    ] = None,
    tty: Annotated[bool, typer.Option("--tty", help="Give it this terminal.")] = False,
    background: Annotated[
        bool, typer.Option("--background", help="Start it, print its id and return.")
    ] = False,
) -> None:
    """Run a program in a sandbox: stdin goes in, stdout and stderr come out, its status is ours."""
    from cloister.cli.client.http import Client
    from cloister.cli.commands.sandbox.process import Wanted
    from cloister.core.errors import UserError

    wanted = Wanted(tuple(argv), cwd, user, seconds, tty)
    if not background:
        _run(ctx, sandbox, wanted)
    if tty:
        raise UserError("bad_usage", "Give one of --background and --tty.")
    place, info = _find(ctx, sandbox)
    detached.start(Client(place), info.id, wanted)


@app.command("shell")
def shell(ctx: typer.Context, sandbox: SandboxName) -> None:
    """Open a terminal in a sandbox; `exit` leaves it, the sandbox stays."""
    from cloister.cli.commands.sandbox.process import Wanted

    _run(ctx, sandbox, Wanted(("/bin/bash", "-l"), "/work", "agent", tty=True))


def _run(ctx: typer.Context, sandbox: str, wanted: "Wanted") -> NoReturn:
    import anyio

    from cloister.cli.commands.sandbox.process import run_process
    from cloister.core.errors import UserError

    if wanted.tty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            "no_terminal",
            "There is no terminal here: without one use `cloister sandbox exec ID -- PROGRAM`.",
        )
    place, info = _find(ctx, sandbox)
    raise typer.Exit(anyio.run(run_process, place, info.id, wanted))


@app.command("fork")
def fork(
    ctx: typer.Context,
    sandbox: SandboxName,
    count: Annotated[int, typer.Option("--n", min=1, max=64, metavar="N", help="How many forks.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Copy a sandbox that lives, and print the ids of its forks; on microvm what runs in it goes on in each."""
    from cloister.cli.client.http import Client

    place, info = _find(ctx, sandbox)
    for made in Client(place).fork_sandbox(info.id, count):
        if as_json:
            from cloister.cli.screen.shows import put_json

            put_json(made)
        else:
            print(made.id)


@app.command("ls")
def ls(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the sandboxes that live."""
    client = _client(ctx)
    found = client.sandboxes() if client else ()
    if as_json:
        from cloister.cli.screen.shows import put_json

        for info in found:
            put_json(info)
        return
    if not found:
        print("No sandboxes. Open one: cloister sandbox create")
        return
    print(f"{'SANDBOX':<15} {'TEMPLATE':<10} {'TIER':<10} {'RUNTIME':<16} ENDS IN")
    now = time.time()
    for info in found:
        print(_line(info, now))


@app.command("rm")
def rm(ctx: typer.Context, sandbox: SandboxName) -> None:
    """Destroy a sandbox and everything in it."""
    from cloister.cli.client.http import Client

    place, info = _find(ctx, sandbox)
    Client(place).remove_sandbox(info.id)
    print(f"Removed {info.id}.")


app.command("commands")(detached.commands)
app.command("attach")(detached.attach)
app.command("kill")(detached.kill)
app.command("cp")(copy.cp)
app.command("files")(copy.files)
app.command("port")(port.port)


def _client(ctx: typer.Context) -> "Client | None":
    from cloister.cli.client.discover import living
    from cloister.cli.client.http import Client

    place = living(settings_of(ctx).data_dir)
    return Client(place) if place else None


def _find(ctx: typer.Context, name: str) -> "tuple[Place, SandboxInfo]":
    from cloister.cli.client.http import no_such_sandbox

    client = _client(ctx)
    if client is None:
        # Sandboxes made by hand live in the server: without it there are none.
        raise no_such_sandbox(name)
    return client.place, client.find_sandbox(name)


def _line(info: "SandboxInfo", now: float) -> str:
    from cloister.core.text import one_line
    from cloister.runs.words.lines import seconds

    left = seconds(max(0.0, info.expires_at - now))
    tier, runtime = info.isolation.tier, one_line(info.isolation.runtime, 16)
    return f"{info.id:<15} {one_line(info.template, 10):<10} {tier:<10} {runtime:<16} {left}"
