"""The host half of one channel: received data that was not read yet, and the credit to send.

The link puts data in without waiting; reading it gives the guest new credit. So a channel never holds more than its
window, whatever the guest does.
"""

from collections import deque
from collections.abc import Callable

import anyio
from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.computer import Exited, Killed, Output, Stream
from cloister.core.errors import SandboxLost
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import ProtocolBroken
from cloister.sandbox.protocol.outbox import Outbox, Signpost

LARGE_BYTES = 4_096
"""Pieces of at least this size are kept as they are; smaller ones are joined, because each costs memory."""

LATE_SECONDS = 10.0
"""How long past a deadline the guest may be silent before it is given up."""


class Flow:
    """Credit both ways on one channel."""

    def __init__(self, channel: int, outbox: Outbox) -> None:
        self._channel = channel
        self._outbox = outbox
        self._expected = limits.WINDOW_BYTES
        self._owed = 0
        self.may_send = limits.WINDOW_BYTES

    def arrived(self, size: int) -> None:
        self._expected -= size
        if self._expected < 0:
            raise ProtocolBroken("more data than the credit allowed")

    def taken(self, size: int) -> None:
        """Return credit to the guest, in large steps."""
        self._owed += size
        if self._owed >= limits.WINDOW_BYTES // 4:
            self._outbox.post(frames.Credit(self._channel, self._owed))
            self._expected += self._owed
            self._owed = 0

    def granted(self, size: int) -> None:
        self.may_send += size
        if self.may_send > limits.WIDE_BYTES:
            raise ProtocolBroken("more credit than was ever used")


class CommandChannel:
    """A command or a file operation under way."""

    def __init__(
        self, channel: int, outbox: Outbox, *, limit_bytes: int, deadline: float, late_seconds: float
    ) -> None:
        self.id = channel
        self.end: frames.Exit | frames.Fail | None = None
        self.lost: str | None = None
        self.late = False
        """The guest should have ended it by now."""
        self._outbox = outbox
        self._flow = Flow(channel, outbox)
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
        self._changed = Signpost()
        self._input_ended = False

    def output(self, stream: Stream, data: bytes) -> None:
        self._flow.arrived(len(data))
        keep = 0 if self._dropping else min(len(data), self._room)
        self._room -= keep
        if keep < len(data):
            self._flow.taken(len(data) - keep)
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

    def credit(self, size: int) -> None:
        self._flow.granted(size)
        self._changed.happened()

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
            self._flow.taken(len(taken.data))
        return taken

    async def _wait(self, what: Signpost) -> None:
        """Wait for `what`. Raises `SandboxLost` when the guest is overdue and all its output was read."""
        seconds = self._late_seconds + max(0.0, self._deadline - anyio.current_time())
        with anyio.move_on_after(seconds) as patience:
            await what.wait()
        if patience.cancelled_caught and not self._runs:
            self.late = True
            raise SandboxLost("The guest did not end a command in time.")

    async def send(self, data: bytes) -> None:
        """To the command's stdin; waits while it does not read."""
        view = memoryview(data)
        while view and self.end is None and not self._input_ended:
            if self.lost is not None:
                raise SandboxLost(self.lost)
            size = min(len(view), self._flow.may_send, limits.FRAME_BYTES)
            if size == 0 or self._outbox.full:
                await self._wait(self._changed if size == 0 else self._outbox.emptied)
                continue
            self._flow.may_send -= size
            self._outbox.post_data(self.id, view[:size])
            view = view[size:]

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
            self._deadline = min(self._deadline, anyio.current_time() + grace_seconds)
            self._outbox.post(frames.Kill(self.id))
            self._changed.happened()

    def drop(self) -> None:
        """End it and discard its remaining output."""
        self._dropping = True
        self._flow.taken(self._held)
        self._held = 0
        self._data.clear()
        self._runs.clear()
        self._outbox.post(frames.Kill(self.id))

    async def wait_end(self, seconds: float) -> None:
        """Wait for the end or the loss; `late` when neither comes in time."""
        with anyio.move_on_after(seconds + self._late_seconds):
            while self.end is None and self.lost is None:
                await self._changed.wait()
        self.late = self.end is None and self.lost is None

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


class RelayStream(ByteStream):
    """A connection from inside to the proxy port, or from the host to a port inside."""

    def __init__(self, channel: int, outbox: Outbox, forget: Callable[[int], None]) -> None:
        self.id = channel
        self._outbox = outbox
        self._forget = forget
        self._flow = Flow(channel, outbox)
        self._data = bytearray()
        self._changed = Signpost()
        self._peer_ended = self._peer_closed = self._eof_sent = self._closed = False

    def arrived(self, data: bytes) -> None:
        if self._peer_ended:
            raise ProtocolBroken("data after the end")
        self._flow.arrived(len(data))
        self._data += data
        self._changed.happened()

    def credit(self, size: int) -> None:
        self._flow.granted(size)
        self._changed.happened()

    def ended(self) -> None:
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
                    self._flow.taken(len(data))
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
            size = min(len(view), self._flow.may_send, limits.FRAME_BYTES)
            if size == 0 or self._outbox.full:
                await (self._changed if size == 0 else self._outbox.emptied).wait()
                continue
            self._flow.may_send -= size
            self._outbox.post_data(self.id, view[:size])
            view = view[size:]

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
                self._outbox.post(frames.Close(self.id))
            self._forget(self.id)
            self._changed.happened()

    async def aclose(self) -> None:
        self.drop()
        await anyio.lowlevel.checkpoint()
