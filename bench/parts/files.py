"""Streaming into and out of a file in a live sandbox, beside a pipe of the same size on the host."""

import subprocess
import time
from collections.abc import Awaitable, Callable

import anyio

from cloister.sandbox.api import Sandbox, SandboxSpec
from parts.place import Bench, timed
from parts.table import Goal, Line

PIECE = bytes(1_000_000)
PIECES = 256


async def write(sandbox: Sandbox) -> None:
    async with sandbox.write_stream("big") as sink:
        for _ in range(PIECES):
            await sink.send(PIECE)


async def read(sandbox: Sandbox) -> None:
    size = 0
    async with sandbox.read_stream("big") as pieces:
        async for piece in pieces:
            size += len(piece)
    assert size == len(PIECE) * PIECES


def pipe() -> float:
    began = time.perf_counter()
    line = f"head -c {len(PIECE) * PIECES} /dev/zero | cat > /dev/null"
    subprocess.run(["/bin/sh", "-c", line], check=True)
    return time.perf_counter() - began


async def streams(bench: Bench) -> None:
    async with bench.containers() as host, host.open(SandboxSpec()) as sandbox:
        await _compare(bench, "stream into a file", write, sandbox)
        await _compare(bench, "stream out of a file", read, sandbox)


async def _compare(
    bench: Bench, name: str, what: Callable[[Sandbox], Awaitable[None]], sandbox: Sandbox
) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(max(5, bench.rounds // 3)):
        theirs.append(PIECES / await anyio.to_thread.run_sync(pipe))
        ours.append(PIECES / await timed(lambda: what(sandbox)))
    bench.table.add(Line(name, tuple(ours), "MB/s", Goal(300, "least"), "head | cat", tuple(theirs)))
