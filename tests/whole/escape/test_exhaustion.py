"""A sandbox that takes all it can get takes nothing from others, and what happened to it is told."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command, Output, shell
from cloister.core.errors import SandboxLost
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import Host, Sandbox, SandboxSpec

pytestmark = pytest.mark.anyio

SMALL = SandboxSpec(quota=Quota(cpus=1.0, memory_bytes=128 << 20, processes=64))
HOG = "x = []\nwhile True: x.append(bytearray(1 << 20))"


async def test_a_fork_bomb_hurts_only_itself(host: Host, tier: TierName) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    with anyio.fail_after(120):
        async with host.open(SMALL) as sandbox, host.open(SMALL) as neighbour:
            with _own_sandbox_may_go(tier):
                finished = await sandbox.run(Command(("python3", "-c", bomb), seconds=2, grace_seconds=0.2))
                assert finished.exited.killed == "time"
                assert (await sandbox.run(Command(("true",)))).ok, "the sandbox itself is usable again"
            assert (await neighbour.run(Command(("true",)))).ok


@contextmanager
def _own_sandbox_may_go(tier: TierName) -> Generator[None]:
    """With gVisor, what is inside lives in the memory and the threads of one kernel of its own: they go together."""
    with suppress(SandboxLost) if tier == "gvisor" else nullcontext():
        yield


async def test_a_memory_bomb_kills_the_bomb_and_the_sandbox_goes_on(host: Host, tier: TierName) -> None:
    with anyio.fail_after(120):
        async with host.open(SMALL) as sandbox, host.open(SMALL) as neighbour:
            with _own_sandbox_may_go(tier):
                finished = await sandbox.run(Command(("python3", "-c", HOG)))
                assert not finished.ok
                assert finished.exited.killed is None, "we did not kill it"
                assert tier == "gvisor" or finished.exited.signal == 9
                assert (await sandbox.run(Command(("true",)))).ok
            assert (await neighbour.run(Command(("true",)))).ok


ZOMBIES = """
import os
made = 0
try:
    while made < 150:
        if os.fork() == 0: os._exit(0)  # nobody will ask how it ended
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
"""


async def test_a_zombie_factory_fills_its_own_quota_and_is_gone_with_its_command(
    host: Host, tier: TierName
) -> None:
    with anyio.fail_after(120):
        async with host.open(SMALL) as sandbox:
            with _own_sandbox_may_go(tier):
                finished = await sandbox.run(
                    Command(("python3", "-c", ZOMBIES), seconds=60, grace_seconds=0.2)
                )
                assert int(finished.out) < 150 or tier == "gvisor", "each dead child still counts"
                # The same again, in the background and orphaned: whoever inherits them reaps them.
                line = "for i in $(seq 100); do (true &); done; wait; echo made"
                assert (await sandbox.run(shell(line))).out == b"made\n"
                # The last of them may be ending in this very moment: what counts is that none stays.
                count = shell("grep -hs '^State:.Z' /proc/[0-9]*/status | wc -l")
                while int((await sandbox.run(count)).out):
                    pass


async def test_shared_memory_counts_as_memory(host: Host) -> None:
    with anyio.fail_after(120):
        async with host.open(SMALL) as sandbox:
            finished = await sandbox.run(shell("head -c 1G /dev/zero > /dev/shm/x"))
            assert not finished.ok
            assert (await sandbox.run(shell("rm /dev/shm/x; echo ok"))).out == b"ok\n"


@pytest.mark.usefixtures("containers_only")
async def test_a_sandbox_that_dies_of_memory_says_so(
    host: Host, pids_of: Callable[[Sandbox], list[int]]
) -> None:
    # No hog is large enough to be blamed alone, and the host points at the first process: the kernel takes that.
    gate = "import os, time\nwhile not os.path.exists('/work/go'): time.sleep(0.01)"
    hog = "x = [bytearray(1 << 20) for _ in range(45)]; time.sleep(950)"
    line = f'for i in 1 2 3 4; do python3 -c "{gate}\n{hog}" & done; echo up; wait'
    with anyio.fail_after(120):
        async with host.open(SMALL) as sandbox:
            with pytest.raises(SandboxLost):
                async with sandbox.start(shell(line)) as process:
                    async for item in process:
                        assert isinstance(item, Output)
                        break
                    _blame(pids_of(sandbox)[0])
                    await sandbox.write("go", b"")
                    async for _ in process:
                        pass
            assert "ran out of memory" in await sandbox.wait_lost()


def _blame(pid: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@pytest.mark.usefixtures("containers_only")
async def test_a_busy_sandbox_gets_its_share_of_the_processor_and_no_more(
    host: Host, pids_of: Callable[[Sandbox], list[int]]
) -> None:
    spin = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(flush=True); time.sleep(950)"
    async with host.open(SandboxSpec(quota=Quota(cpus=0.25))) as sandbox:
        before = _seconds_used(pids_of(sandbox))
        async with sandbox.start(Command(("python3", "-c", spin), grace_seconds=0.1)) as process:
            async for item in process:
                assert isinstance(item, Output)
                break
            assert 0 < _seconds_used(pids_of(sandbox)) - before < 1.2


def _seconds_used(pids: list[int]) -> float:
    """What the host spent on these processes; what a sandbox believes may be wrong."""
    used = 0
    for pid in pids:
        with suppress(OSError):  # It ended while we looked.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, fields[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


async def test_a_full_disk_of_names_and_deep_directories_is_removed_with_the_sandbox(
    host: Host, data_dir: Path, tier: TierName
) -> None:
    many = (
        20_000 if tier == "container" else 3_000
    )  # gVisor is slower at this, and what is tried is the removal
    deep = "import os\nfor _ in range(3000):\n  os.mkdir('d' * 200); os.chdir('d' * 200)"
    wide = f"import os\nfor i in range({many}): open('/work/f%d' % i, 'w').close()"
    async with host.open(SandboxSpec()) as sandbox:
        for script in (deep, wide):
            assert (await sandbox.run(Command(("python3", "-c", script)))).ok
    assert list((data_dir / "sandboxes").iterdir()) == []
