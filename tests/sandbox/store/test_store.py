import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.conftest import loop_devices
from tests.whole.conformance.suites.store import make_template

from cloister.core.errors import HostError
from cloister.sandbox.store import btrfs_ioctl, loop_file
from cloister.sandbox.store.api import Layers, Tree, writable
from cloister.sandbox.store.btrfs import BtrfsStore
from cloister.sandbox.store.choose import can_share_blocks, files_of, is_btrfs, stores
from cloister.sandbox.store.overlay import OverlayStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="stores need root"),
]

PATH = os.environ["PATH"]
MIB = 1024**2
LIMIT = 1024 * MIB


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[BtrfsStore]:
    opened = BtrfsStore(tmp_path, PATH, native=False)
    try:
        await opened.snapshots()
    except HostError as error:
        pytest.skip(f"no btrfs in a file here: {error.message}")
    yield opened
    await opened.close()


def mounts_of(path: Path) -> list[str]:
    """Lines of any process's list of mounts that name `path`."""
    lines: set[str] = set()
    for entry in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines.update(line for line in entry.read_text().splitlines() if str(path) in line)
        except OSError:
            continue
    return sorted(lines)


async def until_gone(of: Path) -> None:
    with anyio.fail_after(30):
        while loop_devices(of):  # noqa: ASYNC110  the kernel lets go of a device in its own time and tells nobody
            await anyio.sleep(0.01)


async def fill(directory: Path, mebibytes: int) -> int:
    """Write random files of 1 MiB until an error or so many; returns how many were on the disk."""

    def write() -> int:
        data = os.urandom(MIB)
        for count in range(mebibytes):
            try:
                with (directory / f"filler{count}").open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                return count
        return mebibytes

    return await anyio.to_thread.run_sync(write)


async def test_the_store_is_in_no_mount_table_and_its_device_goes_with_it(
    store: BtrfsStore, tmp_path: Path
) -> None:
    root = await store.create(None, "s-one", LIMIT)
    assert len(loop_devices(tmp_path)) == 1
    assert mounts_of(tmp_path) == []
    assert isinstance(root, Tree) and f"/dev/{loop_devices(tmp_path)[0]}" == str(root.device)
    assert "s-one" not in root.subvolume, "a guest sees this name"
    await store.close()
    await until_gone(tmp_path)
    assert ((tmp_path / "store.btrfs").stat().st_mode & 0o777) == 0o600


async def test_two_stores_of_one_directory_share_one_device(store: BtrfsStore, tmp_path: Path) -> None:
    other = BtrfsStore(tmp_path, PATH, native=False)
    one = await store.create(None, "s-one", LIMIT)
    two = await other.create(None, "s-two", LIMIT)
    assert isinstance(one, Tree) and isinstance(two, Tree)
    assert one.device == two.device
    (one.path / "file").write_text("seen by both")
    child = await other.fork(one, "s-three", LIMIT)
    assert (writable(child) / "file").read_text() == "seen by both"
    await store.close()
    assert len(loop_devices(tmp_path)) == 1, "the other one still has it"
    assert (writable(child) / "file").read_text() == "seen by both"
    await other.close()
    await until_gone(tmp_path)


HOLDER = """
import sys
from pathlib import Path
import anyio
from cloister.sandbox.store.btrfs import BtrfsStore
async def main():
    store = BtrfsStore(Path(sys.argv[1]), sys.argv[2], native=False)
    root = await store.create(None, "s-killed", 2**30)
    (root.path / "file").write_text("kept")
    await store.settle()
    print("up", flush=True)
    await anyio.sleep_forever()
anyio.run(main)
"""


async def test_after_a_kill_nothing_is_attached_and_the_next_one_goes_on(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), PATH]
    with await anyio.to_thread.run_sync(partial(subprocess.Popen, argv, stdout=subprocess.PIPE)) as holder:
        assert holder.stdout is not None
        assert await anyio.to_thread.run_sync(holder.stdout.readline) == b"up\n"
        assert len(loop_devices(tmp_path)) == 1
        holder.send_signal(signal.SIGKILL)
    await until_gone(tmp_path)
    assert mounts_of(tmp_path) == []
    store = BtrfsStore(tmp_path, PATH, native=False)
    await store.remove("s-killed")
    await store.create(None, "s-killed", LIMIT)
    await store.close()
    await until_gone(tmp_path)


async def test_a_filler_is_stopped_at_its_limit_and_others_are_not(store: BtrfsStore) -> None:
    greedy = await store.create(None, "s-greedy", 24 * MIB)
    modest = await store.create(None, "s-modest", 24 * MIB)
    written = await fill(writable(greedy), 64)
    assert 12 <= written <= 24
    assert await fill(writable(modest), 8) == 8
    for path in writable(greedy).iterdir():
        path.unlink()
    assert isinstance(greedy, Tree) and list(greedy.path.iterdir()) == [], "a full one can be cleaned up"


async def test_names_count_too(store: BtrfsStore) -> None:
    root = writable(await store.create(None, "s-names", 8 * MIB))

    def litter() -> int:
        for count in range(200_000):
            try:
                os.mknod(root / f"{count:0200d}")
            except OSError:
                return count
            if count % 2_000 == 0:
                loop_file.flush(root)
        return 200_000

    assert await anyio.to_thread.run_sync(litter) < 50_000


async def test_a_fork_has_its_own_limit_without_the_shared_bytes(store: BtrfsStore) -> None:
    parent = await store.create(None, "s-parent", 24 * MIB)
    assert await fill(writable(parent), 12) == 12
    child = await store.fork(parent, "s-child", 24 * MIB)
    before = sorted(path.name for path in writable(child).iterdir())
    assert len(before) == 12
    (writable(child) / "more").mkdir()
    assert 8 <= await fill(writable(child) / "more", 64) <= 24


async def test_a_template_is_imported_once_and_cannot_be_written(store: BtrfsStore, tmp_path: Path) -> None:
    template = make_template(tmp_path / "a")
    await store.adopt(template)
    await store.adopt(template)
    imported = [path for path in ((await store.snapshots()).parent / "templates").iterdir() if path.is_dir()]
    assert len(imported) == 1
    assert (imported[0] / "root").lstat().st_ino == 256, "it is a subvolume"
    with pytest.raises(OSError, match="Read-only"):
        (imported[0] / "root" / "x").touch()


async def test_an_import_of_a_removed_template_is_removed(store: BtrfsStore, tmp_path: Path) -> None:
    old = make_template(tmp_path / "old")
    root = await store.create(old, "s-old", LIMIT)
    old.rename(tmp_path / "elsewhere")
    await store.adopt(make_template(tmp_path / "new"))
    imported = [path for path in ((await store.snapshots()).parent / "templates").iterdir() if path.is_dir()]
    assert len(imported) == 1
    assert (writable(root) / "etc" / "name").read_text() == "template", "its sandboxes do not need it"


async def test_an_interrupted_import_is_begun_again(store: BtrfsStore, tmp_path: Path) -> None:
    templates = (await store.snapshots()).parent / "templates"
    (templates / ".new-dead").mkdir()
    btrfs_ioctl.create(templates / ".new-dead" / "root")
    template = make_template(tmp_path / "a")
    (template / "large").write_bytes(os.urandom(64 * MIB))
    with anyio.move_on_after(0.01):
        await store.adopt(template)
    root = await store.create(template, "s-one", LIMIT)
    assert (writable(root) / "large").stat().st_size == 64 * MIB
    assert not list(templates.glob(".new-*"))


async def test_subvolumes_inside_a_root_do_not_keep_it(store: BtrfsStore) -> None:
    root = writable(await store.create(None, "s-one", LIMIT))
    (root / "below").mkdir()
    btrfs_ioctl.create(root / "below" / "nested")
    (root / "below" / "nested" / "file").touch()
    await store.remove("s-one")
    assert not root.exists()


async def test_removed_roots_leave_no_quota_group(store: BtrfsStore) -> None:
    groups: list[int] = []
    for number in range(3):
        root = await store.create(None, f"s-{number}", LIMIT)
        groups.append(btrfs_ioctl.tree_of(writable(root)))
        await store.remove(f"s-{number}")
    keeper = await store.create(None, "s-keeper", LIMIT)
    top = writable(keeper)
    with anyio.fail_after(60):
        while any(btrfs_ioctl.has_group(top, group) for group in groups):
            # The kernel removes subvolumes in the background and tells nobody.
            await anyio.sleep(0.05)
            btrfs_ioctl.sync(top)


async def test_a_damaged_store_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "store.btrfs").write_bytes(b"not a filesystem" * 65_536)
    with pytest.raises(HostError) as refused:
        await stores("auto", tmp_path, PATH)
    assert refused.value.code == "store_damaged"
    assert str(tmp_path / "store.btrfs") in refused.value.message
    await until_gone(tmp_path)


async def test_a_machine_without_btrfs_gets_the_plain_store_and_says_that_it_has_no_quota(
    tmp_path: Path,
) -> None:
    (best,) = await stores("auto", tmp_path, str(tmp_path))
    assert best.kind == "overlay+copy (no disk quota)"
    assert not (tmp_path / "store.btrfs").exists()
    assert not is_btrfs(tmp_path) and not can_share_blocks(tmp_path)


async def test_a_store_can_be_asked_for_by_name_and_is_refused_when_it_cannot_be(tmp_path: Path) -> None:
    assert [kept.kind for kept in await stores("overlay", tmp_path, PATH)] == ["overlay+copy (no disk quota)"]
    assert [kept.kind for kept in await stores("btrfs-loop", tmp_path, PATH)] == ["btrfs-loop"]
    with pytest.raises(HostError) as refused:
        await stores("btrfs", tmp_path, PATH)
    assert refused.value.code == "no_btrfs"


async def test_an_overlay_keeps_whiteouts_and_its_own_attributes_in_a_fork(tmp_path: Path) -> None:
    plain = OverlayStore(tmp_path, PATH)
    parent = await plain.create(tmp_path / "template", "s-one", LIMIT)
    assert isinstance(parent, Layers)
    assert parent.upper.parent == parent.work.parent, "an overlay needs both on one mount"
    os.mknod(parent.upper / "deleted", 0o600 | stat.S_IFCHR, os.makedev(0, 0))
    (parent.upper / "opaque").mkdir()
    os.setxattr(parent.upper / "opaque", "trusted.overlay.opaque", b"y")
    (parent.work / "work").mkdir()
    child = await plain.fork(parent, "s-two", LIMIT)
    assert isinstance(child, Layers)
    assert (child.upper / "deleted").is_char_device() and (child.upper / "deleted").stat().st_rdev == 0
    assert os.getxattr(child.upper / "opaque", "trusted.overlay.opaque") == b"y"
    assert list(child.work.iterdir()) == [], "the work directory belongs to one mount"


async def test_a_kept_template_shares_the_blocks_of_its_sandbox(store: BtrfsStore, tmp_path: Path) -> None:
    below = await store.create(make_template(tmp_path / "a"), "s-one", LIMIT)
    (writable(below) / "installed").write_bytes(os.urandom(8 * MIB))
    building, final = tmp_path / ".building", tmp_path / "env"
    building.mkdir()
    await store.keep(below, building / "rootfs")
    assert list((building / "rootfs").iterdir()) == [], "no file is copied out of the store"
    building.rename(final)
    files = await store.adopt(final / "rootfs")
    await store.remove("s-one")
    root = await store.create(final / "rootfs", "s-two", 16 * MIB)
    assert (writable(root) / "installed").stat().st_size == 8 * MIB
    assert (writable(root) / "etc" / "name").read_text() == "template"
    with pytest.raises(OSError, match="Read-only"):
        (files / "x").touch()


async def test_a_kept_template_is_not_taken_for_an_empty_one_elsewhere(
    store: BtrfsStore, tmp_path: Path
) -> None:
    (home := tmp_path / "env").mkdir()
    await store.keep(await store.create(None, "s-one", LIMIT), home / "rootfs")
    plain = OverlayStore(tmp_path / "plain", PATH)
    (tmp_path / "plain").mkdir()
    for use in (plain.adopt(home / "rootfs"), plain.create(home / "rootfs", "s-two", LIMIT)):
        with pytest.raises(HostError, match="another store") as failed:
            await use
        assert failed.value.code == "no_template"
    for hostile in ("0" * 16, "../roots/x"):
        (home / "kept").write_text(hostile)
        with pytest.raises(HostError, match="another store"):
            await store.adopt(home / "rootfs")


async def test_other_tiers_find_the_files_of_a_kept_template(store: BtrfsStore, tmp_path: Path) -> None:
    (home := tmp_path / "templates" / "env").mkdir(parents=True)
    root = await store.create(None, "s-one", LIMIT)
    (writable(root) / "name").write_text("kept")
    await store.keep(root, home / "rootfs")
    async with files_of(home / "rootfs", PATH) as files:
        assert (files / "name").read_text() == "kept"
