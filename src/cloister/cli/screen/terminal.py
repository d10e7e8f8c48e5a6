"""The terminal and the standard streams of this process: raw mode, size, reads, writes, filtered guest output."""

import codecs
import os
import stat
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

import anyio
from anyio import to_thread

from cloister.core.text import harmless

READ_BYTES = 65_536


async def read_some(descriptor: int) -> bytes:
    """Read available bytes; empty at the end or if the descriptor is closed. Cancelling it leaves no thread behind."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return b""
    if stat.S_ISREG(mode):
        # A regular file cannot be polled and never blocks.
        return await to_thread.run_sync(os.read, descriptor, READ_BYTES)
    try:
        await anyio.wait_readable(descriptor)
    except PermissionError:
        # Devices such as /dev/null cannot be polled either.
        return await to_thread.run_sync(os.read, descriptor, READ_BYTES)
    return os.read(descriptor, READ_BYTES)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def terminal_size() -> tuple[int, int]:
    """Rows and columns, within the limits of a sandbox's terminal."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return max(1, min(1_000, size.lines)), max(1, min(1_000, size.columns))


def columns(elsewhere: int) -> int:
    """The width of the terminal, or `elsewhere` if stdout is not one."""
    return terminal_size()[1] if is_terminal(1) else elsewhere


@contextmanager
def raw(descriptor: int, *, wanted: bool) -> Generator[None]:
    """Put the terminal into raw mode if `wanted`, and restore it when the block ends."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Quiet:
    """Filters terminal control characters from one stream of guest output."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = ""
        """A carriage return that may be half of a line end."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that can be written now."""
        text = self._kept + self._decoder.decode(data)
        self._kept = "\r" if text.endswith("\r") else ""
        return harmless(text.removesuffix("\r") if self._kept else text).encode("utf-8", errors="replace")

    def end(self) -> bytes:
        """The remaining bytes at the end of the stream."""
        return harmless(self._kept + self._decoder.decode(b"", True)).encode("utf-8", errors="replace")
