"""The machine's disk is full: one clear error, nothing half made, and all goes on when there is room again."""

import os
import subprocess
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import shell
from cloister.core.errors import HostError
from cloister.core.ids import new_owner_id
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.microvm.host import MicrovmHost
from cloister.sandbox.store import api

pytestmark = pytest.mark.anyio

PATH = os.environ["PATH"]
MIB = 1024**2


@contextmanager
def mounted_disk(at: Path, warm_dir: Path) -> Generator[Path]:
    """A data directory on a disk of its own, which has room for a template and a little more."""
    at.mkdir()
    options = f"size={2048 * MIB},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True)
    try:
        for name in ("templates", "programs", "runtimes.json"):
            (at / name).symlink_to(warm_dir / name)
        yield at
    finally:
        # A device is let go of in the kernel's own time, and a disk with a device on it cannot be unmounted.
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", str(at)], check=False).returncode:
            assert time.monotonic() < deadline, "somebody still uses the disk"
            time.sleep(0.01)


@pytest.fixture
def small_disk(warm_dir: Path, tmp_path: Path) -> Generator[Path]:
    with mounted_disk(tmp_path / "disk", warm_dir) as at:
        yield at


@pytest.fixture(params=["btrfs-loop", "overlay"])
async def host(request: pytest.FixtureRequest, small_disk: Path) -> AsyncGenerator[ContainerHost]:
    owner = new_owner_id()
    with Owners(small_disk / "owners").hold(owner):
        opened = ContainerHost(small_disk, owner, None, PATH, store=request.param)
        yield opened
        await opened.close()


def fill_disk(directory: Path, leave: int) -> Path:
    """Take everything but `leave` bytes."""
    ballast = directory / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, api.free(directory) - leave))
    return ballast


async def refuses(host: ContainerHost, what: str) -> None:
    with pytest.raises(HostError) as refused:
        async with host.open(SandboxSpec()):
            pass
    assert refused.value.code == "no_disk", what
    assert "free some disk" in refused.value.message


async def test_with_the_disk_full_nothing_new_is_made_and_what_lives_goes_on(
    host: ContainerHost, small_disk: Path
) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("file", b"before")
        kept = await sandbox.snapshot("kept")
        ballast = fill_disk(small_disk, api.floor_of(small_disk) // 2)
        await refuses(host, "create")
        with pytest.raises(HostError) as forked:
            async with sandbox.fork():
                pass
        with pytest.raises(HostError) as taken:
            await sandbox.snapshot("more")
        assert (forked.value.code, taken.value.code) == ("no_disk", "no_disk")
        assert [path.name.split(".")[0] for path in (small_disk / "sandboxes").iterdir()] == [sandbox.info.id]
        assert await host.snapshots() == (kept,)
        await sandbox.write("file", b"small things still fit")
        ballast.unlink()
        async with sandbox.fork() as child:
            assert await child.read("file") == b"small things still fit"
        await sandbox.snapshot("more")
    async with host.open(SandboxSpec(template="snapshot:kept")) as restored:
        assert await restored.read("file") == b"before"


async def test_a_sandbox_that_writes_onto_a_full_disk_breaks_nothing_but_itself(
    host: ContainerHost, small_disk: Path
) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.write("file", b"before")
        await sandbox.snapshot("kept")
        ballast = fill_disk(small_disk, 0)
        await sandbox.run(shell("head -c 300000000 /dev/urandom > big; sync -f ."))
        await refuses(host, "create")
    ballast.unlink()
    with anyio.fail_after(60):
        assert [info.name for info in await host.snapshots()] == ["kept"]
        async with host.open(SandboxSpec(template="snapshot:kept")) as restored, restored.fork() as child:
            assert await child.read("file") == b"before"
            assert (await child.run(shell("head -c 10000000 /dev/urandom > some && sync -f ."))).ok
    assert list((small_disk / "sandboxes").iterdir()) == []


@pytest.fixture
def machines(small_disk: Path, machine_dir: Path) -> Generator[MicrovmHost]:
    """Machines whose disks are on the small one; what they start from was made before."""
    images = small_disk / "microvm" / "images"
    images.mkdir(parents=True)
    for path in machine_dir.iterdir():
        if path.name not in ("images", "snapshots"):
            (small_disk / "microvm" / path.name).symlink_to(path)
    newest = max(machine_dir.glob("images/default-*-2048m-*/ram"), key=lambda ram: ram.parent.stat().st_mtime)
    for path in (newest.parent, *machine_dir.glob("images/default-*-10240m-free.ext4")):
        subprocess.run(["cp", "-a", "--sparse=always", str(path), str(images)], check=True)
    owner = new_owner_id()
    with Owners(small_disk / "owners").hold(owner):
        opened = MicrovmHost(small_disk, owner, None, PATH)
        yield opened
        anyio.run(opened.close)


async def test_with_the_disk_full_no_machine_is_made_copied_or_kept_and_what_lives_goes_on(
    machines: MicrovmHost, small_disk: Path
) -> None:
    with anyio.fail_after(120):
        async with machines.open(SandboxSpec()) as sandbox:
            await sandbox.write("file", b"before")
            ballast = fill_disk(small_disk, api.floor_of(small_disk) // 2)
            codes: list[str] = []
            for attempt in (machines.open(SandboxSpec()), sandbox.fork()):
                with pytest.raises(HostError) as refused:
                    async with attempt:
                        pass
                codes.append(refused.value.code)
                assert "free some disk" in refused.value.message
            with pytest.raises(HostError) as taken:
                await sandbox.snapshot("more")
            assert [*codes, taken.value.code] == ["no_disk"] * 3
            assert [path.name.split(".")[0] for path in (small_disk / "sandboxes").iterdir()] == [
                sandbox.info.id
            ]
            assert await machines.snapshots() == ()
            assert [
                path.name for path in (small_disk / "microvm/snapshots").iterdir() if path.name != ".lock"
            ] == []
            await sandbox.write("file", b"small things still fit")
            ballast.unlink()
            async with sandbox.fork() as child:
                assert await child.read("file") == b"small things still fit"
            kept = await sandbox.snapshot("more")
            assert await machines.snapshots() == (kept,)
    assert list((small_disk / "sandboxes").iterdir()) == []


async def test_a_machine_that_writes_onto_a_full_disk_breaks_nothing_but_itself(
    machines: MicrovmHost, small_disk: Path
) -> None:
    with anyio.fail_after(120):
        async with machines.open(SandboxSpec()) as sandbox:
            ballast = fill_disk(small_disk, 0)
            await sandbox.run(shell("head -c 30000000 /dev/zero | tr '\\0' x > big; sync", seconds=60))
            with pytest.raises(HostError) as refused:
                async with machines.open(SandboxSpec()):
                    pass
            assert refused.value.code == "no_disk"
        ballast.unlink()
        async with machines.open(SandboxSpec()) as sandbox, sandbox.fork() as child:
            assert (await child.run(shell("head -c 10000000 /dev/urandom > some && sync"))).ok
    assert list((small_disk / "sandboxes").iterdir()) == []


@pytest.mark.parametrize("host", ["btrfs-loop"], indirect=True)
async def test_an_import_that_does_not_fit_leaves_nothing(host: ContainerHost, small_disk: Path) -> None:
    ballast = fill_disk(small_disk, 400 * MIB)
    await refuses(host, "create")
    assert list((small_disk / "sandboxes").glob("*")) == []
    ballast.unlink()
    with anyio.fail_after(120):
        async with host.open(SandboxSpec()) as sandbox:
            assert (await sandbox.run(shell("true"))).ok
