"""A terminal in a sandbox: `WS /v1/sandboxes/{sandbox}/shell`, bytes both ways, JSON for what is not bytes."""

import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
from litestar import websocket
from litestar.di import NamedDependency
from msgspec import Meta

from cloister.core.commands import Command, Exited, Output, Process, Pty
from cloister.core.errors import UserError
from cloister.sandbox.api import Sandbox
from cloister.server.errors import describe
from cloister.server.sandboxes import SandboxName
from cloister.server.wire import NORMAL, TRY_LATER, Ending, Part, Socket, Sockets, Wire, converse

if TYPE_CHECKING:
    from cloister.app import App

SIZE_MAX = 1_000
"""Most rows or columns."""

SHELL_BYTES = 1 << 40
"""A terminal may print for as long as its sandbox lives; the client's reading is what slows it down."""

INPUT_BYTES = 1_048_576
"""What may wait for a program that does not read; more ends the conversation."""
_MESSAGE_BYTES = 64
"""What a waiting message costs beside its content."""

Size = Annotated[int, Meta(ge=1, le=SIZE_MAX)]


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terminal's new size, in characters."""

    rows: Size
    columns: Size


class ShellMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a text message may say; keys are typed in binary ones."""

    resize: Resize


_decode = msgspec.json.Decoder(ShellMessage).decode


@websocket("/v1/sandboxes/{sandbox:str}/shell")
async def shell(
    socket: Socket, app: NamedDependency["App"], sockets: NamedDependency[Sockets], sandbox: SandboxName
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        target = app.sandboxes.get(sandbox)
        size = read_size(socket.query_params.get("rows", "24"), socket.query_params.get("columns", "80"))

        async def talk() -> Ending:
            return await _talk(wire, target, size)

        return (talk,)

    await converse(socket, sockets, parts)


class _Keys:
    """What was typed and not yet read by the program."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = anyio.Event()

    def put(self, data: bytes) -> bool:
        """False when too much waits already."""
        if self._waiting and self._bytes + len(data) > INPUT_BYTES:
            return False
        self._waiting.append(data)
        self._bytes += len(data) + _MESSAGE_BYTES
        self._news.set()
        return True

    async def feed(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._waiting:
                await self._process.send(self._waiting[0])
                self._bytes -= len(self._waiting.popleft()) + _MESSAGE_BYTES


async def _talk(wire: Wire, sandbox: Sandbox, size: Resize) -> Ending:
    command = Command(
        ("/bin/bash", "-l"),
        env={"TERM": "xterm-256color"},
        seconds=max(1.0, sandbox.info.expires_at - time.time()),
        limit_bytes=SHELL_BYTES,
        pty=Pty(size.rows, size.columns),
    )
    endings: list[Ending] = []
    async with sandbox.start(command) as process, anyio.create_task_group() as tasks:
        keys = _Keys(process)

        async def listen() -> None:
            endings.append(await _listen(wire, process, keys))
            tasks.cancel_scope.cancel()

        async def show() -> None:
            endings.append(await _show(wire, process))
            tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        tasks.start_soon(show)
        tasks.start_soon(keys.feed)
    return endings[0]


async def _listen(wire: Wire, process: Process, keys: _Keys) -> Ending:
    while True:
        message = await wire.receive()
        if isinstance(message, str):
            await _control(wire, process, message)
        # Waiting for the program here would also be waiting to notice that the client hung up.
        elif not keys.put(message):
            return Ending(TRY_LATER, "The program does not read what you type.")


async def _control(wire: Wire, process: Process, message: str) -> None:
    try:
        wanted = _decode(message).resize
    except msgspec.MsgspecError as error:
        await wire.send_record(error={"code": "bad_message", "message": describe(error)})
    else:
        await process.resize(Pty(wanted.rows, wanted.columns))


async def _show(wire: Wire, process: Process) -> Ending:
    async for item in process:
        match item:
            case Output():
                await wire.send(item.data)
            case Exited():
                await wire.send_record(
                    exited={
                        "exit_code": item.code,
                        "signal": item.signal,
                        "killed": item.killed,
                        "seconds": item.seconds,
                    }
                )
    return Ending(NORMAL, "The shell ended.")


def read_size(rows: str, columns: str) -> Resize:
    """Raises `UserError` (`bad_size`)."""
    try:
        return msgspec.convert({"rows": rows, "columns": columns}, Resize, strict=False)
    except msgspec.ValidationError:
        raise UserError("bad_size", f"rows and columns are whole numbers from 1 to {SIZE_MAX:,}.") from None


ROUTES = (shell,)
