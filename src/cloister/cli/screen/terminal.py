"""The terminal and the standard streams of this process, and a command of a sandbox connected to them."""

import codecs
import os
import signal
import stat
import sys
import termios
import tty as terminal_mode
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import anyio
from anyio import to_thread

from cloister.core.computer import Exited, Output, Pty
from cloister.core.errors import CloisterError
from cloister.core.text import harmless

if TYPE_CHECKING:
    from cloister.app.verbs.api import Attached
    from cloister.core.computer import Process

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
        terminal_mode.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def in_foreground(descriptor: int = 0) -> bool:
    """True if this process may read from the terminal: a shell has not put it into the background."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


_PASTES_ON, _PASTES_OFF = "\x1b[?2004h", "\x1b[?2004l"


class Keyboard:
    """The terminal in a mode where each key arrives at once, and pastes are marked. Inside its block only."""

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(0)
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def take(self) -> None:
        mode = termios.tcgetattr(0)
        # Keys arrive one by one, unechoed; also Ctrl-C and Ctrl-Z, so that each press counts.
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        mode[0] &= ~termios.ICRNL
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
        write_all(1, _PASTES_ON.encode())

    def restore(self) -> None:
        write_all(1, _PASTES_OFF.encode())
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)


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


_DESCRIPTORS = {"out": 1, "err": 2}


def status_of(exited: Exited) -> int:
    """The exit status of a shell for this end: 128 plus the number of a signal."""
    if exited.killed is not None:
        print(f"cloister: the command was killed ({exited.killed}).", file=sys.stderr)
    return 128 + (exited.signal or 0) if exited.code is None else exited.code


async def connect(process: "Process | Attached", *, tty: bool = False, stdin: bool = True) -> int:
    """Pass input and output through until the command ends; returns its exit status."""
    failures: list[CloisterError] = []
    exited: list[Exited] = []
    with raw(0, wanted=tty):
        async with anyio.create_task_group() as tasks:
            if stdin:
                tasks.start_soon(_type, process)
            if tty:
                tasks.start_soon(_resize, process)
            try:
                exited.append(await _show(process, filtered=not tty))
            except CloisterError as error:  # raised below, outside of the group
                failures.append(error)
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return status_of(exited[0])


async def _show(process: "Process | Attached", *, filtered: bool) -> Exited:
    """Write the output until the command ends."""
    # A pipe gets the exact bytes. A terminal gets no control characters, unless the command owns it.
    quiet = {number: Quiet() for number in (1, 2) if filtered and is_terminal(number)}
    exited = Exited(None)
    try:
        async for item in process:
            match item:
                case Output():
                    number = _DESCRIPTORS[item.stream]
                    await _write(number, quiet[number].feed(item.data) if number in quiet else item.data)
                case Exited():
                    exited = item
                case _:
                    print(f"cloister: {item.size:,} bytes of output are no longer kept.", file=sys.stderr)
    finally:
        for number, rest in quiet.items():
            await _write(number, rest.end())
    return exited


async def _write(number: int, data: bytes) -> None:
    # In a thread: the reader of the output may block, and Ctrl-C must still work.
    await to_thread.run_sync(write_all, number, data, abandon_on_cancel=True)


async def _type(process: "Process | Attached") -> None:
    while data := await read_some(0):
        await process.send(data)
    await process.send_eof()


async def _resize(process: "Process | Attached") -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            await process.resize(Pty(*terminal_size()))
