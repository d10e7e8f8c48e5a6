"""Virtual machines: woken to the first command, forked with their memory, with a service or without, and how much is their own."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from cloister.core.computer import Command
from cloister.core.requests import Quota
from cloister.environment.api import Service
from cloister.runs.environments.services import initialise, start
from cloister.sandbox.api import Sandbox, SandboxSpec, keep
from cloister.sandbox.microvm.host import MicrovmHost, MicrovmSandbox
from cloister.sandbox.templates.building import About, Build
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.recipes import Packages
from parts.place import WARM, Bench, nothing
from parts.table import Goal, Line, ms

SPEC = SandboxSpec(quota=Quota(memory_bytes=512 << 20))
ECHO = Command(("/bin/echo", "hi"))
POSTGRES = "bench-postgresql"
ENVIRONMENT = "bench-environment"
DEFAULT = ("python3", "git", "ca-certificates", "procps")
ASK = Command(("psql", "-h", "127.0.0.1", "-U", "postgres", "-tAc", "SELECT 1"), cwd="/", seconds=60)


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


@asynccontextmanager
async def _machines(bench: Bench) -> AsyncGenerator[MicrovmHost | None]:
    """A host of virtual machines that has booted one; None where none work."""
    (WARM / "microvm").mkdir(parents=True, exist_ok=True)
    (bench.directory / "microvm").symlink_to(WARM / "microvm")
    host = MicrovmHost(bench.directory, bench.owner, None, bench.path)
    try:
        report = await host.report()
        if not report.works:
            bench.table.not_measured("microvm", report.found)
        yield host if report.works else None
    finally:
        await host.close()
        (bench.directory / "microvm").unlink()


async def microvms(bench: Bench) -> None:
    async with _machines(bench) as host:
        if host is None:
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


async def services(bench: Bench) -> None:
    """A fork of an environment with PostgreSQL running beside one without, each to the end of the same question."""
    async with _machines(bench) as host:
        if host is None:
            return
        await _environment(bench)
        for name in (POSTGRES, ENVIRONMENT):
            await host.prepare(name, nothing)
        ready: list[float] = []
        without: list[float] = []
        async with host.open(_spec(ENVIRONMENT)) as served, host.open(_spec(POSTGRES)) as plain:
            for parent in (served, plain):
                await parent.run(ASK)  # the program itself is in the memory of both
            for _ in range(max(5, bench.rounds // 3)):
                ready.append(await _asked(served, answers=True))
                without.append(await _asked(plain, answers=False))
    what = "memory fork of an environment → PostgreSQL answers a query"
    bench.table.add(Line(what, ms(ready), "ms", Goal(1.5, "ratio"), "psql without a server", ms(without)))


async def _environment(bench: Bench) -> None:
    """Build a template as set-up does: PostgreSQL prepared once, and started in each sandbox that is opened from it."""
    needed = (Service("postgresql", "the benchmark"),)
    recipe = Packages((*DEFAULT, "postgresql", "postgresql-client"))
    templates = Templates(bench.directory / "templates", bench.path)
    for name in (POSTGRES, ENVIRONMENT):
        templates.keep_recipe(name, recipe)

    async def make(work: Build) -> About:
        async with bench.containers() as host:
            await host.prepare(POSTGRES, nothing)
            async with host.open(SandboxSpec(POSTGRES)) as sandbox:
                script = initialise(needed)
                done = await sandbox.run(
                    Command(("/bin/sh", "-c", script), cwd="/", user="root", seconds=300)
                )
                assert done.ok, done.err
                await keep(sandbox, work.rootfs)
        below = templates.built(POSTGRES)
        assert below is not None
        return msgspec.structs.replace(below.about, kind="environment", start=start(needed))

    await templates.build(ENVIRONMENT, make, nothing, again=True)


def _spec(template: str) -> SandboxSpec:
    return SandboxSpec(template, quota=Quota(memory_bytes=512 << 20))


async def _asked(parent: Sandbox, *, answers: bool) -> float:
    began = time.perf_counter()
    async with parent.fork() as child:
        done = await child.run(ASK)
        took = time.perf_counter() - began
        assert done.ok is answers, done.err
    return took


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
