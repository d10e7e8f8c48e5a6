"""`cloister sandbox commands`, `attach` and `kill`: background commands of a sandbox, also of one that is gone."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cloister.cli.options import AsJson, SandboxName, settings_of

if TYPE_CHECKING:
    from cloister.cli.client.http import Client
    from cloister.cli.commands.sandbox.process import Wanted

CommandName = Annotated[
    str, typer.Argument(metavar="CID", help="A background command: its id or a unique beginning of it.")
]


class Shown(msgspec.Struct, frozen=True):
    """A background command, as the server describes it."""

    id: str
    argv: tuple[str, ...]
    state: str
    exit_code: int | None
    signal: int | None
    killed: str | None
    reason: str
    started_at: float
    ended_at: float | None
    output_end: int


def start(client: "Client", sandbox: str, wanted: "Wanted") -> None:
    """Start it in the background and print its id."""
    from cloister.cli.commands.sandbox.process import start_of

    reply = client.ask("POST", f"/v1/sandboxes/{sandbox}/commands", start_of(wanted))
    shown = client.decoded(Shown, reply)
    print(shown.id)
    print(f"Follow it: cloister sandbox attach {sandbox} {shown.id}", file=sys.stderr)


def commands(ctx: typer.Context, sandbox: SandboxName, as_json: AsJson = False) -> None:
    """List the background commands of a sandbox."""
    client, found = _sandbox(ctx, sandbox)
    reply = client.ask("GET", f"/v1/sandboxes/{found}/commands")
    if as_json:
        from cloister.cli.screen.shows import put_json

        for each in client.decoded(list[dict[str, object]], reply):
            put_json(each)
        return
    shown = client.decoded(tuple[Shown, ...], reply)
    if not shown:
        print(f"No commands. Start one: cloister sandbox exec {found} --background -- PROGRAM")
        return
    print(f"{'COMMAND':<15} {'STATE':<14} {'TIME':<8} {'OUTPUT':>12}  PROGRAM")
    now = time.time()
    for each in shown:
        print(_line(each, now))


def attach(
    ctx: typer.Context,
    sandbox: SandboxName,
    command: CommandName,
    offset: Annotated[
        int, typer.Option("--offset", min=0, metavar="BYTES", help="Show output from here on.")
    ] = 0,
    stdin: Annotated[bool, typer.Option("--stdin", help="Send our stdin, and its end.")] = False,
) -> None:
    """Show what a background command printed and go on with it; Ctrl-C lets go and does not end it."""
    import anyio

    from cloister.cli.commands.sandbox.process import run_attached

    client, found = _sandbox(ctx, sandbox)
    name = _command(client, found, command)
    path = f"/v1/sandboxes/{found}/commands/{name}/attach?offset={offset}"
    raise typer.Exit(anyio.run(run_attached, client.place, path, stdin))


def kill(ctx: typer.Context, sandbox: SandboxName, command: CommandName) -> None:
    """End a background command with everything it started; its output stays."""
    client, found = _sandbox(ctx, sandbox)
    name = _command(client, found, command)
    reply = client.ask("DELETE", f"/v1/sandboxes/{found}/commands/{name}", seconds=60)
    print(f"{name}: {_state(client.decoded(Shown, reply))}.")


def _sandbox(ctx: typer.Context, name: str) -> "tuple[Client, str]":
    """The living sandbox that is meant, or the id as it was given: one that is gone may have left commands."""
    from cloister.cli.client.discover import living
    from cloister.cli.client.http import Client, no_such_sandbox
    from cloister.core.errors import UserError
    from cloister.core.ids import is_id

    place = living(settings_of(ctx).data_dir)
    if place is None:
        raise no_such_sandbox(name)
    client = Client(place)
    try:
        return client, client.find_sandbox(name).id
    except UserError as error:
        if error.code == "no_such_sandbox" and is_id(name):
            return client, name
        raise


def _command(client: "Client", sandbox: str, name: str) -> str:
    from cloister.core.errors import UserError

    reply = client.ask("GET", f"/v1/sandboxes/{sandbox}/commands")
    known = [each.id for each in client.decoded(tuple[Shown, ...], reply)]
    found = [each for each in known if name and each.startswith((name, f"c-{name}"))]
    if len(found) == 1 or name in found:
        return name if name in found else found[0]
    if found:
        raise UserError("ambiguous_command", f"{name!r} is the start of several commands: type more of it.")
    raise UserError(
        "no_such_command",
        f"There is no command {name[:64]!r}: `cloister sandbox commands {sandbox}` lists them.",
    )


def _state(shown: Shown) -> str:
    from cloister.core.text import one_line

    match shown:
        case Shown(state="exited", exit_code=int(code)):
            return f"exited {code}"
        case Shown(state="exited", signal=int(number)):
            return f"signal {number}"
        case Shown(reason=reason) if reason:
            return f"{shown.state}: {one_line(reason.rstrip('.'))}"
        case _:
            return shown.state


def _line(shown: Shown, now: float) -> str:
    from cloister.core.text import one_line
    from cloister.runs.words.lines import seconds

    took = seconds((shown.ended_at or now) - shown.started_at)
    state = _state(shown).partition(":")[0]
    program = one_line(" ".join(shown.argv), 60)
    return f"{shown.id:<15} {state:<14} {took:<8} {shown.output_end:>12,}  {program}"
