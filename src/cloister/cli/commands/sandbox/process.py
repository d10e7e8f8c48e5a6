"""Connect a command in a sandbox to this process's stdin, stdout and stderr, or to its terminal."""

import signal
import sys
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from cloister.cli.screen.terminal import Quiet, is_terminal, raw, read_some, terminal_size, write_all
from cloister.core.computer import Exited, Output, Pty
from cloister.core.errors import CloisterError

if TYPE_CHECKING:
    from cloister.app.verbs.api import Attached
    from cloister.core.computer import Process

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
