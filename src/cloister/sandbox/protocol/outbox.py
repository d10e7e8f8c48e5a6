"""The pipes to a guest, and the bounded queue of frames to send."""

import fcntl
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import encode, encode_data

PIPE_BYTES = 1_048_576
"""A large capacity wakes both ends less often. The kernel allocates it by page, so an idle pipe is small."""

_AT_ONCE = 256
"""Pieces that one call writes; the kernel takes at most 1,024."""


def open_pipe() -> tuple[int, int]:
    """The end that is read and the end that is written."""
    ends = os.pipe()
    with suppress(OSError):  # a quota may refuse; then it is slower
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends


class _End:
    """One end of a pipe, ours to close."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    @property
    def _open(self) -> int:
        if self._fd < 0:
            raise anyio.ClosedResourceError
        return self._fd

    async def aclose(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            anyio.notify_closing(fd)
            os.close(fd)
        await anyio.lowlevel.checkpoint()


class PipeSender(_End, ByteSendStream):
    """Where bytes go in."""

    async def send(self, item: bytes) -> None:
        await self.send_all((item,))

    async def send_all(self, items: Sequence[bytes]) -> None:
        """Send the items in order, without joining them first."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        left = deque(memoryview(item) for item in items if item)
        while left:
            try:
                written = os.writev(self._open, tuple(islice(left, _AT_ONCE)))
            except BlockingIOError:
                await anyio.wait_writable(self._open)
                continue
            except BrokenPipeError as error:
                raise anyio.BrokenResourceError from error
            while written:
                first = left.popleft()
                if written < len(first):
                    left.appendleft(first[written:])
                written -= min(written, len(first))
        # Yield to other tasks after the write, so that it does not wait for them.
        await anyio.lowlevel.cancel_shielded_checkpoint()


class PipeReceiver(_End, ByteReceiveStream):
    """Where they come out."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = os.read(self._open, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._open)
                continue
            if not data:
                raise anyio.EndOfStream
            return data


class Signpost:
    """An event that can happen repeatedly; each occurrence wakes all waiters."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def happened(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


OUTBOX_BYTES = 4_194_304
"""Callers that can wait send no more while so much waits, whatever the credit of all channels allows."""

FLOOD_BYTES = 3 * OUTBOX_BYTES
"""Answers to the guest cannot wait. So many unread ones are a fault of the guest; the rest leaves room for requests."""

_FRAME_BYTES = 64
"""What a frame in the queue costs besides its own bytes."""


class Outbox:
    """Frames to send. Callers wait for `room` before sending data, or frames that no credit limits.

    `flooded` is called once when more than `FLOOD_BYTES` wait; nothing is queued after that.
    """

    def __init__(self, flooded: Callable[[], None]) -> None:
        self._flooded = flooded
        self._frames: deque[bytes] = deque()
        self.size = 0
        """Bytes that wait or are being written, with what each frame costs."""
        self.posted = self.written = 0
        """Frames since the beginning."""
        self._filled = Signpost()
        self.emptied = Signpost()
        self._closed = False
        self._later: list[bytes] | None = None
        """While held: the frames to send afterwards."""

    def post(self, frame: frames.FromHost) -> None:
        self._post(encode(frame))

    def post_data(self, channel: int, data: memoryview) -> None:
        self._post(encode_data(channel, data))

    def _post(self, data: bytes) -> None:
        if self._closed:
            return
        (self._frames if self._later is None else self._later).append(data)
        self.posted += 1
        self.size += len(data) + _FRAME_BYTES
        self._filled.happened()
        if self.size > FLOOD_BYTES:
            self.close()
            self._flooded()

    def hold(self, *, quiet: bool) -> None:
        """Send the queue and then a hold; later frames wait for `go_on`."""
        self.post(frames.Hold(on=True, quiet=quiet))
        self._later = []

    def go_on(self) -> None:
        later, self._later = self._later or [], None
        self.post(frames.Hold(on=False))
        self._frames += later

    @property
    def full(self) -> bool:
        return self.size > OUTBOX_BYTES

    def close(self) -> None:
        self._closed = True
        self._frames.clear()
        self._later = None
        self.size = 0
        self.emptied.happened()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self.full:
            await self.emptied.wait()

    async def send_all(self, stream: ByteSendStream) -> None:
        while True:
            while not self._frames:
                await self._filled.wait()
            batch, size = self._take()
            if isinstance(stream, PipeSender):
                await stream.send_all(batch)
            else:
                await stream.send(b"".join(batch))
            self.written += len(batch)
            if not self._closed:
                self.size -= size
            self.emptied.happened()

    def _take(self) -> tuple[list[bytes], int]:
        """The next frames to write, and what they add to `size`."""
        batch: list[bytes] = []
        size = 0
        while self._frames and size < PIPE_BYTES and len(batch) < _AT_ONCE:
            batch.append(self._frames.popleft())
            size += len(batch[-1]) + _FRAME_BYTES
        return batch, size
