"""The host half of the guest protocol: a `Computer` over two byte streams. See guest/README.md."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import ceil

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream

from cloister.core import limits
from cloister.core.computer import Change, Command, Entry, Exited, Finished, Output, Pty, Sink
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.local.spec import PROXY_PORT
from cloister.sandbox.protocol import frames, requests
from cloister.sandbox.protocol.frames import ProtocolBroken
from cloister.sandbox.protocol.mux import LATE_SECONDS, TURN, CommandChannel, LinkDoor, Mux
from cloister.sandbox.protocol.outbox import Outbox
from cloister.sandbox.protocol.requests import (
    FILE_SECONDS,
    SECONDS_MAX,
    TREE_SECONDS,
    file_error,
    file_frame,
    inside_path,
    start_error,
    start_frame,
    terminal_size,
)

HELLO_SECONDS = 30.0
LISTING_BYTES = 16_777_216
"""Largest directory listing."""

_ENTRY_BYTES = 512
_MARK_BYTES = 8


class RunningCommand:
    """A `Process`: the output in order, then exactly one `Exited`."""

    def __init__(self, channel: CommandChannel, outbox: Outbox, command: Command) -> None:
        self.channel = channel
        self._outbox = outbox
        self._command = command
        self._over = False

    def __aiter__(self) -> AsyncIterator[Output | Exited]:
        return self

    async def __anext__(self) -> Output | Exited:
        if self._over:
            raise StopAsyncIteration
        match await self.channel.next():
            case Output() as output:
                return output
            case frames.Exit() as end:
                self._over = True
                return self.channel.exited(end)
            case frames.Fail() as fail:
                self._over = True
                raise start_error(self._command, fail)

    async def send(self, data: bytes) -> None:
        await self.channel.send(data)

    async def send_eof(self) -> None:
        self.channel.send_eof()

    async def signal(self, number: int) -> None:
        if not 1 <= number <= 64:
            raise UserError("bad_signal", f"There is no signal {number}: use a number from 1 to 64.")
        await self._outbox.room()
        self.channel.signal(number)

    async def resize(self, size: Pty) -> None:
        if self._command.pty is None:
            raise UserError("no_terminal", "This command has no terminal to resize: start it with a pty.")
        rows, columns = terminal_size(size)
        await self._outbox.room()
        if self.channel.end is None:
            self._outbox.post(frames.Resize(self.channel.id, rows, columns))

    async def kill(self) -> None:
        await self._outbox.room()
        self.channel.kill(self._command.grace_seconds)


class FileSink:
    """A file that is being written."""

    def __init__(self, channel: CommandChannel, path: str) -> None:
        self._channel = channel
        self._path = path

    async def send(self, data: bytes) -> None:
        await self._channel.send(data)
        if isinstance(self._channel.end, frames.Fail):
            raise file_error("write", self._path, self._channel.end)


class Link:
    """A `Computer` behind a guest. Made by `link_over`; the sandboxes of each tier build on it."""

    def __init__(self, env: Mapping[str, str], mux: Mux) -> None:
        self.env = dict(env)
        self.mux = mux

    @property
    def lost(self) -> anyio.Event:
        return self.mux.lost

    @property
    def reason(self) -> str:
        """Why it was lost."""
        return self.mux.reason

    async def fail(self, reason: str) -> None:
        """Give up the sandbox: every waiter raises `SandboxLost` with this reason."""
        self.mux.lose(reason)

    def held(self, *, quiet: bool = False) -> AbstractAsyncContextManager[bool]:
        return self.mux.held(quiet=quiet)

    async def tell_ttl(self, ttl_seconds: float) -> None:
        """Tell the guest another time to live, from now on; it may end up to a second later."""
        await self.mux.outbox.room()
        self.mux.outbox.post(frames.Live(ceil(ttl_seconds)))

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[RunningCommand]:
        """Run `command`; leaving the block kills its whole process tree and waits for that.

        If it cannot be started, reading its output raises `UserError` (`not_found`, `denied`, `not_a_directory`,
        `start_failed`).
        """
        start = start_frame(self.mux.next_command, command, self.env)
        channel = self.mux.open(start, command.limit_bytes, command.seconds + command.grace_seconds)
        try:
            yield RunningCommand(channel, self.mux.outbox, command)
        finally:
            await self.mux.close(channel, command.grace_seconds)

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        out, err = bytearray(), bytearray()
        async with self.start(command) as process:
            await self._feed(process.channel, stdin)
            async for item in process:
                match item:
                    case Output("out", data):
                        out += data
                    case Output(_, data):
                        err += data
                    case Exited():
                        return Finished(item, bytes(out), bytes(err))
        raise SandboxLost("The guest ended a command without a status.")

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        if not 0 <= limit_bytes <= limits.FILE_BYTES:
            raise UserError("file_failed", f"At most {limits.FILE_BYTES:,} bytes can be read at once.")
        argv = (inside_path(path), _offset(offset), str(limit_bytes))
        return await self._file("read", argv, limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if len(data) > limits.FILE_BYTES:
            raise UserError("file_failed", f"A file may have at most {limits.FILE_BYTES:,} bytes.")
        await self._file("write", (inside_path(path), f"{mode & 0o7777:o}", str(len(data))), 0, data)

    async def list(self, path: str) -> tuple[Entry, ...]:
        return await self._entries(await self._file("list", (inside_path(path),), LISTING_BYTES))

    async def stat(self, path: str) -> Entry:
        entries = await self._entries(await self._file("stat", (inside_path(path),), _ENTRY_BYTES))
        if len(entries) != 1:
            raise self.mux.broken(ProtocolBroken("more or less than one file"))
        return entries[0]

    async def mark(self, path: str, *, without: str = "") -> int | None:
        data = await self._file("mark", (inside_path(path), without), _MARK_BYTES)
        if len(data) not in (0, _MARK_BYTES):
            raise self.mux.broken(ProtocolBroken("half a mark"))
        return int.from_bytes(data, "little") if data else None

    async def move(self, source: str, target: str) -> None:
        argv = (inside_path(source), inside_path(target))
        async with self._operation("move", argv, 0, TREE_SECONDS) as channel:
            self._whole(await _end_of(channel), channel, "move", source)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        argv = (inside_path(path), "1" if recursive else "0")
        async with self._operation("remove", argv, 0, TREE_SECONDS) as channel:
            self._whole(await _end_of(channel), channel, "remove", path)

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        await self._file("mkdir", (inside_path(path), f"{mode & 0o7777:o}"), 0)

    @asynccontextmanager
    async def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        most = 2**63 - 1 if limit_bytes is None else max(0, limit_bytes)
        argv = (inside_path(path), _offset(offset), str(most))
        async with self._operation("read", argv, limits.ENDLESS_BYTES, None) as channel:
            first = await channel.next()
            if isinstance(first, frames.Fail):
                raise file_error("read", argv[0], first)
            pieces = self._pieces(channel, first, argv[0])
            try:
                yield pieces
            finally:
                await pieces.aclose()

    async def _pieces(
        self, channel: CommandChannel, item: Output | frames.Exit | frames.Fail, path: str
    ) -> AsyncGenerator[bytes]:
        while isinstance(item, Output):
            yield item.data
            item = await channel.next()
        self._whole(item, channel, "read", path)

    @asynccontextmanager
    async def write_stream(self, path: str, *, mode: int = 0o644) -> AsyncGenerator[Sink]:
        argv = (inside_path(path), f"{mode & 0o7777:o}", "-")
        async with self._operation("write", argv, 0, None) as channel:
            yield FileSink(channel, argv[0])
            channel.send_eof()
            self._whole(await _end_of(channel), channel, "write", argv[0])

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncGenerator[AsyncIterator[Change]]:
        async with self._operation("watch", (inside_path(path),), limits.ENDLESS_BYTES, None) as channel:
            changes = self._changes(channel, inside_path(path))
            if await anext(changes) is not None:
                raise self.mux.broken(ProtocolBroken("a change before it watches"))
            try:
                yield (change async for change in changes if change is not None)
            finally:
                await changes.aclose()

    async def _changes(self, channel: CommandChannel, path: str) -> AsyncGenerator[Change | None]:
        records = frames.Changes()
        while isinstance(item := await channel.next(), Output):
            try:
                found = records.feed(item.data)
            except ProtocolBroken as error:
                raise self.mux.broken(error) from error
            for count, change in enumerate(found, 1):
                yield change
                if count % TURN == 0:
                    await anyio.lowlevel.checkpoint()
        self._whole(item, channel, "watch", path)

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return requests.download(self, path)

    def upload(self, path: str) -> AbstractAsyncContextManager[Sink]:
        return requests.upload(self, path)

    async def dial(self, port: int) -> ByteStream:
        if not 1 <= port <= 65_535 or port == PROXY_PORT:
            raise UserError("bad_port", f"{port} is not a port that a server inside can use.")
        return await self.mux.dial(port)

    @asynccontextmanager
    async def _operation(
        self, kind: frames.Kind, argv: tuple[str, ...], limit: int, seconds: float | None
    ) -> AsyncGenerator[CommandChannel]:
        """Run a file operation; `seconds` of None is as long as the sandbox lives."""
        start = file_frame(self.mux.next_command, kind, argv, seconds or 0)
        channel = self.mux.open(start, limit, (seconds or SECONDS_MAX) + limits.GRACE_SECONDS)
        try:
            yield channel
        finally:
            await self.mux.close(channel, limits.GRACE_SECONDS)

    async def _file(self, kind: frames.Kind, argv: tuple[str, ...], limit: int, stdin: bytes = b"") -> bytes:
        out = bytearray()
        async with self._operation(kind, argv, limit, FILE_SECONDS) as channel:
            await self._feed(channel, stdin)
            while isinstance(item := await channel.next(), Output):
                out += item.data
            self._whole(item, channel, kind, argv[0])
        return bytes(out)

    def _whole(
        self, end: frames.Exit | frames.Fail, channel: CommandChannel, kind: frames.Kind, path: str
    ) -> None:
        """Raises `UserError` unless the operation was completed."""
        if isinstance(end, frames.Fail):
            raise file_error(kind, path, end)
        exited = channel.exited(end)
        if exited.killed == "output":
            raise UserError("file_failed", f"{path} is too large to be read at once.")
        if not exited.ok:
            raise UserError("file_failed", f"{path}: the file operation was interrupted; try again.")

    async def _entries(self, data: bytes) -> tuple[Entry, ...]:
        try:
            if len(data) < limits.FRAME_BYTES:
                return frames.decode_entries(data)
            return await to_thread.run_sync(frames.decode_entries, data)
        except ProtocolBroken as error:
            raise self.mux.broken(error) from error

    async def _feed(self, channel: CommandChannel, data: bytes) -> None:
        if len(data) > limits.WINDOW_BYTES:
            self.mux.feed_later(channel, data)
            return
        await channel.send(data)
        channel.send_eof()


async def _end_of(channel: CommandChannel) -> frames.Exit | frames.Fail:
    while isinstance(item := await channel.next(), Output):
        pass
    return item


def _offset(offset: int) -> str:
    if not 0 <= offset < 2**63:
        raise UserError("file_failed", "The offset of a file must not be negative.")
    return str(offset)


@asynccontextmanager
async def link_over(
    stdin: ByteSendStream,
    stdout: ByteReceiveStream,
    setup: frames.Setup | tuple[frames.Wake, frames.Setup],
    *,
    env: Mapping[str, str],
    door: LinkDoor | None = None,
    late_seconds: float = LATE_SECONDS,
) -> AsyncGenerator[Link]:
    """A link to the guest behind these streams, once it is ready; leaving the block ends the guest.

    `door` serves each connection to the proxy port inside; without one it is closed at once, and a proxy port of 0
    is not opened. `Wake` comes first for a saved machine. A guest that has not ended a command `late_seconds` after
    it was due is lost. Raises `SandboxLost` when the guest does not get ready.
    """
    caught: Exception | None = None
    async with anyio.create_task_group() as tasks:
        mux = Mux(door, tasks, late_seconds)
        tasks.start_soon(mux.talk, stdin, stdout, setup if isinstance(setup, tuple) else (setup,))
        try:
            with anyio.move_on_after(HELLO_SECONDS):
                await mux.ready.wait()
            if not mux.ready.is_set():
                mux.lose(f"The guest did not get ready within {HELLO_SECONDS:g} seconds.")
            if mux.lost.is_set():
                raise SandboxLost(mux.reason)
            yield Link(env, mux)
        except Exception as error:
            # Carried out of the task group, which would wrap it.
            caught = error
        finally:
            mux.lose("The sandbox was closed.")
            tasks.cancel_scope.cancel()
    if caught is not None:
        raise caught
