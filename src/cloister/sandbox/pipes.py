"""The two pipes to a guest, read and written without a buffer between: what moves is moved in large pieces."""

import fcntl
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

PIPE_BYTES = 1_048_576
"""What a pipe holds: both ends are woken less often. The kernel fills it page by page, so an idle one is small."""

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
        """One after the other, without putting them together first."""
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
        # Others have their turn once it is on its way: it does not wait for them.
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
