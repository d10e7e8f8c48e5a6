"""A shell in a sandbox on this terminal: its output as it comes, our keys as they are typed."""

import os
import signal
import stat
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio import to_thread

from cloister.cli.living import Place
from cloister.cli.remote import check_close, dial
from cloister.core.errors import HostError, SandboxLost
from cloister.core.ids import SandboxId

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

READ_BYTES = 16_384


class Exited(msgspec.Struct, frozen=True):
    exit_code: int | None
    signal: int | None = None
    killed: str | None = None


class _Said(msgspec.Struct, frozen=True):
    exited: Exited | None = None


_decode = msgspec.json.Decoder(_Said).decode


def status_of(exited: Exited) -> int:
    """A command's end as an exit status, the way a shell says it: a signal is 128 and its number."""
    if exited.killed is not None:
        print(f"cloister: the command was ended by us ({exited.killed}).", file=sys.stderr)
    if exited.exit_code is not None:
        return exited.exit_code
    return 128 + (exited.signal or 0)


async def run_shell(place: Place, sandbox: SandboxId) -> int:
    """A login shell on this terminal, in raw mode; returns its exit status."""
    rows, columns = _size()
    path = f"/v1/sandboxes/{sandbox}/shell?rows={rows}&columns={columns}"
    exited: list[Exited] = []
    async with dial(place, path) as socket:
        with _raw(sys.stdin.fileno()):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_type, socket)
                tasks.start_soon(_resize, socket)
                exited.extend(await _show(socket))
                tasks.cancel_scope.cancel()
    if not exited:
        raise _ended(socket)
    return status_of(exited[0])


async def _show(socket: "ClientConnection") -> list[Exited]:
    """Write what arrives until the program has ended or the connection has."""
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                write_all(sys.stdout.fileno(), message)
            elif exited := _decode(message).exited:
                return [exited]
    except ConnectionClosed:
        return []


def _ended(socket: "ClientConnection") -> Exception:
    check_close(socket.close_code, socket.close_reason or "")
    if socket.close_code == 1001:
        return HostError("server_stopping", "The server stopped, and with it the sandbox.")
    return SandboxLost(socket.close_reason or "The connection to the sandbox was lost.")


async def _type(socket: "ClientConnection") -> None:
    while data := await read_some(sys.stdin.fileno()):
        await socket.send(data)


async def _resize(socket: "ClientConnection") -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            rows, columns = _size()
            await socket.send(msgspec.json.encode({"resize": {"rows": rows, "columns": columns}}).decode())


async def read_some(descriptor: int) -> bytes:
    """What can be read now; empty at the end. Cancelling it leaves no thread behind."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # A plain file cannot be waited for, and never makes us wait.
        return await to_thread.run_sync(os.read, descriptor, READ_BYTES)
    try:
        await anyio.wait_readable(descriptor)
    except PermissionError:
        # Devices such as /dev/null cannot be waited for either.
        return await to_thread.run_sync(os.read, descriptor, READ_BYTES)
    return os.read(descriptor, READ_BYTES)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _size() -> tuple[int, int]:
    size = os.get_terminal_size(sys.stdout.fileno())
    return max(1, min(1_000, size.lines)), max(1, min(1_000, size.columns))


@contextmanager
def _raw(descriptor: int) -> Generator[None]:
    """Keys go through as they are; the terminal is as before when the block ends, however it ends."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
