"""A sandbox cannot take more of the disk than it was given, nor reach the filesystem around its root."""

from pathlib import Path

import pytest

from cloister.core.computer import Command, shell
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost

pytestmark = pytest.mark.anyio

MIB = 1024**2
SMALL = SandboxSpec(quota=Quota(disk_bytes=32 * MIB))
FILL = "head -c 200000000 /dev/zero > big && sync -f .; stat -c %s big"
LITTER = """
import os
try:
    for i in range(400_000):
        os.mknod(f"{i:0200d}")
        if i % 5_000 == 0: os.system("sync -f .")
except OSError as error:
    print(error.errno)
"""
BTRFS = """
import fcntl, os
directory = os.open("/work", os.O_RDONLY)
for number in range(256):
    for way, size in ((0, 0), (1, 4096), (2, 8), (3, 16), (3, 4096)):
        request = (way << 30) | (size << 16) | 0x9400 | number
        try:
            fcntl.ioctl(directory, request, bytearray(4096))
            print("done", number)
        except OSError as error:
            if error.errno != 25: print(number, error)
"""


def skip_without_quota(store: str) -> None:
    if "no disk quota" in store:
        pytest.skip(f"the {store} store has none")


async def test_a_disk_filler_is_stopped_and_can_clean_up_after_itself(host: ContainerHost) -> None:
    async with host.open(SMALL) as sandbox, host.open(SMALL) as other:
        skip_without_quota(sandbox.info.isolation.store)
        for user in ("agent", "root"):
            filled = await sandbox.run(shell(FILL, user=user))
            assert b"quota" in filled.err.lower() or b"space" in filled.err.lower()
            assert int(filled.out or b"0") <= 32 * MIB
        assert (await other.run(shell("head -c 8000000 /dev/zero > some && sync -f ."))).ok
        assert (await sandbox.run(shell("rm big && sync -f .", user="root"))).ok
        assert (await sandbox.run(shell("echo fine > small && sync -f ."))).ok


async def test_a_maker_of_empty_files_is_stopped(host: ContainerHost) -> None:
    async with host.open(SMALL) as sandbox:
        skip_without_quota(sandbox.info.isolation.store)
        # Most of the room is taken by one file, so that fewer names are enough.
        assert (await sandbox.run(shell("head -c 16000000 /dev/zero > most && sync -f ."))).ok
        made = await sandbox.run(Command(("python3", "-c", LITTER), seconds=300))
        assert made.out.strip() in (b"122", b"28"), made


async def test_a_fork_is_limited_as_its_parent_is(host: ContainerHost) -> None:
    async with host.open(SMALL) as parent:
        skip_without_quota(parent.info.isolation.store)
        assert (await parent.run(shell("head -c 16000000 /dev/zero > mine && sync -f ."))).ok
        async with parent.fork() as child:
            assert child.info.quota.disk_bytes == 32 * MIB
            assert not (await child.run(shell(FILL + "; exec 2>&1; false"))).ok
            assert (await child.run(shell("rm -f big; cat mine | wc -c"))).out.strip() == b"16000000"


async def test_the_calls_of_the_filesystem_below_are_out_of_reach(
    host: ContainerHost, tier: TierName
) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        for user in ("agent", "root"):
            tried = await sandbox.run(Command(("python3", "-c", BTRFS), user=user))
            assert (tried.ok, tried.out) == (True, b""), tried
        # gVisor's kernel does not know how to share blocks.
        if "btrfs" in sandbox.info.isolation.store and tier == "container":
            copied = await sandbox.run(
                shell("head -c 100000 /dev/urandom > a; cp --reflink=always a b; cmp a b")
            )
            assert copied.ok, "files that share blocks are nobody's secret"


async def test_a_device_of_the_host_is_not_reachable_by_its_name(host: ContainerHost, data_dir: Path) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        shown = await sandbox.run(shell("ls /dev/loop* 2>/dev/null; mknod /work/loop b 7 0", user="root"))
        assert (shown.ok, shown.out) == (False, b"")
