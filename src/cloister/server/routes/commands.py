"""Routes of background commands: start, list, read, attach, end. They outlive the connection that started them."""

from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
from anyio import to_thread
from litestar import delete, get, post, websocket
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from cloister.app.workbench.commands import Background, Record, Skipped, State
from cloister.core.computer import Exited, Killed, Output, Stream, User
from cloister.core.errors import UserError
from cloister.core.ids import CommandId, SandboxId
from cloister.server.routes.process import NewCommand, command_of, ended, send_output, talk
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import NORMAL, Ending, Part, Socket, Sockets, Wire, converse

if TYPE_CHECKING:
    from cloister.app.wiring import App

PAGE_BYTES = 1_048_576
"""Output in one answer."""

OFFSET_MAX = 2**53
END_SECONDS = 30.0
"""How long the end of a command that was asked to end is waited for."""

CommandName = Annotated[str, PathParameter(description="A background command's id.")]
Offset = Annotated[
    int,
    QueryParameter(ge=0, le=OFFSET_MAX, description="Output from here on: bytes of both streams together."),
]


class BackgroundCommand(msgspec.Struct, frozen=True):
    """A background command as it stands."""

    id: CommandId
    sandbox: SandboxId
    argv: tuple[str, ...]
    cwd: str
    user: User
    pty: bool
    state: State
    """`failed`: it could not be started. `lost`: nobody knows how it ended."""
    exit_code: int | None
    signal: int | None
    killed: Killed | None
    reason: str
    """Why it failed or was lost."""
    started_at: float
    ended_at: float | None
    output_begin: int
    """The offset of the oldest output that is kept."""
    output_end: int
    """The offset of what is printed next."""


class Piece(msgspec.Struct, frozen=True):
    """Some output; `data` is base64."""

    stream: Stream
    data: bytes


class CommandOutput(msgspec.Struct, frozen=True):
    """A command and a part of what it printed."""

    command: BackgroundCommand
    output: tuple[Piece, ...]
    skipped: int
    """So many bytes from the offset on are no longer kept."""
    next_offset: int
    """Ask from here for more."""


@post(
    "/v1/sandboxes/{sandbox:str}/commands",
    summary="Start a command in the background",
    operation_id="startCommand",
    status_code=201,
)
async def start_command(
    sandbox: SandboxName, data: JSONBody[NewCommand], app: NamedDependency["App"]
) -> BackgroundCommand:
    target = app.sandboxes.get(sandbox)
    command = command_of(data, target)
    return _view(await app.commands.start(target.info.id, target, command))


@get(
    "/v1/sandboxes/{sandbox:str}/commands",
    summary="The background commands of a sandbox, also of one that is gone; oldest first",
    operation_id="listCommands",
)
async def list_commands(sandbox: SandboxName, app: NamedDependency["App"]) -> tuple[BackgroundCommand, ...]:
    found = app.commands.list(sandbox)
    if not found:
        app.sandboxes.get(sandbox)
    return tuple(_view(app.commands.get(sandbox, record.id)) for record in found)


@get(
    "/v1/sandboxes/{sandbox:str}/commands/{command:str}",
    summary="A background command and its output from an offset on",
    operation_id="getCommand",
)
async def get_command(
    sandbox: SandboxName, command: CommandName, app: NamedDependency["App"], offset: Offset = 0
) -> CommandOutput:
    found = app.commands.get(sandbox, command)
    if offset > found.spool.end:
        raise UserError("bad_offset", f"offset is beyond the output, which ends at {found.spool.end}.")
    # The state first: what is printed later is not missed by who stops asking when it says the command ended.
    view = _view(found)
    pieces, after = await to_thread.run_sync(found.read, offset, PAGE_BYTES)
    return CommandOutput(
        view,
        tuple(Piece(piece.stream, piece.data) for piece in pieces if isinstance(piece, Output)),
        sum(piece.size for piece in pieces if isinstance(piece, Skipped)),
        after,
    )


@delete(
    "/v1/sandboxes/{sandbox:str}/commands/{command:str}",
    summary="End a background command with everything it started; its record stays",
    operation_id="endCommand",
    status_code=200,
)
async def end_command(
    sandbox: SandboxName, command: CommandName, app: NamedDependency["App"]
) -> BackgroundCommand:
    found = app.commands.get(sandbox, command)
    await found.kill()
    with anyio.fail_after(END_SECONDS):
        await found.ended()
    return _view(found)


@websocket("/v1/sandboxes/{sandbox:str}/commands/{command:str}/attach")
async def attach(
    socket: Socket,
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    sandbox: SandboxName,
    command: CommandName,
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        found = app.commands.get(sandbox, command)
        offset = read_offset(socket.query_params.get("offset", "0"))

        async def show() -> Ending:
            return await _show(wire, found, offset)

        async def both() -> Ending:
            return await talk(wire, found, show)

        return (both,)

    await converse(socket, sockets, parts)


async def _show(wire: Wire, found: Background, offset: int) -> Ending:
    async with found.follow(offset) as items:
        async for item in items:
            match item:
                case Output():
                    await send_output(wire, item)
                case Skipped():
                    await wire.send_record(skipped=item.size)
                case Exited():
                    await wire.send_record(exited=ended(item))
    return Ending(NORMAL, "The command ended.")


def read_offset(text: str) -> int:
    """Raises `UserError` (`bad_offset`)."""
    if not text.isascii() or not text.isdigit() or int(text[:20]) > OFFSET_MAX:
        raise UserError("bad_offset", "offset is a whole number of bytes, 0 for all.")
    return int(text)


def _view(found: Background) -> BackgroundCommand:
    record: Record = found.record
    exited = record.exited
    return BackgroundCommand(
        id=record.id,
        sandbox=record.sandbox,
        argv=record.argv,
        cwd=record.cwd,
        user=record.user,
        pty=record.pty,
        state=record.state,
        exit_code=exited.code if exited else None,
        signal=exited.signal if exited else None,
        killed=exited.killed if exited else None,
        reason=record.reason,
        started_at=record.started_at,
        ended_at=record.ended_at,
        output_begin=found.spool.begin,
        output_end=found.spool.end,
    )


ROUTES = (start_command, list_commands, get_command, end_command)
SOCKET_ROUTES = (attach,)
