"""Virtual machines: woken to the first command, forked with their memory, and how much of it is their own."""

import time
from pathlib import Path

from cloister.core.computer import Command
from cloister.core.requests import Quota
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.microvm.host import MicrovmHost, MicrovmSandbox
from parts.place import WARM, Bench, nothing
from parts.table import Goal, Line, ms

SPEC = SandboxSpec(quota=Quota(memory_bytes=512 << 20))
ECHO = Command(("/bin/echo", "hi"))


def own_megabytes(sandbox: Sandbox) -> float:
    """Anonymous memory of a sandbox's processes: shared with no file and with no other machine."""
    total = 0
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"/cloister/{sandbox.info.id}." in (directory / "cgroup").read_text():
                lines = (directory / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
        except OSError:
            continue
    return total * 1024 / 1e6


async def microvms(bench: Bench) -> None:
    (WARM / "microvm").mkdir(parents=True, exist_ok=True)
    (bench.directory / "microvm").symlink_to(WARM / "microvm")
    host = MicrovmHost(bench.directory, bench.owner, None, bench.path)
    try:
        report = await host.report()
        if not report.works:
            bench.table.not_measured("microvm", report.found)
            return
        await host.prepare("default", nothing)
        async with host.open(SPEC) as sandbox:  # the first of all boots
            await sandbox.run(ECHO)
            accelerator = sandbox.info.isolation.accelerator
        await _creates(bench, host, f"microvm ({accelerator})")
        for megabytes in (0, 50):
            async with host.open(SPEC) as parent:
                assert isinstance(parent, MicrovmSandbox)
                await parent.run(Command(("python3", "-c", f"x = bytearray({megabytes} << 20)")))
                await _forks(bench, parent, megabytes)
    finally:
        await host.close()


async def _creates(bench: Bench, host: MicrovmHost, name: str) -> None:
    first: list[float] = []
    later: list[float] = []
    for _ in range(bench.rounds):
        began = time.perf_counter()
        async with host.open(SPEC) as sandbox:
            await sandbox.run(ECHO)
            first.append(time.perf_counter() - began)
            for _ in range(3):
                began = time.perf_counter()
                await sandbox.run(ECHO)
                later.append(time.perf_counter() - began)
    bench.table.add(Line(f"{name}: create → first exec", ms(first), "ms", Goal(150)))
    bench.table.add(Line(f"{name}: exec", ms(later)))


async def _forks(bench: Bench, parent: MicrovmSandbox, megabytes: int) -> None:
    first: list[float] = []
    pauses: list[float] = []
    own: list[float] = []
    for _ in range(max(5, bench.rounds // 3)):
        began = time.perf_counter()
        async with parent.fork() as child:
            await child.run(ECHO)
            first.append(time.perf_counter() - began)
            pauses.append(parent.pause_seconds)
        async with parent.fork() as child:
            own.append(own_megabytes(child))
    wrote = f"parent wrote {megabytes} MB" if megabytes else "parent ran Python"
    table = bench.table
    table.add(Line(f"memory fork → first exec, {wrote}", ms(first), "ms", Goal(300)))
    table.add(Line(f"pause of the parent, {wrote}", ms(pauses), "ms", Goal(150)))
    table.add(Line(f"unshared memory of an idle child, {wrote}", tuple(own), "MB", Goal(20)))
