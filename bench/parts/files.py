"""Streaming into and out of a file in a live sandbox, beside `dd` into a file inside and a pipe on the host."""

from collections.abc import Awaitable, Callable

import anyio

from cloister.core.computer import shell
from cloister.sandbox.api import Sandbox, SandboxSpec
from parts.place import Bench, timed
from parts.table import Goal, Line

PIECE = bytes(1_000_000)
PIECES = 256
Way = Callable[[Sandbox], Awaitable[None]]


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


async def inside(sandbox: Sandbox) -> None:
    """What the disk below takes from a program that is there already."""
    line = f"dd if=/dev/zero of=same bs={len(PIECE) // 4} count={PIECES * 4} 2>/dev/null"
    assert (await sandbox.run(shell(line))).ok


async def pipe(sandbox: Sandbox) -> None:
    line = f"head -c {len(PIECE) * PIECES} /dev/zero | cat > /dev/null"
    await anyio.run_process(["/bin/sh", "-c", line])


async def streams(bench: Bench) -> None:
    async with bench.containers() as host, host.open(SandboxSpec()) as sandbox:
        await _compare(bench, "stream into a file", sandbox, write, ("dd inside", inside))
        await _compare(bench, "stream out of a file", sandbox, read, ("head to cat", pipe))


async def _compare(bench: Bench, name: str, sandbox: Sandbox, what: Way, beside: tuple[str, Way]) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(max(5, bench.rounds // 3)):
        theirs.append(PIECES / await timed(lambda: beside[1](sandbox)))
        ours.append(PIECES / await timed(lambda: what(sandbox)))
    bench.table.add(Line(name, tuple(ours), "MB/s", Goal(300, "least"), beside[0], tuple(theirs)))
