"""The channels of one guest over two byte streams.

Everything the guest sends is untrusted. A broken rule or a missed deadline loses the guest: every waiter raises
`SandboxLost` at once.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, TaskGroup

from cloister.core import limits
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.channels import CommandChannel, RelayStream
from cloister.sandbox.protocol.frames import Decoder, ProtocolBroken, decode_from_guest
from cloister.sandbox.protocol.outbox import Outbox
from cloister.sandbox.protocol.requests import dial_error, too_many

DIAL_SECONDS = 10.0
"""Limit for a server inside to accept a connection."""

HOLD_SECONDS = 15.0
QUIET_SECONDS = 60.0
"""Limit for a virtual machine to flush its disk."""

READ_BYTES = 262_144
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

logger = logging.getLogger(__name__)

LinkDoor = Callable[[ByteStream], Awaitable[None]]


class Dialling:
    """A connection that the guest was asked to make."""

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.answer: RelayStream | frames.Fail | None = None


class Mux:
    """The channels of one guest."""

    def __init__(self, door: LinkDoor | None, tasks: TaskGroup, late_seconds: float) -> None:
        self.lost = anyio.Event()
        self.reason = ""
        self.ready = anyio.Event()
        self.outbox = Outbox()
        self._door = door
        self._tasks = tasks
        self._late_seconds = late_seconds
        self._holding = anyio.Lock()
        self._held: anyio.Event | None = None
        self._quiet = False
        self._greeted = False
        self._commands: dict[int, CommandChannel] = {}
        self._relays: dict[int, RelayStream] = {}
        self._dialling: dict[int, Dialling] = {}
        self._doors = 0
        self._last_command = 0
        self._last_dial = frames.FIRST_DIAL - 1
        self._last_relay = frames.FIRST_RELAY - 1

    @property
    def next_command(self) -> int:
        """The channel of the next command."""
        return self._last_command + 1

    def open(self, start: frames.Start, limit_bytes: int, seconds: float) -> CommandChannel:
        """Start a command on `next_command`. Raises `SandboxLost`, `UserError`."""
        self._check_alive()
        if len(self._commands) >= limits.CONCURRENT_COMMANDS:
            raise too_many()
        try:
            self.outbox.post(start)
        except ValueError:
            raise UserError(
                "command_too_long",
                f"The command and its environment are over {limits.FRAME_BYTES:,} bytes: "
                "put the long text into a file or send it on stdin.",
            ) from None
        channel = CommandChannel(
            start.channel,
            self.outbox,
            limit_bytes=limit_bytes,
            deadline=anyio.current_time() + seconds,
            late_seconds=self._late_seconds,
        )
        self._last_command = channel.id
        self._commands[channel.id] = channel
        return channel

    async def close(self, channel: CommandChannel, grace_seconds: float) -> None:
        """End the command if it has not ended, and wait for that."""
        if channel.end is None and channel.lost is None and not channel.late:
            with anyio.CancelScope(shield=True):
                channel.drop()
                await channel.wait_end(grace_seconds)
        if channel.late:
            self.lose("The guest did not end a command in time.")
        self._commands.pop(channel.id, None)

    async def dial(self, port: int) -> RelayStream:
        """A connection to `port` inside. Raises `SandboxLost`, `UserError`."""
        self._check_alive()
        if len(self._dialling) >= limits.CONCURRENT_COMMANDS:
            raise dial_error(port, frames.Fail(0, "too_many", ""))
        await self.outbox.room()
        self._last_dial += 1
        channel = self._last_dial
        waiting = self._dialling[channel] = Dialling()
        self.outbox.post(frames.Dial(channel, port))
        try:
            with anyio.move_on_after(DIAL_SECONDS):
                await waiting.settled.wait()
            match waiting.answer:
                case RelayStream() as stream:
                    return stream
                case frames.Fail() as fail:
                    raise dial_error(port, fail)
                case None:
                    self._check_alive()
                    raise UserError("port_failed", f"Port {port} in the sandbox does not answer.")
        except BaseException:
            # It may have connected after all, or still be trying.
            if isinstance(waiting.answer, RelayStream):
                waiting.answer.drop()
            elif waiting.answer is None:
                self.outbox.post(frames.Close(channel))
            raise
        finally:
            self._dialling.pop(channel, None)

    def feed_later(self, channel: CommandChannel, data: bytes) -> None:
        """Send all of `data` and the end of input in the background."""
        self._tasks.start_soon(self._feed, channel, data)

    async def _feed(self, channel: CommandChannel, data: bytes) -> None:
        with suppress(SandboxLost):  # the caller that waits for the end gets it too
            await channel.send(data)
            channel.send_eof()

    def _check_alive(self) -> None:
        if self.lost.is_set():
            raise SandboxLost(self.reason)

    def broken(self, error: ProtocolBroken) -> SandboxLost:
        self.lose(f"The guest broke the protocol: {error}.")
        return SandboxLost(self.reason)

    def lose(self, reason: str) -> None:
        """Give up the guest: every waiter raises `SandboxLost` with this reason."""
        if self.lost.is_set():
            return
        self.reason = reason
        self.lost.set()
        self.ready.set()
        self.outbox.close()
        if self._held is not None:
            self._held.set()
        for channel in self._commands.values():
            channel.lose(reason)
        for waiting in self._dialling.values():
            waiting.settled.set()
        for relay in list(self._relays.values()):
            relay.peer_closed()

    @asynccontextmanager
    async def held(self, *, quiet: bool = False) -> AsyncGenerator[bool]:
        """Stop the traffic between host and guest, so that the guest can be copied. Requests wait meanwhile.

        A guest that cannot be held in time is lost. With `quiet` a virtual machine is asked to flush its disk and stop
        writing to it; yield whether it did.
        """
        async with self._holding:
            self._check_alive()
            self._held = anyio.Event()
            self.outbox.hold(quiet=quiet)
            seconds = QUIET_SECONDS if quiet else HOLD_SECONDS
            try:
                with anyio.move_on_after(seconds):
                    await self._held.wait()
                if not self._held.is_set():
                    self.lose(f"The guest could not be held within {seconds:g} seconds.")
                self._check_alive()
                yield self._quiet
            finally:
                self._held = None
                self.outbox.go_on()

    async def talk(
        self, stdin: ByteSendStream, stdout: ByteReceiveStream, first: Sequence[frames.FromHost]
    ) -> None:
        """Send `first`, then move frames both ways until the link is lost."""
        for frame in first:
            self.outbox.post(frame)
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._write, stdin)
                both.start_soon(self._read, stdout)
                await self.lost.wait()
                both.cancel_scope.cancel()
        finally:
            # No more answers will be read, so release every waiter, also after a cancellation.
            self.lose("The sandbox was closed.")
            # The guest ends with its input.
            with anyio.CancelScope(shield=True), suppress(*_GONE):
                await stdin.aclose()

    async def _write(self, stdin: ByteSendStream) -> None:
        try:
            await self.outbox.send_all(stdin)
        except _GONE:
            self.lose("The guest has ended.")

    async def _read(self, stdout: ByteReceiveStream) -> None:
        decoder = Decoder(decode_from_guest)
        try:
            while not self.lost.is_set():
                data = await stdout.receive(READ_BYTES)
                # Lost meanwhile: a waiter that these frames create would never be released.
                if self.lost.is_set():
                    break
                for frame in decoder.feed(data):
                    self._handle(frame)
        except ProtocolBroken as error:
            self.broken(error)
        except _GONE:
            self.lose("The guest has ended.")

    def _handle(self, frame: frames.FromGuest) -> None:
        match frame:
            case frames.Output(channel, stream, data):
                if command := self._command(channel):
                    command.output(stream, data)
            case frames.Fail(channel) if channel >= frames.FIRST_DIAL:
                self._dialled(channel, frame)
            case frames.Exit(channel) | frames.Fail(channel):
                if command := self._command(channel):
                    del self._commands[channel]
                    command.ended(frame)
            case frames.Credit(channel, size):
                if receiver := self._receiver(channel):
                    receiver.credit(size)
            case frames.Hello() | frames.Ready():
                self._greet(frame)
            case frames.Held(quiet):
                self._stands_still(quiet=quiet)
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

    def _stands_still(self, *, quiet: bool) -> None:
        if self._held is None or self._held.is_set():
            raise ProtocolBroken("an answer to a hold that was not requested")
        self._quiet = quiet
        self._held.set()

    def _command(self, channel: int) -> CommandChannel | None:
        if channel > self._last_command or not self.ready.is_set():
            raise ProtocolBroken("a frame for a command that was never started")
        return self._commands.get(channel)

    def _receiver(self, channel: int) -> CommandChannel | RelayStream | None:
        return self._relay(channel) if channel >= frames.FIRST_DIAL else self._command(channel)

    def _relay(self, channel: int) -> RelayStream | None:
        if channel > (self._last_relay if channel >= frames.FIRST_RELAY else self._last_dial):
            raise ProtocolBroken("a frame for a connection that was never opened")
        return self._relays.get(channel)

    def _handle_relay(self, frame: frames.Bytes | frames.End | frames.Open | frames.Close) -> None:
        if isinstance(frame, frames.Open):
            if frame.channel >= frames.FIRST_RELAY:
                self._open_relay(frame.channel)
            else:
                self._dialled(frame.channel, frame)
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
        # The door may still serve a connection that was closed inside, so the running doors are counted.
        if self._door is None or self._doors >= limits.DOOR_CONNECTIONS:
            self.outbox.post(frames.Close(channel))
            return
        relay = RelayStream(channel, self.outbox, self._forget_relay)
        self._relays[channel] = relay
        self._doors += 1
        self._tasks.start_soon(self._serve, self._door, relay)

    def _dialled(self, channel: int, answer: frames.Open | frames.Fail) -> None:
        """Handle the guest's answer to a dial, which comes once."""
        if channel > self._last_dial or channel in self._relays or not self.ready.is_set():
            raise ProtocolBroken("an answer to a request that was never made")
        waiting = self._dialling.get(channel)
        if waiting is None:
            return  # given up already
        if waiting.answer is not None:
            raise ProtocolBroken("a connection opened twice")
        if isinstance(answer, frames.Open):
            waiting.answer = self._relays[channel] = RelayStream(channel, self.outbox, self._forget_relay)
        else:
            waiting.answer = answer
        waiting.settled.set()

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
