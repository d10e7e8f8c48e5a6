"""Idle sandboxes: many at once, held, and what each of them costs this machine."""

import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from cloister.core.requests import Quota
from cloister.sandbox._spawn import allow_many_files
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.local import cgroup
from parts.place import TRUE, Bench
from parts.table import Goal, Line

AT_ONCE = 8


def available() -> int:
    """Bytes that the machine could still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def kernel() -> int:
    """Bytes that the kernel has for itself and cannot give back."""
    names = ("SUnreclaim:", "KernelStack:", "PageTables:", "Percpu:")
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))


def own_share(pid: int | str) -> int:
    """Bytes that a process has for itself, and its share of what several have."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


async def open_all(host: ContainerHost, count: int, stack: AsyncExitStack) -> list[Sandbox]:
    opened: list[Sandbox] = []
    room = anyio.Semaphore(AT_ONCE)

    async def one(everyone: anyio.Event, done: anyio.Event) -> None:
        spec = SandboxSpec(quota=Quota(memory_bytes=64 << 20, processes=32))
        async with AsyncExitStack() as own:
            async with room:
                sandbox = await own.enter_async_context(host.open(spec))
                await sandbox.run(TRUE)
                opened.append(sandbox)
                if len(opened) == count:
                    everyone.set()
            await done.wait()

    everyone, done = anyio.Event(), anyio.Event()
    tasks = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(done.set)
    for _ in range(count):
        tasks.start_soon(one, everyone, done)
    await everyone.wait()
    return opened


async def idle(bench: Bench, count: int) -> None:
    allow_many_files()
    async with bench.containers() as host:
        async with host.open(SandboxSpec()) as first:
            await first.run(TRUE)
        free, ours, kernels = available(), own_share("self"), kernel()
        started = time.perf_counter()
        async with AsyncExitStack() as stack:
            opened = await open_all(host, count, stack)
            took = time.perf_counter() - started
            await anyio.sleep(2.0)  # what the last ones still do is not idle
            layout = cgroup.read_layout()
            groups = [
                cgroup.Cgroup(layout, name) for name in cgroup.names(layout) if f".{bench.owner}." in name
            ]
            inside = sum(own_share(pid) for group in groups for pid in group.pids())
            grown, taken, kernels = own_share("self") - ours, free - available(), kernel() - kernels
            answers = 0
            for sandbox in opened:
                answers += (await sandbox.run(TRUE)).ok
    print(f"{count} idle sandboxes held, {answers} answer, opened in {took:.1f} s")
    each = (inside + grown) / count / 1e6
    bench.table.add(Line(f"each of {count} idle: in processes", (each,), "MB", Goal(2)))
    whole = each + kernels / count / 1e6
    bench.table.add(Line(f"each of {count} idle: with the kernel's share", (whole,), "MB", Goal(2)))
    # Whatever else happens on the machine is in this one.
    bench.table.add(Line(f"each of {count} idle: missing from the machine", (taken / count / 1e6,), "MB"))
