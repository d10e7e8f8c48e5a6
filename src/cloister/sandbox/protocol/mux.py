"""The channels of one guest over two byte streams.

Everything the guest sends is untrusted. A broken rule or a missed deadline loses the guest: every waiter raises
`SandboxLost` at once.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, TaskGroup

from cloister.core import limits
from cloister.core.computer import Exited, Killed, Output, Stream
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import Decoder, ProtocolBroken, decode_from_guest
from cloister.sandbox.protocol.outbox import Outbox, Signpost
from cloister.sandbox.protocol.requests import dial_error, too_many

# The host half of one channel: received data that was not read yet, and the credit to send.
#
# The link puts data in without waiting; reading it gives the guest new credit. So a channel never holds more than its
# window, whatever the guest does.


LARGE_BYTES = 4_096
"""Pieces of at least this size are kept as they are; smaller ones are joined, because each costs memory."""

TURN = 256
"""Frames, or pieces of output, that one task handles before the other tasks have their turn."""

LATE_SECONDS = 10.0
"""How long past a deadline the guest may be silent before it is given up."""


class Channel:
    """Credit both ways on one channel, and data to the guest within it."""

    def __init__(self, channel: int, outbox: Outbox) -> None:
        self.id = channel
        self._outbox = outbox
        self._changed = Signpost()
        self._expected = limits.WINDOW_BYTES
        self._owed = 0
        self._may_send = limits.WINDOW_BYTES

    def _count(self, size: int) -> None:
        if size == 0:
            raise ProtocolBroken("data that is empty")
        self._expected -= size
        if self._expected < 0:
            raise ProtocolBroken("more data than the credit allowed")

    def _give_back(self, size: int) -> None:
        """Return credit to the guest, in large steps."""
        self._owed += size
        if self._owed >= limits.WINDOW_BYTES // 4:
            self._outbox.post(frames.Credit(self.id, self._owed))
            self._expected += self._owed
            self._owed = 0

    def credit(self, size: int) -> None:
        if size == 0:
            raise ProtocolBroken("credit of nothing")
        self._may_send += size
        if self._may_send > limits.WIDE_BYTES:
            raise ProtocolBroken("more credit than was ever used")
        self._changed.happened()

    def _send_some(self, view: memoryview) -> tuple[memoryview, Signpost | None]:
        """Send what may be sent now; return the rest, and what to wait for if that was nothing."""
        size = min(len(view), self._may_send, limits.FRAME_BYTES)
        if size == 0 or self._outbox.full:
            return view, self._changed if size == 0 else self._outbox.emptied
        self._may_send -= size
        self._outbox.post_data(self.id, view[:size])
        return view[size:], None


class Stillness:
    """How long the guest was paused: that time counts towards none of its deadlines."""

    def __init__(self) -> None:
        self.on = False
        self._before = self._since = 0.0

    def seconds(self) -> float:
        return self._before + (anyio.current_time() - self._since if self.on else 0.0)

    @contextmanager
    def lasting(self) -> Generator[None]:
        self.on, self._since = True, anyio.current_time()
        try:
            yield
        finally:
            self._before, self.on = self.seconds(), False


class CommandChannel(Channel):
    """A command or a file operation under way."""

    def __init__(
        self,
        channel: int,
        outbox: Outbox,
        *,
        limit_bytes: int,
        deadline: float,
        late_seconds: float,
        stillness: Stillness,
    ) -> None:
        super().__init__(channel, outbox)
        self._stillness = stillness
        self._still_before = stillness.seconds()
        self.end: frames.Exit | frames.Fail | None = None
        self.lost: str | None = None
        self.late = False
        """The guest should have ended it by now."""
        self._deadline = deadline
        self._late_seconds = late_seconds
        self._room = limit_bytes
        self._over = False
        self._dropping = False
        self._signals: set[int] = set()
        self._data = bytearray()
        self._runs: deque[int | Output] = deque()
        """Large pieces, and the lengths of small ones in `_data`, negative for `err`."""
        self._held = 0
        self._taken = 0
        self._input_ended = False

    def output(self, stream: Stream, data: bytes) -> None:
        self._count(len(data))
        keep = 0 if self._dropping else min(len(data), self._room)
        self._room -= keep
        if keep < len(data):
            self._give_back(len(data) - keep)
            if not self._dropping:
                self._over = self._dropping = True
                self._outbox.post(frames.Kill(self.id))
        if keep == 0:
            return
        self._held += keep
        if keep >= LARGE_BYTES:
            self._runs.append(Output(stream, data if keep == len(data) else data[:keep]))
        else:
            self._hold_small(1 if stream == "out" else -1, data[:keep])
        self._changed.happened()

    def _hold_small(self, sign: int, data: bytes) -> None:
        self._data += data
        last = self._runs[-1] if self._runs else None
        if isinstance(last, int) and last * sign > 0:
            self._runs[-1] = last + sign * len(data)
        else:
            self._runs.append(sign * len(data))

    def ended(self, end: frames.Exit | frames.Fail) -> None:
        self.end = end
        self._changed.happened()

    def lose(self, reason: str) -> None:
        self.lost = reason
        self._changed.happened()

    async def next(self) -> Output | frames.Exit | frames.Fail:
        """The next output, or the end. Raises `SandboxLost`."""
        while True:
            if self.end is None and self.lost is not None:
                raise SandboxLost(self.lost)
            if self._runs:
                self._taken += 1
                if self._taken % TURN == 0:
                    await anyio.lowlevel.checkpoint()
                return self._take()
            if self.end is not None:
                return self.end
            await self._wait(self._changed)

    def _take(self) -> Output:
        run = self._runs.popleft()
        if isinstance(run, Output):
            taken = run
        else:
            taken = Output("out" if run > 0 else "err", bytes(self._data[: abs(run)]))
            del self._data[: abs(run)]
        self._held -= len(taken.data)
        if self.end is None:
            self._give_back(len(taken.data))
        return taken

    async def _wait(self, what: Signpost) -> None:
        """Wait for `what`. Raises `SandboxLost` when the guest is overdue and all its output was read."""
        while True:
            still = self._stillness.seconds()
            left = self._deadline + still - self._still_before - anyio.current_time()
            with anyio.move_on_after(self._late_seconds + max(0.0, left)) as patience:
                await what.wait()
            if not patience.cancelled_caught or self._runs:
                return
            if self._stillness.seconds() == still:
                self.late = True
                raise SandboxLost("The guest did not end a command in time.")

    async def send(self, data: bytes) -> None:
        """To the command's stdin; waits while it does not read."""
        view = memoryview(data)
        while view and self.end is None and not self._input_ended:
            if self.lost is not None:
                raise SandboxLost(self.lost)
            view, full = self._send_some(view)
            if full is not None:
                await self._wait(full)

    def send_eof(self) -> None:
        if self.end is None and not self._input_ended:
            self._input_ended = True
            self._outbox.post(frames.End(self.id))

    def signal(self, number: int) -> None:
        if self.end is None:
            self._signals.add(number)
            self._outbox.post(frames.Signal(self.id, number))

    def kill(self, grace_seconds: float) -> None:
        """End it; its remaining output still arrives."""
        if self.end is None:
            paused = self._stillness.seconds() - self._still_before
            self._deadline = min(self._deadline, anyio.current_time() - paused + grace_seconds)
            self._outbox.post(frames.Kill(self.id))
            self._changed.happened()

    def drop(self) -> None:
        """End it and discard its remaining output."""
        self._dropping = True
        self._give_back(self._held)
        self._held = 0
        self._data.clear()
        self._runs.clear()
        self._outbox.post(frames.Kill(self.id))

    async def wait_end(self, seconds: float) -> None:
        """Wait for the end or the loss; `late` when neither comes in time. A paused guest is not waited for."""
        still = -1.0
        while not self.over and not self._stillness.on and still != self._stillness.seconds():
            still = self._stillness.seconds()
            with anyio.move_on_after(seconds + self._late_seconds):
                while not self.over:
                    await self._changed.wait()
        self.late = not self.over and not self._stillness.on

    @property
    def over(self) -> bool:
        return self.end is not None or self.lost is not None

    def exited(self, end: frames.Exit) -> Exited:
        """The result of the command as `Exited`."""
        killed: Killed | None = None
        if self._over:
            killed = "output"
        elif end.killed is not None:
            killed = "time" if end.killed == "time" else "cancelled"
        elif end.signalled and end.value in self._signals:
            killed = "signal"
        code, signal = (None, end.value) if end.signalled else (end.value, None)
        return Exited(code, signal, killed, end.milliseconds / 1000)


class RelayStream(Channel, ByteStream):
    """A connection from inside to the proxy port, or from the host to a port inside."""

    def __init__(self, channel: int, outbox: Outbox, close: Callable[[int], None]) -> None:
        super().__init__(channel, outbox)
        self._close = close
        self._data = bytearray()
        self._peer_ended = self._peer_closed = self._eof_sent = self._closed = False

    def arrived(self, data: bytes) -> None:
        if self._peer_ended:
            raise ProtocolBroken("data after the end")
        self._count(len(data))
        self._data += data
        self._changed.happened()

    def ended(self) -> None:
        if self._peer_ended:
            raise ProtocolBroken("a second end")
        self._peer_ended = True
        self._changed.happened()

    def peer_closed(self) -> None:
        self._peer_closed = True
        self._changed.happened()

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._data:
                data = bytes(self._data[:max_bytes])
                del self._data[:max_bytes]
                if not self._peer_closed:
                    self._give_back(len(data))
                return data
            if self._peer_ended or self._peer_closed:
                raise anyio.EndOfStream
            await self._changed.wait()

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        view = memoryview(item)
        while view:
            if self._closed or self._eof_sent:
                raise anyio.ClosedResourceError
            if self._peer_closed:
                raise anyio.BrokenResourceError
            view, full = self._send_some(view)
            if full is not None:
                await full.wait()

    async def send_eof(self) -> None:
        if not (self._eof_sent or self._closed or self._peer_closed):
            self._eof_sent = True
            self._outbox.post(frames.End(self.id))
        await anyio.lowlevel.checkpoint()

    def drop(self) -> None:
        """Close it at once."""
        if not self._closed:
            self._closed = True
            if not self._peer_closed:
                self._close(self.id)
            self._changed.happened()

    async def aclose(self) -> None:
        self.drop()
        await anyio.lowlevel.checkpoint()


DIAL_SECONDS = 10.0
"""Limit for a server inside to accept a connection."""

HOLD_SECONDS = 15.0
QUIET_SECONDS = 60.0
"""Limit for a virtual machine to flush its disk."""

READ_BYTES = 262_144
CLOSES_WAITING = 16 * limits.DOOR_CONNECTIONS
"""Ends of connections that wait for the guest to read; one that opens connections also reads."""

STRAYS = limits.WINDOW_BYTES + 64
"""Frames that a guest may send for a connection before it reads CLOSE: data within the credit, credit, and the ends."""

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
        self.outbox = Outbox(self._flooded)
        self.stillness = Stillness()
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
        self._closing: deque[int] = deque()
        """For each connection that this side closed: how many frames are written once the guest can know."""
        self._strays = STRAYS
        """Frames that may still arrive for channels that have ended."""
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
            stillness=self.stillness,
        )
        self._last_command = channel.id
        self._commands[channel.id] = channel
        return channel

    async def close(self, channel: CommandChannel, grace_seconds: float) -> None:
        """End the command if it has not ended, and wait for that."""
        if not channel.over and not channel.late:
            with anyio.CancelScope(shield=True):
                channel.drop()
                await channel.wait_end(grace_seconds)
        if channel.late:
            self.lose("The guest did not end a command in time.")
        if channel.over or channel.late:
            self._commands.pop(channel.id, None)  # a paused guest ends it later

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
                self._close_relay(channel)
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

    def _flooded(self) -> None:
        self.lose("The guest floods the host: it sends on and reads no answers.")

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
                for count, frame in enumerate(decoder.feed(data), 1):
                    self._handle(frame)
                    if count % TURN == 0:
                        await anyio.lowlevel.checkpoint()
                        if self.lost.is_set():
                            return
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
        return self._commands.get(channel) or self._stray()

    def _receiver(self, channel: int) -> CommandChannel | RelayStream | None:
        return self._relay(channel) if channel >= frames.FIRST_DIAL else self._command(channel)

    def _relay(self, channel: int) -> RelayStream | None:
        if channel > (self._last_relay if channel >= frames.FIRST_RELAY else self._last_dial):
            raise ProtocolBroken("a frame for a connection that was never opened")
        return self._relays.get(channel) or self._stray()

    def _stray(self) -> None:
        """Ignore a frame for a channel that has ended, for it may have crossed the end; so many are a flood."""
        self._strays -= 1
        if self._strays < 0:
            raise ProtocolBroken("too many frames for channels that have ended")

    def _handle_relay(self, frame: frames.Bytes | frames.End | frames.Open | frames.Close) -> None:
        if isinstance(frame, frames.Open):
            if frame.channel >= frames.FIRST_RELAY:
                self._open_relay(frame.channel)
            else:
                self._dialled(frame.channel, frame)
            return
        relay = self._relay(frame.channel)
        if relay is None:
            return
        match frame:
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
            self._close_relay(channel)
            return
        relay = RelayStream(channel, self.outbox, self._close_relay)
        self._relays[channel] = relay
        self._doors += 1
        self._tasks.start_soon(self._serve, self._door, relay)

    def _dialled(self, channel: int, answer: frames.Open | frames.Fail) -> None:
        """Handle the guest's answer to a dial, which comes once."""
        if channel > self._last_dial or channel in self._relays or not self.ready.is_set():
            raise ProtocolBroken("an answer to a request that was never made")
        waiting = self._dialling.get(channel)
        if waiting is None:
            self._stray()  # given up already
            return
        if waiting.answer is not None:
            raise ProtocolBroken("a connection opened twice")
        if isinstance(answer, frames.Open):
            waiting.answer = self._relays[channel] = RelayStream(channel, self.outbox, self._close_relay)
        else:
            waiting.answer = answer
        waiting.settled.set()

    def _close_relay(self, channel: int) -> None:
        """Tell the guest that a connection has ended. Frames that it sent before it knows are ignored."""
        self._relays.pop(channel, None)
        self.outbox.post(frames.Close(channel))
        self._strays += STRAYS
        while self._closing and self._closing[0] <= self.outbox.written:
            self._closing.popleft()
        self._closing.append(self.outbox.posted)
        if len(self._closing) > CLOSES_WAITING:
            self._flooded()

    async def _serve(self, door: LinkDoor, relay: RelayStream) -> None:
        try:
            await door(relay)
        except Exception:
            logger.exception("The door failed on one connection.")
        finally:
            self._doors -= 1
            with anyio.CancelScope(shield=True):
                await relay.aclose()
