"""This process's own terminal and pipes: raw mode, size, reading what is there and writing all of it."""

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
    """What can be read now; empty at the end and where nothing is open. Cancelling it leaves no thread behind."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return b""
    if stat.S_ISREG(mode):
        # A plain file cannot be waited for, and never makes us wait.
        return await to_thread.run_sync(os.read, descriptor, READ_BYTES)
    try:
        await anyio.wait_readable(descriptor)
    except PermissionError:
        # Devices such as /dev/null cannot be waited for either.
        return await to_thread.run_sync(os.read, descriptor, READ_BYTES)
    return os.read(descriptor, READ_BYTES)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def is_terminal(descriptor: int) -> bool:
    """Whether a person looks at it."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def terminal_size() -> tuple[int, int]:
    """Rows and columns, within what a sandbox's terminal may have."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return max(1, min(1_000, size.lines)), max(1, min(1_000, size.columns))


def columns(elsewhere: int) -> int:
    """How wide the terminal is; `elsewhere` where nobody looks at one."""
    return terminal_size()[1] if is_terminal(1) else elsewhere


@contextmanager
def raw(descriptor: int, *, wanted: bool) -> Generator[None]:
    """Keys go through as they are, where `wanted`; the terminal is as before when the block ends, however it ends."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# Output of a guest on a person's terminal: bytes in, harmless bytes out, piece by piece.


class Quiet:
    """One stream of output. A program that was not given the terminal gets to do nothing with it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = ""
        """What cannot be judged before more of it is there."""

    def feed(self, data: bytes) -> bytes:
        """What may be written now."""
        text = self._kept + self._decoder.decode(data)
        # A line end may be cut in two.
        self._kept = "\r" if text.endswith("\r") else ""
        return harmless(text.removesuffix("\r") if self._kept else text).encode("utf-8", errors="replace")

    def end(self) -> bytes:
        """What is left when nothing more comes."""
        return harmless(self._kept + self._decoder.decode(b"", True)).encode("utf-8", errors="replace")
