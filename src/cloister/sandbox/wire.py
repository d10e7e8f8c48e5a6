"""The host half of the guest protocol: a `Computer` over two byte streams. See guest/README.md.

Everything the guest sends is untrusted. What breaks a rule, and what does not come in time, loses the link:
then every waiter raises `SandboxLost` at once.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, TaskGroup

from cloister.core import limits
from cloister.core.commands import Command, Entry, Exited, Finished, Output, Pty
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox import frames
from cloister.sandbox.channels import LATE_SECONDS, CommandChannel, RelayStream, Signpost
from cloister.sandbox.frames import Decoder, ProtocolBroken, decode_from_guest, encode
from cloister.sandbox.plan import PROXY_PORT
from cloister.sandbox.starts import (
    FILE_SECONDS,
    file_error,
    file_frame,
    inside_path,
    start_error,
    start_frame,
    terminal_size,
    too_many,
)

HELLO_SECONDS = 30.0
LISTING_BYTES = 16_777_216
"""Longest directory listing that is taken."""

_OUTBOX_BYTES = 4_194_304
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

logger = logging.getLogger(__name__)

LinkDoor = Callable[[ByteStream], Awaitable[None]]


class Outbox:
    """Frames on their way to the guest. What may be in it is bounded by the credit of the channels."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._size = 0
        self._filled = Signpost()
        self._emptied = Signpost()
        self._closed = False

    def post(self, frame: frames.FromHost) -> None:
        self.post_bytes(encode(frame))

    def post_bytes(self, data: bytes) -> None:
        if self._closed:
            return
        self._frames.append(data)
        self._size += len(data)
        self._filled.happened()

    def close(self) -> None:
        self._closed = True
        self._frames.clear()
        self._size = 0
        self._emptied.happened()

    async def room(self) -> None:
        """Wait until there is room for frames that no credit bounds."""
        while self._size > _OUTBOX_BYTES:
            await self._emptied.wait()

    async def send_all(self, stream: ByteSendStream) -> None:
        while True:
            while not self._frames:
                await self._filled.wait()
            data = b"".join(self._frames)
            self._frames.clear()
            self._size = 0
            await stream.send(data)
            self._emptied.happened()


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


class Link:
    """A `Computer` behind a guest. Made by `open_link`."""

    def __init__(
        self, env: Mapping[str, str], door: LinkDoor | None, tasks: TaskGroup, late_seconds: float
    ) -> None:
        self.lost = anyio.Event()
        self.reason = ""
        self.ready = anyio.Event()
        self._env = dict(env)
        self._door = door
        self._tasks = tasks
        self._late_seconds = late_seconds
        self._outbox = Outbox()
        self._greeted = False
        self._commands: dict[int, CommandChannel] = {}
        self._relays: dict[int, RelayStream] = {}
        self._doors = 0
        self._last_command = 0
        self._last_relay = frames.FIRST_RELAY - 1

    async def fail(self, reason: str) -> None:
        """Give the sandbox up: everything that waits on it raises `SandboxLost` with this reason."""
        self._lose(reason)

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[RunningCommand]:
        """Run `command`; leaving the block before its end kills its whole tree and waits for that.

        A command that cannot be started raises `UserError` when it is first asked for output: `not_found`,
        `denied` (program or directory), `not_a_directory` (`cwd`) or `start_failed`.
        """
        start = start_frame(self._last_command + 1, command, self._env)
        channel = self._open(start, command.limit_bytes, command.seconds + command.grace_seconds)
        try:
            yield RunningCommand(channel, self._outbox, command)
        finally:
            await self._close(channel, command.grace_seconds)

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
        raise SandboxLost("The guest ended a command without saying how.")

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        if not 0 <= offset < 2**63 or not 0 <= limit_bytes <= limits.FILE_BYTES:
            raise UserError(
                "file_failed", f"At most {limits.FILE_BYTES:,} bytes can be read at once, from 0 or later on."
            )
        argv = (inside_path(path), str(offset), str(limit_bytes))
        return await self._file("read", argv, limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if len(data) > limits.FILE_BYTES:
            raise UserError("file_failed", f"A file of more than {limits.FILE_BYTES:,} bytes is not taken.")
        await self._file("write", (inside_path(path), f"{mode & 0o7777:o}", str(len(data))), 0, data)

    async def list(self, path: str) -> tuple[Entry, ...]:
        data = await self._file("list", (inside_path(path),), LISTING_BYTES)
        try:
            return frames.decode_entries(data)
        except ProtocolBroken as error:
            raise self._broken(error) from error

    async def _file(self, kind: frames.Kind, argv: tuple[str, ...], limit: int, stdin: bytes = b"") -> bytes:
        start = file_frame(self._last_command + 1, kind, argv)
        channel = self._open(start, limit, FILE_SECONDS + limits.GRACE_SECONDS)
        out = bytearray()
        try:
            await self._feed(channel, stdin)
            while isinstance(item := await channel.next(), Output):
                out += item.data
        finally:
            await self._close(channel, limits.GRACE_SECONDS)
        if isinstance(item, frames.Fail):
            raise file_error(kind, argv[0], item)
        exited = channel.exited(item)
        if exited.killed == "output":
            raise UserError("file_failed", f"{argv[0]} has more in it than can be taken at once.")
        if not exited.ok:
            raise UserError("file_failed", f"{argv[0]}: the file operation was interrupted; try again.")
        return bytes(out)

    async def _feed(self, channel: CommandChannel, data: bytes) -> None:
        if len(data) > limits.WINDOW_BYTES:
            self._tasks.start_soon(self._feed_slowly, channel, data)
            return
        await channel.send(data)
        channel.send_eof()

    async def _feed_slowly(self, channel: CommandChannel, data: bytes) -> None:
        with suppress(SandboxLost):  # whoever waits for the end hears of it too
            await channel.send(data)
            channel.send_eof()

    def _open(self, start: frames.Start, limit_bytes: int, seconds: float) -> CommandChannel:
        if self.lost.is_set():
            raise SandboxLost(self.reason)
        if len(self._commands) >= limits.CONCURRENT_COMMANDS:
            raise too_many()
        try:
            self._outbox.post(start)
        except ValueError:
            raise UserError(
                "command_too_long",
                f"The command and its environment are over {limits.FRAME_BYTES:,} bytes: "
                "put the long text into a file or send it on stdin.",
            ) from None
        channel = CommandChannel(
            start.channel,
            self._outbox.post,
            limit_bytes=limit_bytes,
            deadline=anyio.current_time() + seconds,
            late_seconds=self._late_seconds,
        )
        self._last_command = channel.id
        self._commands[channel.id] = channel
        return channel

    async def _close(self, channel: CommandChannel, grace_seconds: float) -> None:
        if channel.end is None and channel.lost is None and not channel.late:
            with anyio.CancelScope(shield=True):
                channel.drop()
                await channel.wait_end(grace_seconds)
        if channel.late:
            self._lose("The guest did not end a command in time.")
        self._commands.pop(channel.id, None)

    def _broken(self, error: ProtocolBroken) -> SandboxLost:
        self._lose(f"The guest broke the protocol: {error}.")
        return SandboxLost(self.reason)

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        self.reason = reason
        self.lost.set()
        self.ready.set()
        self._outbox.close()
        for channel in self._commands.values():
            channel.lose(reason)
        for relay in list(self._relays.values()):
            relay.peer_closed()

    async def talk(self, stdin: ByteSendStream, stdout: ByteReceiveStream, setup: frames.Setup) -> None:
        """Move frames both ways until the link is lost."""
        self._outbox.post(setup)
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._write, stdin)
                both.start_soon(self._read, stdout)
                await self.lost.wait()
                both.cancel_scope.cancel()
        finally:
            # Nobody reads any more, so nobody may go on waiting for an answer; cancelled from outside, too.
            self._lose("The sandbox was closed.")
            # The end of its input is the end of the guest.
            with anyio.CancelScope(shield=True), suppress(*_GONE):
                await stdin.aclose()

    async def _write(self, stdin: ByteSendStream) -> None:
        try:
            await self._outbox.send_all(stdin)
        except _GONE:
            self._lose("The guest is gone.")

    async def _read(self, stdout: ByteReceiveStream) -> None:
        decoder = Decoder(decode_from_guest)
        try:
            while not self.lost.is_set():
                for frame in decoder.feed(await stdout.receive()):
                    self._handle(frame)
        except ProtocolBroken as error:
            self._broken(error)
        except _GONE:
            self._lose("The guest is gone.")

    def _handle(self, frame: frames.FromGuest) -> None:
        match frame:
            case frames.Output(channel, stream, data):
                if command := self._command(channel):
                    command.output(stream, data)
            case frames.Exit(channel) | frames.Fail(channel):
                if command := self._command(channel):
                    del self._commands[channel]
                    command.ended(frame)
            case frames.Credit(channel, size):
                receiver = self._relay(channel) if channel >= frames.FIRST_RELAY else self._command(channel)
                if receiver:
                    receiver.credit(size)
            case frames.Hello() | frames.Ready():
                self._greet(frame)
            case _:
                self._handle_relay(frame)

    def _greet(self, frame: frames.Hello | frames.Ready) -> None:
        if isinstance(frame, frames.Hello) and not self._greeted:
            if frame.version != frames.VERSION:
                raise ProtocolBroken(f"it speaks version {frame.version}, not {frames.VERSION}")
            self._greeted = True
        elif isinstance(frame, frames.Ready) and self._greeted and not self.ready.is_set():
            self.ready.set()
        else:
            raise ProtocolBroken("a greeting out of turn")

    def _command(self, channel: int) -> CommandChannel | None:
        if channel > self._last_command or not self.ready.is_set():
            raise ProtocolBroken("a frame for a command that was never started")
        return self._commands.get(channel)

    def _relay(self, channel: int) -> RelayStream | None:
        if channel > self._last_relay:
            raise ProtocolBroken("a frame for a connection that was never opened")
        return self._relays.get(channel)

    def _handle_relay(self, frame: frames.Bytes | frames.End | frames.Open | frames.Close) -> None:
        if isinstance(frame, frames.Open):
            self._open_relay(frame.channel)
            return
        relay = self._relay(frame.channel)
        match frame:
            case _ if relay is None:
                return
            case frames.Bytes(_, data):
                relay.arrived(data)
            case frames.End():
                relay.ended()
            case frames.Close():
                del self._relays[relay.id]
                relay.peer_closed()

    def _open_relay(self, channel: int) -> None:
        if channel <= self._last_relay or not self.ready.is_set():
            raise ProtocolBroken("a connection opened twice")
        self._last_relay = channel
        # A connection that was closed inside may still be served here, so it is the servers that are counted.
        if self._door is None or self._doors >= limits.CONCURRENT_COMMANDS:
            self._outbox.post(frames.Close(channel))
            return
        relay = RelayStream(channel, self._outbox.post, self._forget_relay)
        self._relays[channel] = relay
        self._doors += 1
        self._tasks.start_soon(self._serve, self._door, relay)

    def _forget_relay(self, channel: int) -> None:
        self._relays.pop(channel, None)

    async def _serve(self, door: LinkDoor, relay: RelayStream) -> None:
        try:
            await door(relay)
        except Exception:
            logger.exception("The door failed on one connection.")
        finally:
            self._doors -= 1
            with anyio.CancelScope(shield=True):
                await relay.aclose()


@asynccontextmanager
async def open_link(
    stdin: ByteSendStream,
    stdout: ByteReceiveStream,
    *,
    ttl_seconds: float,
    hostname: str,
    env: Mapping[str, str],
    door: LinkDoor | None,
) -> AsyncGenerator[Link]:
    """A link to the guest behind these streams, once it is ready; leaving the block ends the guest.

    Each connection to the proxy port inside is served by `door`; without one it is closed at once.
    Raises `SandboxLost` when the guest does not answer as it should.
    """
    setup = frames.Setup(max(1, round(ttl_seconds)), PROXY_PORT, hostname)
    async with link_over(stdin, stdout, setup, env=env, door=door) as link:
        yield link


@asynccontextmanager
async def link_over(
    stdin: ByteSendStream,
    stdout: ByteReceiveStream,
    setup: frames.Setup,
    *,
    env: Mapping[str, str],
    door: LinkDoor | None = None,
    late_seconds: float = LATE_SECONDS,
) -> AsyncGenerator[Link]:
    """As `open_link`, with every choice in `setup`; a proxy port of 0 is none.

    `late_seconds` after a command should have ended, a guest that has not said so is given up.
    """
    caught: Exception | None = None
    async with anyio.create_task_group() as tasks:
        link = Link(env, door, tasks, late_seconds)
        tasks.start_soon(link.talk, stdin, stdout, setup)
        try:
            with anyio.move_on_after(HELLO_SECONDS):
                await link.ready.wait()
            if not link.ready.is_set():
                await link.fail(f"The guest did not get ready within {HELLO_SECONDS:g} seconds.")
            if link.lost.is_set():
                raise SandboxLost(link.reason)
            yield link
        except Exception as error:
            # Out of the group first: inside it, the caller's error would arrive wrapped in a group of one.
            caught = error
        finally:
            await link.fail("The sandbox was closed.")
            tasks.cancel_scope.cancel()
    if caught is not None:
        raise caught
