"""What a virtual machine is from outside: an emulator that can reach nothing, is bounded, and never stays behind."""

import gc
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command, shell
from cloister.core.errors import SandboxLost
from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota
from cloister.sandbox._spawn import spawn
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.names import IDS, SLOTS
from cloister.sandbox.microvm.host import MicrovmHost

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 120.0


def emulators(sandbox: Sandbox) -> list[int]:
    """The host's ids of the processes of a sandbox, its waiting parent first."""
    found: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"/cloister/{sandbox.info.id}." in (directory / "cgroup").read_text():
                found.append(int(directory.name))
        except OSError:
            continue
    return sorted(found)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def runs(pid: int) -> bool:
    """Whether it has not ended; one that has may still wait for whoever inherited it to take note."""
    try:
        return status(pid)["State"][0] not in "ZX"
    except OSError:
        return False


def open_files() -> int:
    gc.collect()  # what earlier tests left to it shall not go in between
    return len(names("/proc/self/fd"))


def names(directory: str) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


def foreign_namespaces(pid: int) -> set[str]:
    kinds = ("mnt", "net", "ipc", "uts", "pid")
    return {
        kind
        for kind in kinds
        if Path(f"/proc/{pid}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink()
    }


def network_cards(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
    return [line.split(":")[0].strip() for line in lines[2:]]


def memory_of(pid: int) -> Path:
    """The file that is a machine's memory, as the emulator has it."""
    return next(p for p in Path(f"/proc/{pid}/map_files").iterdir() if "memfd:ram" in str(p.readlink()))


async def test_the_emulator_has_an_unused_id_and_sees_nothing(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    async with machines.open(small) as one, machines.open(small) as two:
        ids: set[str] = set()
        for sandbox in (one, two):
            emulator = emulators(sandbox)[-1]
            facts = status(emulator)
            ids.add(facts["Uid"])
            assert int(facts["Uid"].split()[0]) >= SLOTS.start * IDS
            assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb")} == {
                0
            }
            assert (facts["NoNewPrivs"], facts["Seccomp"], facts["Groups"]) == ("1", "2", "")
            assert foreign_namespaces(emulator) == {"mnt", "net", "ipc", "uts", "pid"}
            assert names(f"/proc/{emulator}/root") == ["dev", "etc", "lib", "lib64", "proc", "usr"]
            assert names(f"/proc/{emulator}/root/dev") == []
            assert names(f"/proc/{emulator}/root/etc") == ["ld.so.cache"]
            assert network_cards(emulator) == ["lo"]
        assert len(ids) == 2


async def test_an_emulator_cannot_change_the_files_that_machines_start_from(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    async with machines.open(small) as sandbox:
        descriptor = os.open(memory_of(emulators(sandbox)[-1]), os.O_RDWR)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"evil", 0)
        os.close(descriptor)


async def test_a_machine_uses_its_share_of_the_processor_and_no_more(machines: MicrovmHost) -> None:
    spec = SandboxSpec(quota=Quota(cpus=0.5, memory_bytes=256 << 20))
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(spec) as sandbox:
            (group,) = [name for name in cgroup.names(cgroup.read_layout()) if str(sandbox.info.id) in name]
            limits = [
                path.read_text().split()
                for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
                for path in (root / "cloister" / group).glob("cpu.[cm]*[sx]*")
                if path.name in ("cpu.cfs_quota_us", "cpu.max")
            ]
            assert limits[0][0] == "50000"


async def test_a_machine_that_fills_its_disk_gets_an_error_and_harms_no_other(machines: MicrovmHost) -> None:
    two_gigabytes = SandboxSpec(quota=Quota(memory_bytes=256 << 20, disk_bytes=2 << 30))
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(two_gigabytes) as sandbox:
            filled = await sandbox.run(
                shell("fallocate -l 20G big || fallocate -l 1G big && df --output=avail / | tail -1")
            )
            assert b"No space left" in filled.err
            assert int(filled.out) * 1024 <= 1 << 30
            more = await sandbox.run(shell("fallocate -l 2G more"))
            assert not more.ok and b"No space left" in more.err
            assert (await sandbox.run(shell("rm -f big more; echo fine > x; cat x"))).out == b"fine\n"


async def test_an_emulator_that_is_killed_loses_its_sandbox_and_no_other(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(small) as one, machines.open(small) as two:
            with pytest.raises(SandboxLost):
                async with one.start(Command(("sleep", "977"))) as process:
                    os.kill(emulators(one)[-1], signal.SIGKILL)
                    async for _ in process:
                        pass
            assert (await one.wait_lost()).endswith(".")
            assert (await two.run(Command(("echo", "here")))).out == b"here\n"


async def test_a_machine_that_ignores_every_signal_ends_with_its_block(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        async with AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(machines.open(small))
            pids = emulators(sandbox)
            await sandbox.run(
                shell("for i in 1 2 3; do (trap '' TERM; setsid sh -c 'while :; do :; done' &); done")
            )
            os.kill(pids[-1], signal.SIGSTOP)
        assert [pid for pid in pids if runs(pid)] == []


HOLDER = """
import os, sys, anyio
from pathlib import Path
from cloister.core.ids import OwnerId
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.microvm.host import MicrovmHost
from cloister.sandbox.liveness import Owners

async def main():
    data, owner = Path(sys.argv[1]), OwnerId(sys.argv[2])
    with Owners(data / "owners").hold(owner):
        host, spec = MicrovmHost(data, owner, None, os.environ["PATH"]), SandboxSpec(quota=Quota(memory_bytes=256 << 20))
        async with host.open(spec) as one, host.open(spec) as two, one.fork() as three:
            print(one.info.id, two.info.id, three.info.id, flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


async def test_when_the_host_process_is_killed_its_machines_die_with_it_and_a_sweep_removes_the_rest(
    machines: MicrovmHost, data_dir: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = new_owner_id()
    argv = [sys.executable, "-c", HOLDER, str(data_dir), owner]
    with anyio.fail_after(WAIT_SECONDS):
        async with spawn(argv, env=environment) as holder:
            assert holder.stdout is not None
            ids = (await holder.stdout.receive()).decode().split()
            layout = cgroup.read_layout()
            groups = [
                cgroup.Cgroup(layout, name) for name in cgroup.names(layout) if name.split(".")[0] in ids
            ]
            assert [len(group.pids()) for group in groups] == [2, 2, 2]
            # The holder alone, not its group: nobody but the kernel is left to tell the emulators.
            os.kill(holder.pid, signal.SIGKILL)
            await holder.wait()
            while any(group.pids() for group in groups):  # noqa: ASYNC110  the kernel signals this to nobody
                await anyio.sleep(0.01)
            assert await machines.sweep() == 3
    assert not any(group.exists for group in groups)
    assert list((data_dir / "sandboxes").iterdir()) == []
    assert not Owners(data_dir / "owners").lives(owner)


async def test_many_cycles_leave_nothing(machines: MicrovmHost, small: SandboxSpec, data_dir: Path) -> None:
    async def cycle() -> int:
        async with machines.open(small) as parent, parent.fork() as child:
            assert (await child.run(Command(("true",)))).ok
        return open_files()

    before = open_files()
    with anyio.fail_after(WAIT_SECONDS):
        after_each = [await cycle() for _ in range(6)]
    assert len(set(after_each)) == 1, after_each
    await machines.close()
    assert open_files() == before, "closing it lets go of its images too"
    assert list((data_dir / "sandboxes").iterdir()) == []
