import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command
from cloister.core.ids import new_owner_id, new_sandbox_id
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.cgroup import Cgroup
from cloister.sandbox.local.names import Name

pytestmark = pytest.mark.anyio

SERVER = """
import sys
from pathlib import Path
import anyio
from cloister.core.computer import shell
from cloister.core.ids import new_owner_id
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners

async def main(data_dir, path, runtime):
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        tier = "gvisor" if runtime == "runsc" else "container"
        host = ContainerHost(data_dir, owner, runtime, path, tier=tier)
        async with host.open(SandboxSpec()) as sandbox, sandbox.fork() as fork:
            line = "trap '' TERM HUP; (setsid sleep 960 &); echo up; sleep 960"
            async with sandbox.start(shell(line)) as one, fork.start(shell(line)) as two:
                for process in (one, two):
                    async for item in process:
                        break
                print("up", owner, flush=True)
                await anyio.sleep_forever()

anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


def start_server(data_dir: Path, runtime: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", SERVER, str(data_dir), os.environ["PATH"], runtime]
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert server.stdout is not None
    line = server.stdout.readline().split()
    assert line[:1] == [b"up"], "the server did not get that far"
    return server


def traces(data_dir: Path, groups: list[str]) -> list[str]:
    """Processes, mounts, cgroups and directories that belong to the sandboxes of `data_dir`."""
    found = [f"directory {path.name}" for path in (data_dir / "sandboxes").iterdir()]
    found += [f"cgroup {name}" for name in cgroup.names(cgroup.read_layout()) if name in groups]
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            alive = (directory / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            belongs = any(f"/cloister/{name}" in (directory / "cgroup").read_text() for name in groups)
            mounted = str(data_dir / "sandboxes") in (directory / "mountinfo").read_text()
        except OSError:
            continue
        if alive and belongs:
            found.append(f"process {directory.name}")
        if mounted:
            found.append(f"mount seen by {directory.name}")
    return found


def sandbox_names(data_dir: Path) -> list[str]:
    return [path.name for path in (data_dir / "sandboxes").iterdir()]


RUNTIMES = pytest.mark.parametrize("runtime", ["crun", "runc", "runsc"])
HostOf = Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]]


def tier_of(runtime: str) -> TierName:
    return "gvisor" if runtime == "runsc" else "container"


@RUNTIMES
async def test_killing_the_server_leaves_nothing_after_the_next_sweep(
    runtime: str, host: ContainerHost, host_of: HostOf, data_dir: Path
) -> None:
    async with host_of(tier_of(runtime), runtime):
        pass  # it works here, or this is where it is said that it does not
    server = await anyio.to_thread.run_sync(start_server, data_dir, runtime)
    names = sandbox_names(data_dir)
    assert len(names) == 2
    assert await host.sweep() == 0, "a living owner is left alone"
    with server:
        os.killpg(server.pid, signal.SIGKILL)
    with anyio.fail_after(60):
        assert await host.sweep() == 2
    assert traces(data_dir, names) == []
    assert await host.sweep() == 0


@RUNTIMES
async def test_even_without_a_sweep_no_process_and_no_mount_outlives_the_server(
    runtime: str, host: ContainerHost, host_of: HostOf, data_dir: Path
) -> None:
    async with host_of(tier_of(runtime), runtime):
        pass  # it works here, or this is where it is said that it does not
    server = await anyio.to_thread.run_sync(start_server, data_dir, runtime)
    names = sandbox_names(data_dir)
    with server:
        os.kill(server.pid, signal.SIGKILL)
    groups = [Cgroup(cgroup.read_layout(), name) for name in names]
    with anyio.fail_after(60):
        # Nothing signals the end of a stranger's process: ask until it is true.
        while any(group.pids() for group in groups):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    assert [trace for trace in traces(data_dir, names) if trace.startswith(("process", "mount"))] == []
    assert await host.sweep() == 2


async def test_a_sweep_removes_what_a_crash_left_half_made(host: ContainerHost, data_dir: Path) -> None:
    layout, owner = cgroup.read_layout(), new_owner_id()
    only_directory = Name(new_sandbox_id(), owner, 0x7002)
    with_groups = Name(new_sandbox_id(), owner, 0x7003)
    sandboxes = data_dir / "sandboxes"
    sandboxes.mkdir()
    for name in (only_directory, with_groups):
        (sandboxes / str(name)).mkdir()
    Cgroup.create(layout, str(with_groups), Quota())
    (sandboxes / "notes-of-a-person").mkdir()
    async with host.open(SandboxSpec()) as sandbox:
        assert await host.sweep() == 2
        assert (await sandbox.run(Command(("true",)))).ok, "our own sandboxes go on"
    assert sandbox_names(data_dir) == ["notes-of-a-person"], "what is not ours stays"
    assert str(with_groups) not in cgroup.names(layout)


async def test_two_who_sweep_at_the_same_time_do_not_disturb_each_other(
    host: ContainerHost, data_dir: Path
) -> None:
    sandboxes = data_dir / "sandboxes"
    sandboxes.mkdir()
    for slot in range(0x7010, 0x7018):
        name = Name(new_sandbox_id(), new_owner_id(), slot)
        (sandboxes / str(name) / "files" / "upper" / "x").mkdir(parents=True)
        Cgroup.create(cgroup.read_layout(), str(name), Quota())
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(host.sweep)
    assert sandbox_names(data_dir) == []
