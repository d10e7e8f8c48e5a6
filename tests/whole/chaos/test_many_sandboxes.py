"""Leaks show in numbers: many sandboxes, one after the other and at once."""

import gc
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command
from cloister.core.ids import OwnerId, new_owner_id
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.provider import TierHost
from cloister.sandbox.microvm.host import MicrovmHost

pytestmark = pytest.mark.anyio

CYCLES, LONG_CYCLES = 200, 2_000
SLOW_CYCLES, LONG_SLOW_CYCLES = 8, 400
"""A leak of one thing per sandbox shows in a few."""

AT_ONCE = 40

HostOf = Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]]


def held(data_dir: Path) -> dict[str, int]:
    """What this process, and of this machine what belongs to `data_dir`, holds."""
    gc.collect()  # what earlier tests left to it must not go in between
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "mounts": sum(str(data_dir) in line for line in mounts),
    }


@asynccontextmanager
async def host_for(
    tier: TierName, data_dir: Path, host_of: HostOf
) -> AsyncGenerator[tuple[TierHost, OwnerId]]:
    if tier != "microvm":
        async with host_of(tier, None) as host:
            yield host, host.owner
        return
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        machines = MicrovmHost(data_dir, owner, None, os.environ["PATH"])
        yield machines, owner
        await machines.close()


async def leak_nothing(tier: TierName, times: int, data_dir: Path, host_of: HostOf) -> None:
    spec = SandboxSpec(quota=Quota(memory_bytes=256 << 20))

    async def cycle(host: TierHost, times: int) -> None:
        for _ in range(times):
            async with host.open(spec) as sandbox:
                await sandbox.run(Command(("true",)))

    at_start = held(data_dir)
    async with host_for(tier, data_dir, host_of) as (host, owner):
        await cycle(host, 2)
        before = held(data_dir)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(cycle, host, times // 4)
        assert held(data_dir) == before
        assert list((data_dir / "sandboxes").iterdir()) == []
        assert [name for name in cgroup.names(cgroup.read_layout()) if f".{owner}." in name] == []
    assert held(data_dir) == at_start, "and what the host itself held is gone with it"


@pytest.mark.long
async def test_two_hundred_sandboxes_made_and_killed_leak_nothing(
    data_dir: Path, host_of: HostOf, long: bool
) -> None:
    await leak_nothing("container", LONG_CYCLES if long else CYCLES, data_dir, host_of)


@pytest.mark.long
@pytest.mark.parametrize("tier", ["gvisor", "microvm"])
async def test_sandboxes_of_the_slower_tiers_made_and_killed_leak_nothing(
    tier: TierName, data_dir: Path, host_of: HostOf, machine_dir: Path, long: bool
) -> None:
    await leak_nothing(tier, LONG_SLOW_CYCLES if long else SLOW_CYCLES, data_dir, host_of)


async def test_forty_sandboxes_live_side_by_side_and_each_answers(host: ContainerHost) -> None:
    answers: list[bytes] = []
    everyone = anyio.Event()

    async def one(number: int) -> None:
        async with host.open(SandboxSpec()) as sandbox:
            done = await sandbox.run(Command(("echo", str(number))))
            answers.append(done.out)
            if len(answers) == AT_ONCE:
                everyone.set()
            await everyone.wait()

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(AT_ONCE):
                tasks.start_soon(one, number)
    assert sorted(map(int, answers)) == list(range(AT_ONCE))
