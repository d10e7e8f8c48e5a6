"""One command in a sandbox on our stdin, stdout and stderr, or on our terminal: bytes as they come, both ways."""

import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec
from anyio import to_thread

from cloister.cli.client.discover import Place
from cloister.cli.client.stream import check_close, dial
from cloister.cli.screen.terminal import Quiet, is_terminal, raw, read_some, terminal_size, write_all
from cloister.core.errors import CloisterError, HostError, SandboxLost
from cloister.core.text import one_line

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

STDIN_BYTES = 1_048_576
"""What we send before we are told that some of it was taken."""


class Exited(msgspec.Struct, frozen=True):
    exit_code: int | None
    signal: int | None = None
    killed: str | None = None


class _Said(msgspec.Struct, frozen=True):
    exited: Exited | None = None
    taken: int = 0
    skipped: int = 0
    error: dict[str, str] = {}


class Wanted(NamedTuple):
    """What to run inside."""

    argv: tuple[str, ...]
    cwd: str
    user: str
    seconds: float | None = None
    tty: bool = False


_decode = msgspec.json.Decoder(_Said).decode


def status_of(exited: Exited) -> int:
    """A command's end as an exit status, the way a shell says it: a signal is 128 and its number."""
    if exited.killed is not None:
        print(f"cloister: the command was ended by us ({exited.killed}).", file=sys.stderr)
    if exited.exit_code is not None:
        return exited.exit_code
    return 128 + (exited.signal or 0)


async def run_process(place: Place, sandbox: str, wanted: Wanted) -> int:
    """Run it with what is ours; returns its exit status. Raises what it was refused with."""
    from websockets.exceptions import ConnectionClosed

    async with dial(place, f"/v1/sandboxes/{sandbox}/process", patient=True) as socket:
        with suppress(ConnectionClosed):  # a refusal may be faster than we are; it is found below
            await socket.send(msgspec.json.encode({"start": start_of(wanted)}).decode())
        return await pass_on(socket, tty=wanted.tty)


def start_of(wanted: Wanted) -> dict[str, object]:
    """What the server wants to hear."""
    start: dict[str, object] = {"argv": wanted.argv, "cwd": wanted.cwd, "user": wanted.user}
    if wanted.seconds is not None:
        start["seconds"] = wanted.seconds
    if wanted.tty:
        rows, columns = terminal_size()
        start["pty"] = {"rows": rows, "columns": columns}
        start["env"] = {"TERM": "xterm-256color"}
    return start


async def run_attached(place: Place, path: str, stdin: bool) -> int:
    """Follow a background command to its end; returns its exit status. Leaving earlier does not end it."""
    async with dial(place, path, patient=True) as socket:
        return await pass_on(socket, stdin=stdin)


async def pass_on(socket: "ClientConnection", *, tty: bool = False, stdin: bool = True) -> int:
    """Our input to the command and its output to us, until it ends; returns its exit status."""
    talk = _Talk(socket, raw=tty)
    failures: list[CloisterError] = []
    with raw(0, wanted=tty):
        async with anyio.create_task_group() as tasks:
            if stdin:
                tasks.start_soon(talk.type)
            if tty:
                tasks.start_soon(talk.resize)
            try:
                await talk.show()
            except CloisterError as error:
                failures.append(error)
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if talk.exited is None:
        raise _ended(socket)
    return status_of(talk.exited)


class _Talk:
    def __init__(self, socket: "ClientConnection", *, raw: bool) -> None:
        # A pipe gets the very bytes; a terminal that was not handed over is shown text and nothing that acts.
        self._shown = {} if raw else {number: Quiet() for number in (1, 2) if is_terminal(number)}
        self.exited: Exited | None = None
        self._socket = socket
        self._may_send = STDIN_BYTES
        self._room = anyio.Event()

    async def show(self) -> None:
        """Write what arrives until the command has ended or the connection has."""
        from websockets.exceptions import ConnectionClosed

        try:
            while self.exited is None:
                message = await self._socket.recv()
                if isinstance(message, bytes):
                    await self._write(message[0], message[1:])
                else:
                    self._hear(_decode(message))
        except ConnectionClosed:
            pass
        for number, shown in self._shown.items():
            await to_thread.run_sync(write_all, number, shown.end(), abandon_on_cancel=True)

    async def _write(self, number: int, data: bytes) -> None:
        shown = self._shown.get(number)
        # In a thread: whoever reads our output may take its time, and Ctrl-C must still work.
        await to_thread.run_sync(
            write_all, number, data if shown is None else shown.feed(data), abandon_on_cancel=True
        )

    def _hear(self, said: _Said) -> None:
        self.exited = said.exited
        self._may_send += said.taken
        self._room.set()
        if said.skipped:
            print(f"cloister: {said.skipped:,} bytes of output are no longer kept.", file=sys.stderr)
        if said.error:
            print(f"cloister: {one_line(said.error.get('message', ''), 400)}", file=sys.stderr)

    async def type(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while data := await read_some(0):
                while self._may_send < len(data):
                    self._room = anyio.Event()
                    await self._room.wait()
                self._may_send -= len(data)
                await self._socket.send(data)
            await self._socket.send('{"eof": true}')
        except ConnectionClosed:
            return  # `show` says why

    async def resize(self) -> None:
        with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
            async for _ in signals:
                rows, columns = terminal_size()
                resized = {"resize": {"rows": rows, "columns": columns}}
                await self._socket.send(msgspec.json.encode(resized).decode())


def _ended(socket: "ClientConnection") -> Exception:
    check_close(socket.close_code, socket.close_reason or "")
    if socket.close_code == 1001:
        return HostError("server_stopping", "The server stopped, and with it the sandbox.")
    return SandboxLost(socket.close_reason or "The connection to the sandbox was lost.")
