"""Idle sandboxes: many at once, held, and what each of them costs this machine. One line, as megabytes."""

import os
import shutil
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from cloister.core.commands import Command
from cloister.core.ids import new_owner_id
from cloister.core.records import Quota
from cloister.sandbox import cgroup
from cloister.sandbox._spawn import allow_many_files
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container import ContainerHost
from cloister.sandbox.owners import Owners

COUNT = int(os.environ.get("COUNT", "500"))
AT_ONCE = 8
WARM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
GOAL_MB = 2.0


def available() -> int:
    """Bytes that the machine could still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def own_share(pid: int | str) -> int:
    """Bytes that a process has for itself, and its share of what several have."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


async def open_all(host: ContainerHost, stack: AsyncExitStack) -> list[Sandbox]:
    opened: list[Sandbox] = []
    room = anyio.Semaphore(AT_ONCE)

    async def one(everyone: anyio.Event, done: anyio.Event) -> None:
        spec = SandboxSpec(quota=Quota(memory_bytes=64 << 20, processes=32))
        async with AsyncExitStack() as own:
            async with room:
                sandbox = await own.enter_async_context(host.open(spec))
                await sandbox.run(Command(("/bin/true",), cwd="/"))
                opened.append(sandbox)
                if len(opened) == COUNT:
                    everyone.set()
            await done.wait()

    everyone, done = anyio.Event(), anyio.Event()
    tasks = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(done.set)
    for _ in range(COUNT):
        tasks.start_soon(one, everyone, done)
    await everyone.wait()
    return opened


async def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="cloister-bench-"))
    allow_many_files()
    owner = new_owner_id()
    with Owners(directory / "owners").hold(owner):
        for name in ("templates", "programs"):
            (WARM / name).mkdir(parents=True, exist_ok=True)
            (directory / name).symlink_to(WARM / name)
        host = ContainerHost(directory, owner, None, os.environ["PATH"])
        await host.prepare("default", lambda fraction, note: None)
        async with host.open(SandboxSpec()) as first:
            await first.run(Command(("/bin/true",), cwd="/"))
        free, ours = available(), own_share("self")
        started = time.perf_counter()
        async with AsyncExitStack() as stack:
            opened = await open_all(host, stack)
            took = time.perf_counter() - started
            await anyio.sleep(2.0)  # what the last ones still do is not idle
            layout = cgroup.read_layout()
            groups = [cgroup.Cgroup(layout, name) for name in cgroup.names(layout) if f".{owner}." in name]
            inside = sum(own_share(pid) for group in groups for pid in group.pids())
            grown, taken = own_share("self") - ours, free - available()
            answers = 0
            for sandbox in opened:
                answers += (await sandbox.run(Command(("/bin/true",), cwd="/"))).ok
        await host.close()
    shutil.rmtree(directory)
    each = (inside + grown) / COUNT / 1e6
    print(
        f"{'idle container sandboxes':34s} {COUNT} held, {answers} answer   opened in {took:.1f} s   "
        f"each {each:5.2f} MB (goal ≤ {GOAL_MB} MB): {inside / COUNT / 1e6:.2f} inside, "
        f"{grown / COUNT / 1e6:.2f} in the host   whole machine {taken / COUNT / 1e6:5.2f} MB"
    )


if __name__ == "__main__":
    anyio.run(main)
