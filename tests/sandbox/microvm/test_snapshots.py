"""What is kept of a machine: its disk, at one moment, for as long as somebody wants it."""

import os
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.whole.conformance.suites.sandbox import first_output

from cloister.core.computer import Command, shell
from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.liveness import Owners
from cloister.sandbox.microvm.host import MicrovmHost

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 120.0


async def test_a_snapshot_keeps_the_disk_without_processes_and_both_lines_go_on(
    machines: MicrovmHost, small: SandboxSpec, machine_dir: Path
) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(small) as parent:
            await parent.write("file", b"then")
            async with parent.start(shell("echo up; echo note > /dev/shm/note; sleep 973")) as process:
                await first_output(process)
                taken = await parent.snapshot()
            await parent.write("file", b"later")
            # The snapshot's layers are below the parent's disk too, and are not written any more.
            async with parent.fork() as child:
                assert await child.read("file") == b"later"
        other = msgspec.structs.replace(
            small,
            template=f"snapshot:{taken.id}",
            quota=Quota(memory_bytes=320 << 20, disk_bytes=small.quota.disk_bytes // 2),
        )
        async with machines.open(other) as restored, restored.fork() as child:
            assert (await restored.read("file"), await child.read("file")) == (b"then", b"then")
            asked = await restored.run(shell("pgrep -c sleep; ls /dev/shm | wc -l"))
            assert asked.out == b"0\n0\n"
            assert restored.info.quota.disk_bytes == small.quota.disk_bytes, "the room is what it was"
            grandchild = await child.snapshot()
            assert (grandchild.parent, grandchild.template) == (taken.id, "default")
        assert list((machine_dir / "images").glob(f"{taken.id}-*"))
        for info in (taken, grandchild):
            await machines.delete_snapshot(info.id)
        assert not list((machine_dir / "images").glob(f"{taken.id}-*"))
        assert not list((machine_dir / "snapshots").glob(f"*{taken.id}*"))


async def test_a_machine_that_says_nothing_while_it_boots_is_booted_once_more(
    data_dir: Path, machine_dir: Path, small: SandboxSpec, caplog: pytest.LogCaptureFixture
) -> None:
    owner = new_owner_id()
    with anyio.fail_after(2 * WAIT_SECONDS), Owners(data_dir / "owners").hold(owner):
        # So early no kernel has said a word.
        machines = MicrovmHost(data_dir, owner, None, os.environ["PATH"], boot_seconds=(0.01, WAIT_SECONDS))
        async with machines.open(small) as parent:
            await parent.write("file", b"then")
            taken = await parent.snapshot()
        # What is opened from a snapshot for the first time is booted.
        async with machines.open(msgspec.structs.replace(small, template=f"snapshot:{taken.id}")) as restored:
            assert await restored.read("file") == b"then"
        await machines.delete_snapshot(taken.id)
        await machines.close()
    assert "no output for 0.01 seconds; retrying" in caplog.text
    assert list((data_dir / "sandboxes").iterdir()) == []


async def test_a_snapshot_under_constant_writes_is_consistent(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    writer = "i=0; echo up; while :; do i=$((i+1)); echo $i > a.$i; mv a.$i done.$((i % 50)); done"
    with anyio.fail_after(WAIT_SECONDS):
        async with (
            machines.open(small) as parent,
            parent.start(Command(("/bin/sh", "-c", writer))) as running,
        ):
            await first_output(running)
            await parent.run(shell("until [ -e done.49 ]; do sleep 0.05; done"))
            taken = await parent.snapshot()
        spec = msgspec.structs.replace(small, template=f"snapshot:{taken.id}")
        async with machines.open(spec) as restored:
            found = await restored.run(shell("cat done.* | grep -cvE '^[0-9]+$'; ls done.* | wc -l"))
            assert found.out.split() == [b"0", b"50"]
            assert (
                await restored.run(shell("rm done.* && head -c 20M /dev/urandom > big && wc -c < big"))
            ).ok
        await machines.delete_snapshot(taken.id)


async def test_keeping_a_machine_costs_the_same_however_much_is_on_its_disk(
    machines: MicrovmHost, small: SandboxSpec, machine_dir: Path
) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        async with machines.open(small) as sandbox:
            assert (await sandbox.run(shell("head -c 60M /dev/zero > big; sync", seconds=100))).ok
            taken = await sandbox.snapshot()
            home = machine_dir / "snapshots" / taken.id
            assert 60_000_000 < taken.size_bytes < 100_000_000
            again = await sandbox.snapshot()
            assert again.size_bytes - taken.size_bytes < 20_000_000
            first = {path.name: path.stat().st_ino for path in home.iterdir()}
            second = {path.name: path.stat().st_ino for path in home.with_name(again.id).iterdir()}
            shared = [name for name, inode in first.items() if second.get(name) == inode]
            assert sorted(shared) == sorted(name for name in first if name not in ("info.json", "disk.json"))
        for info in (taken, again):
            await machines.delete_snapshot(info.id)
