"""Starts the programs of declared tools that the operator lets run on the host."""

import resource
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from subprocess import PIPE, STDOUT
from typing import NamedTuple

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import Process

from cloister.core.system._spawn import begin, ending, limit

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_AS: 8 * 2**30,
    resource.RLIMIT_FSIZE: 2**30,
    resource.RLIMIT_NOFILE: 1_024,
}
_READ_BYTES = 65_536


class HostEnd(NamedTuple):
    """How a program on the host ended, and what it printed."""

    code: int | None
    """None if it was killed for taking too long or printing too much."""
    output: bytes
    why: str = ""


@asynccontextmanager
async def started(argv: Sequence[str], env: Mapping[str, str], *, merged: bool) -> AsyncGenerator[Process]:
    """A program in `/` with a search path, `env` and nothing else of our environment. Raises `OSError`.

    Its process group is gone when the block ends.
    """
    clean = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/nonexistent", **env}
    process = await begin(argv, env=clean, cwd="/", stderr=STDOUT if merged else PIPE)
    async with ending(process):
        limit(process.pid, _LIMITS)
        yield process


async def run_on_host(
    argv: Sequence[str], env: Mapping[str, str], stdin: bytes, *, seconds: float, limit_bytes: int
) -> HostEnd:
    """Run a program to its end. Raises `OSError` if it cannot be started."""
    out, code, why = bytearray(), None, ""

    async def feed(process: Process) -> None:
        if process.stdin is not None:
            try:
                await process.stdin.send(stdin)
                await process.stdin.aclose()
            except (BrokenResourceError, ClosedResourceError):
                return  # a program need not read all of its input

    with anyio.move_on_after(seconds) as scope:
        async with started(argv, env, merged=True) as process, anyio.create_task_group() as tasks:
            tasks.start_soon(feed, process)
            if process.stdout is not None:
                try:
                    while len(out) <= limit_bytes:
                        out += await process.stdout.receive(_READ_BYTES)
                except EndOfStream:
                    code = await process.wait()
            tasks.cancel_scope.cancel()
    if scope.cancelled_caught:
        why = f"still running after {seconds:g} s"
    elif code is None:
        why = f"printed more than {limit_bytes:,} bytes"
    return HostEnd(code, bytes(out[:limit_bytes]), why)
