"""`cloister sandbox commands`, `attach` and `kill`: background commands of a sandbox, even of a destroyed one."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import AsJson, SandboxName, put, put_list
from cloister.core.errors import UserError
from cloister.core.ids import is_id
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs
    from cloister.app.verbs.records import BackgroundCommand

CommandName = Annotated[
    str, typer.Argument(metavar="CID", help="A background command: its id or a unique prefix of it.")
]


def commands(ctx: typer.Context, sandbox: SandboxName, as_json: AsJson = False) -> None:
    """List the background commands of a sandbox."""

    async def work(verbs: "Verbs") -> "tuple[str, tuple[BackgroundCommand, ...]]":
        found = await _sandbox(verbs, sandbox)
        return found, await verbs.sandboxes.commands(found)

    found, listed = perform(ctx, work)
    head = f"{'COMMAND':<15} {'STATE':<14} {'TIME':<8} {'OUTPUT':>12}  PROGRAM"
    none = f"No commands. Start one: cloister sandbox exec {found} --background -- PROGRAM"
    put_list(listed, as_json, head, _line, none)


def attach(
    ctx: typer.Context,
    sandbox: SandboxName,
    command: CommandName,
    offset: Annotated[
        int, typer.Option("--offset", min=0, metavar="BYTES", help="Start at this byte of the output.")
    ] = 0,
    stdin: Annotated[bool, typer.Option("--stdin", help="Send stdin to it.")] = False,
) -> None:
    """Show the output of a background command until it ends; Ctrl-C detaches and does not end it."""
    from cloister.cli.screen.terminal import connect

    async def work(verbs: "Verbs") -> int:
        found = await _sandbox(verbs, sandbox)
        name = await _command(verbs, found, command)
        async with verbs.sandboxes.attach(found, name, offset) as attached:
            return await connect(attached, stdin=stdin)

    raise typer.Exit(perform(ctx, work))


def kill(ctx: typer.Context, sandbox: SandboxName, command: CommandName) -> None:
    """End a background command and its children; its output is kept."""

    async def work(verbs: "Verbs") -> "BackgroundCommand":
        found = await _sandbox(verbs, sandbox)
        return await verbs.sandboxes.kill(found, await _command(verbs, found, command))

    ended = perform(ctx, work)
    put(f"{ended.id}: {_state(ended)}.")


async def _sandbox(verbs: "Verbs", name: str) -> str:
    """The id of a living sandbox, or the given id: a destroyed sandbox may have left commands."""
    try:
        return (await verbs.sandboxes.resolve(name)).id
    except UserError as error:
        if error.code == "no_such_sandbox" and is_id(name):
            return name
        raise


async def _command(verbs: "Verbs", sandbox: str, name: str) -> str:
    known = [each.id for each in await verbs.sandboxes.commands(sandbox)]
    found = [each for each in known if name and each.startswith((name, f"c-{name}"))]
    if len(found) == 1 or name in found:
        return name if name in found else found[0]
    if found:
        raise UserError("ambiguous_command", f"{name!r} is the start of several commands: type more of it.")
    raise UserError(
        "no_such_command",
        f"There is no command {name[:64]!r}: `cloister sandbox commands {sandbox}` lists them.",
    )


def _state(command: "BackgroundCommand") -> str:
    if command.state == "exited" and command.exit_code is not None:
        return f"exited {command.exit_code}"
    if command.state == "exited" and command.signal is not None:
        return f"signal {command.signal}"
    if command.reason:
        return f"{command.state}: {one_line(command.reason.rstrip('.'))}"
    return command.state


def _line(command: "BackgroundCommand") -> str:
    from cloister.runs.event_text.lines import seconds

    took = seconds((command.ended_at or time.time()) - command.started_at)
    state = _state(command).partition(":")[0]
    program = one_line(" ".join(command.argv), 60)
    return f"{command.id:<15} {state:<14} {took:<8} {command.output_end:>12,}  {program}"
