"""Leaks show in numbers: many sandboxes, one after the other and at once."""

import os
from pathlib import Path

import anyio
import pytest

from cloister.core.commands import Command
from cloister.sandbox import cgroup
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container import ContainerHost

pytestmark = pytest.mark.anyio

CYCLES = 200
AT_ONCE = 40


def _held() -> dict[str, int]:
    """What this process and this machine hold."""
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
    }


async def test_two_hundred_sandboxes_made_and_killed_leak_nothing(
    host: ContainerHost, data_dir: Path
) -> None:
    async def cycle(times: int) -> None:
        for _ in range(times):
            async with host.open(SandboxSpec()) as sandbox:
                await sandbox.run(Command(("true",)))

    await cycle(2)
    before = _held()
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(cycle, CYCLES // 4)
    assert _held() == before
    assert list((data_dir / "sandboxes").iterdir()) == []
    ours = f".{host.owner}."
    assert [name for name in cgroup.names(cgroup.read_layout()) if ours in name] == []


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
