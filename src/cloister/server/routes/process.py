"""A command in a sandbox, live: `WS /v1/sandboxes/{sandbox}/process`, bytes both ways, JSON for what is not bytes."""

from collections import deque
from typing import Annotated, Protocol

import anyio
import msgspec
from litestar import websocket
from litestar.di import NamedDependency
from msgspec import Meta

from cloister.app.verbs.api import SandboxVerbs
from cloister.app.verbs.records import NewCommand, Terminal
from cloister.core.computer import Exited, Output, Process, Pty
from cloister.core.errors import UserError, describe
from cloister.server.errors import Problem
from cloister.server.routes import Given, of
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import NORMAL, TRY_LATER, Ending, Part, Socket, Sockets, Wire, converse

STDIN_BYTES = 1_048_576
"""What a client may send before it was told that some of it was taken; more ends the conversation."""

START_SECONDS = 30.0
"""How long a client may take to say what it wants."""

_MESSAGE_BYTES = 64
"""What a waiting message costs beside its content."""
_TAGS = {"out": b"\1", "err": b"\2"}


class First(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a client."""

    start: NewCommand


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a later text message may say: exactly one of these. Input is sent in binary ones."""

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
            raise UserError("bad_message", describe(error)) from None
        except (UnicodeDecodeError, RecursionError):
            raise UserError("bad_message", "The message is not JSON in UTF-8.") from None
    raise UserError("bad_message", f'Send {{"start": …}} within {START_SECONDS:g} seconds.')


class Steered(Protocol):
    """What can be done to a command that runs; see `Process`."""

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def resize(self, size: Pty) -> None: ...
    async def kill(self) -> None: ...


class _Input:
    """What the client sent and the program has not taken yet."""

    def __init__(self, wire: Wire, process: Steered) -> None:
        self._wire = wire
        self._process = process
        self._waiting: deque[bytes | None] = deque()
        """None is the end."""
        self._bytes = 0
        self._news = anyio.Event()

    def put(self, data: bytes | None) -> bool:
        """False when the client did not wait to be told that there is room."""
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
    """Pass on what the client says until `show` has shown all there is, or the client does what it may not."""
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
            # Waiting for the program here would also be waiting to notice that the client hung up.
            fits = keys.put(message) if isinstance(message, bytes) else await _obey(process, keys, message)
        except UserError as error:
            await wire.send_record(error=Problem(error.code, error.message))
        else:
            if not fits:
                return Ending(TRY_LATER, "The program does not read what you send: wait until it took some.")


async def _obey(process: Steered, keys: _Input, message: str) -> bool:
    """False when there is no room for what was said. Raises `UserError`."""
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
        raise UserError("bad_message", describe(error)) from None
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
    """How a command ended, in the words of `exec`."""
    return {
        "exit_code": exited.code,
        "signal": exited.signal,
        "killed": exited.killed,
        "seconds": exited.seconds,
    }
