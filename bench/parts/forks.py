"""Disk forks: to the first command in the child, with little and with much data in the parent, and many at once.

Beside it stands `cp -a --reflink=auto` of the same data on the same disk. "Just written" forks right after a burst of
writes that has not reached the disk.
"""

import os
import subprocess
import time
from pathlib import Path

import anyio

from cloister.core.computer import shell
from cloister.core.requests import Quota
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from parts.place import TRUE, Bench, first_exec
from parts.table import Goal, Line, ms

MB = 1_000_000
SIZES = (("1 MB", 1 * MB), ("2 GB", 2_000 * MB))
CHILDREN = 16
SPEC = SandboxSpec(quota=Quota(disk_bytes=8_000 * MB, memory_bytes=4_000 * MB))


async def fork_to_first_exec(parent: Sandbox) -> float:
    started = time.perf_counter()
    async with parent.fork() as child:
        await child.run(TRUE)
        return time.perf_counter() - started


async def many(parent: Sandbox, count: int) -> float:
    """Seconds until each of so many children has run a command."""
    started = time.perf_counter()
    took = 0.0
    here = 0
    all_here = anyio.Event()

    async def one() -> None:
        nonlocal here, took
        async with parent.fork() as child:
            await child.run(TRUE)
            here += 1
            if here == count:
                took = time.perf_counter() - started
                all_here.set()
            await all_here.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return took


async def write(sandbox: Sandbox, size: int, name: str = "data") -> None:
    # Random once, then again and again: nothing below compresses or finds the same blocks.
    line = (
        f"head -c 4000000 /dev/urandom > seed; for i in $(seq {max(1, size // 4_000_000)}); do cat seed; done"
    )
    done = await sandbox.run(shell(f"({line}) | head -c {size} > {name}", seconds=300))
    assert done.ok, done.err


def copy_of(data: Path) -> float:
    target = data.with_name("copy")
    started = time.perf_counter()
    subprocess.run(["cp", "-a", "--reflink=auto", str(data), str(target)], check=True)
    took = time.perf_counter() - started
    target.unlink()
    return took


def data_of(size: int, path: Path) -> Path:
    block = os.urandom(4 * MB)
    with path.open("wb") as file:
        for _ in range(max(1, size // len(block))):
            file.write(block[:size])
    return path


async def disk_forks(bench: Bench) -> None:
    async with bench.containers() as host:
        singles: dict[str, list[float]] = {}
        for name, size in SIZES:
            singles[name] = await _of_size(bench, host, name, size)
        small, large = (tuple(ms(singles[name])) for name, _ in SIZES)
        bench.table.add(
            Line("disk fork of 2 GB beside one of 1 MB", large, "ms", Goal(2, "ratio"), "1 MB", small)
        )


async def _of_size(bench: Bench, host: ContainerHost, name: str, size: int) -> list[float]:
    ours: list[float] = []
    copies: list[float] = []
    just: list[float] = []
    sixteen: list[float] = []
    data = data_of(size, bench.directory / "data")
    async with host.open(SPEC) as parent:
        await write(parent, size)
        await parent.run(shell("sync"))
        for n in range(bench.rounds):
            ours.append(await fork_to_first_exec(parent))
            if n < max(3, bench.rounds // 5):
                copies.append(copy_of(data))
        sixteen += [await many(parent, CHILDREN) for _ in range(3)]
        for n in range(max(3, bench.rounds // 3)):
            await write(parent, 50 * MB, f"more{n}")
            just.append(await fork_to_first_exec(parent))
    data.unlink()
    table = bench.table
    table.add(
        Line(f"disk fork → first exec, {name}", ms(ours), "ms", Goal(60), "cp -a --reflink=auto", ms(copies))
    )
    one = tuple(CHILDREN * second for second in ms(ours))
    table.add(
        Line(f"{CHILDREN} disk forks, {name}", ms(sixteen), "ms", Goal(1, "ratio"), f"{CHILDREN} × one", one)
    )
    table.add(Line(f"disk fork, {name} and 50 MB just written", ms(just), "ms", Goal(60)))
    return ours


async def beside_data(bench: Bench) -> None:
    """Create, with and without a sandbox full of data beside it."""
    async with bench.containers() as host:
        empty = [await first_exec(host, SPEC) for _ in range(bench.rounds)]
        async with host.open(SPEC) as full:
            await write(full, SIZES[1][1])
            full_beside = [await first_exec(host, SPEC) for _ in range(bench.rounds)]
    bench.table.add(
        Line("create with 2 GB beside it", ms(full_beside), "ms", None, "nothing beside it", ms(empty))
    )
