"""Live connections into a sandbox: a command (`WS …/process`), and a plain one to a port (`WS …/dial/{port}`).

Bytes go both ways in binary messages; everything else is JSON in text messages.
"""

from collections import deque
from typing import Annotated

import anyio
import msgspec
from anyio.abc import ByteStream
from litestar import websocket
from litestar.di import NamedDependency
from litestar.params import PathParameter
from msgspec import Meta

from cloister.app.verbs.api import SandboxVerbs, Steered
from cloister.app.verbs.records import NewCommand, Terminal
from cloister.core.computer import Exited, Output, Process, Pty
from cloister.core.errors import UserError, describe
from cloister.server.errors import Problem
from cloister.server.routes import Given, of
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import NORMAL, TRY_LATER, Ending, Part, Socket, Sockets, Wire, converse

STDIN_BYTES = 1_048_576
"""How much a client may send ahead of `taken`; more ends the conversation."""

START_SECONDS = 30.0
"""How long a client may take to send `start`."""

_MESSAGE_BYTES = 64
"""Overhead of a waiting message."""
_TAGS = {"out": b"\1", "err": b"\2"}


class First(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a client."""

    start: NewCommand


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A later text message: exactly one of these. Input is sent in binary ones."""

    eof: bool | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    resize: Terminal | None = None
    kill: bool | None = None


_first = msgspec.json.Decoder(First).decode
_said = msgspec.json.Decoder(Said).decode


@websocket("/v1/sandboxes/{sandbox:str}/process", **of(SandboxVerbs.process))
async def process(
    socket: Socket, verbs: Given, sockets: NamedDependency[Sockets], sandbox: SandboxName
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        await verbs.sandboxes.get(sandbox)

        async def run() -> Ending:
            async with verbs.sandboxes.process(sandbox, await _wanted(wire)) as started:
                return await talk(wire, started, lambda: _show(wire, started))

        return (run,)

    await converse(socket, sockets, parts)


async def _wanted(wire: Wire) -> NewCommand:
    """Raises `UserError` (`bad_message`)."""
    with anyio.move_on_after(START_SECONDS):
        message = await wire.receive()
        try:
            return _first(message).start
        except msgspec.MsgspecError as error:
            raise UserError("bad_message", describe(error, First)) from None
        except (UnicodeDecodeError, RecursionError):
            raise UserError("bad_message", "The message is not JSON in UTF-8.") from None
    raise UserError("bad_message", f'Send {{"start": …}} within {START_SECONDS:g} seconds.')


class _Input:
    """The client's input that the program has not read yet."""

    def __init__(self, wire: Wire, process: Steered) -> None:
        self._wire = wire
        self._process = process
        self._waiting: deque[bytes | None] = deque()
        """None is the end."""
        self._bytes = 0
        self._news = anyio.Event()

    def put(self, data: bytes | None) -> bool:
        """False when the client sent more than there is room for."""
        size = len(data or b"")
        if self._waiting and self._bytes + size + _MESSAGE_BYTES > 2 * STDIN_BYTES:
            return False
        self._waiting.append(data)
        self._bytes += size + _MESSAGE_BYTES
        self._news.set()
        return True

    async def feed(self) -> None:
        taken = 0
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            while self._waiting:
                data = self._waiting[0]
                await (self._process.send_eof() if data is None else self._process.send(data))
                self._waiting.popleft()
                self._bytes -= len(data or b"") + _MESSAGE_BYTES
                taken += len(data or b"")
                if taken >= STDIN_BYTES // 4:
                    await self._wire.send_record(taken=taken)
                    taken = 0


async def talk(wire: Wire, process: Steered, show: Part) -> Ending:
    """Pass on the client's messages until `show` ends or the client overruns its input."""
    endings: list[Ending] = []
    async with anyio.create_task_group() as tasks:
        keys = _Input(wire, process)

        async def listen() -> None:
            endings.append(await _listen(wire, process, keys))
            tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        tasks.start_soon(keys.feed)
        endings.append(await show())
        tasks.cancel_scope.cancel()
    return endings[0]


async def _listen(wire: Wire, process: Steered, keys: _Input) -> Ending:
    while True:
        message = await wire.receive()
        try:
            # Never wait for the program here: this task also notices when the client hangs up.
            fits = keys.put(message) if isinstance(message, bytes) else await _obey(process, keys, message)
        except UserError as error:
            await wire.send_record(error=Problem(error.code, error.message))
        else:
            if not fits:
                return Ending(TRY_LATER, "The program does not read what you send: wait until it took some.")


async def _obey(process: Steered, keys: _Input, message: str) -> bool:
    """Carry out a text message; False when there is no room for it. Raises `UserError`."""
    said = read_said(message)
    if said.eof:
        return keys.put(None)
    if said.signal is not None:
        await process.signal(said.signal)
    elif said.resize is not None:
        await process.resize(Pty(said.resize.rows, said.resize.columns))
    else:
        await process.kill()
    return True


def read_said(message: str) -> Said:
    """The message as a record. Raises `UserError` (`bad_message`)."""
    try:
        said = _said(message)
    except msgspec.MsgspecError as error:
        raise UserError("bad_message", describe(error, Said)) from None
    except RecursionError:
        raise UserError("bad_message", "The message is nested too deeply.") from None
    given = (said.eof, said.signal, said.resize, said.kill)
    if sum(each is not None for each in given) != 1 or False in given:
        raise UserError(
            "bad_message", 'Send one of {"eof": true}, {"signal": N}, {"resize": {…}} and {"kill": true}.'
        )
    return said


async def send_output(wire: Wire, output: Output) -> None:
    await wire.send_patiently(_TAGS[output.stream] + output.data)


async def _show(wire: Wire, process: Process) -> Ending:
    async for item in process:
        match item:
            case Output():
                await send_output(wire, item)
            case Exited():
                await wire.send_record(exited=ended(item))
    return Ending(NORMAL, "The command ended.")


def ended(exited: Exited) -> dict[str, object]:
    """How a command ended, with the field names of `exec`."""
    return {
        "exit_code": exited.code,
        "signal": exited.signal,
        "killed": exited.killed,
        "seconds": exited.seconds,
    }


# A plain connection to a port inside.

STALLED_SECONDS = 600.0
"""How long a server inside may leave its input unread."""

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)

Port = Annotated[int, PathParameter(description="A port of the loopback inside.")]


@websocket("/v1/sandboxes/{sandbox:str}/dial/{port:int}", **of(SandboxVerbs.dial))
async def dial(
    socket: Socket,
    verbs: Given,
    sockets: NamedDependency[Sockets],
    sandbox: SandboxName,
    port: Port,
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        connection = verbs.sandboxes.dial(sandbox, port)

        async def run() -> Ending:
            async with connection as stream:
                await wire.send_record(connected=port)
                return await _both(wire, stream)

        return (run,)

    await converse(socket, sockets, parts)


async def _both(wire: Wire, stream: ByteStream) -> Ending:
    endings: list[Ending] = []
    async with anyio.create_task_group() as tasks:

        async def inwards() -> None:
            try:
                await _inwards(wire, stream)
            except TimeoutError:
                endings.append(Ending(TRY_LATER, "The server inside does not read."))
                tasks.cancel_scope.cancel()

        tasks.start_soon(inwards)
        async for data in stream:
            await wire.send_patiently(data)
        endings.append(Ending(NORMAL, "The server inside closed the connection."))
        tasks.cancel_scope.cancel()
    return endings[0]


async def _inwards(wire: Wire, stream: ByteStream) -> None:
    """Pass on the client's bytes; a text message is their end. Keeps receiving, to notice when the client leaves."""
    while True:
        message = await wire.receive()
        try:
            with anyio.fail_after(STALLED_SECONDS):
                await (stream.send_eof() if isinstance(message, str) else stream.send(message))
        except _GONE:
            continue  # closed inside; its last output is still being passed on
