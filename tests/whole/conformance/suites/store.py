"""What every kind of store promises, one function per promise: run each of `PROMISES` with a way to open it.

Runs as root. `open_store` gives a store over one and the same data directory each time; the caller closes it.
"""

import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
from tests.whole.conformance.suites.base import expect, hold, promises, refused

from cloister.core.ids import new_sandbox_id
from cloister.sandbox.store.api import Layers, Root, Store, Tree, writable

LIMIT_BYTES = 1_073_741_824

OpenStore = Callable[[], Store]
Promise = Callable[[OpenStore, Path], Awaitable[None]]
"""The path is an empty directory to make templates in."""


@asynccontextmanager
async def opened(open_store: OpenStore) -> AsyncGenerator[Store]:
    store = open_store()
    try:
        yield store
    finally:
        await store.close()


def find(root: Root, name: str) -> Path:
    """Where the file `name` of an unmounted root is."""
    match root:
        case Tree():
            return root.path / name
        case Layers():
            upper = root.upper / name
            return upper if upper.exists() or upper.is_symlink() else root.lower / name


def make_template(at: Path) -> Path:
    rootfs = at / "rootfs"
    (rootfs / "etc").mkdir(parents=True)
    rootfs.chmod(0o755)
    (rootfs / "etc" / "name").write_text("template")
    return rootfs


async def a_root_starts_as_its_template_and_leaves_it_alone(open_store: OpenStore, at: Path) -> None:
    template = make_template(at)
    async with opened(open_store) as store:
        await store.adopt(template)
        one, other = new_sandbox_id(), new_sandbox_id()
        root = await store.create(template, one, LIMIT_BYTES)
        expect(find(root, "etc/name").read_text(), "template")
        (writable(root) / "etc").mkdir(exist_ok=True)
        (writable(root) / "etc" / "name").write_text("mine")
        expect(find(root, "etc/name").read_text(), "mine")
        expect(find(await store.create(template, other, LIMIT_BYTES), "etc/name").read_text(), "template")
        expect((template / "etc" / "name").read_text(), "template")
        await store.remove(one)
        await store.remove(other)


async def a_root_without_a_template_is_empty_and_everyone_inside_may_pass_it(
    open_store: OpenStore, at: Path
) -> None:
    async with opened(open_store) as store:
        name = new_sandbox_id()
        old = os.umask(0o077)
        try:
            top = writable(await store.create(None, name, LIMIT_BYTES))
        finally:
            os.umask(old)
        expect(list(top.iterdir()), [])
        expect(stat.S_IMODE(top.stat().st_mode), 0o755)
        await store.remove(name)


async def a_fork_has_everything_and_shares_nothing(open_store: OpenStore, at: Path) -> None:
    async with opened(open_store) as store:
        names = [new_sandbox_id() for _ in range(3)]
        parent = await store.create(make_template(at), names[0], LIMIT_BYTES)
        top = writable(parent)
        (top / "file").write_text("before")
        os.chown(top / "file", 1000, 1000)
        os.utime(top / "file", (1, 1))
        os.link(top / "file", top / "same")
        (top / "link").symlink_to("/etc/passwd")
        (top / "closed").mkdir(mode=0o711)
        os.setxattr(top / "closed", "user.note", b"y")
        os.mkfifo(top / "pipe")
        child = await store.fork(parent, names[1], LIMIT_BYTES)
        (top / "file").write_text("after")
        grandchild = await store.fork(child, names[2], LIMIT_BYTES)
        (find(child, "file")).write_text("child")
        found = find(grandchild, "file")
        expect(found.read_text(), "before")
        status = found.stat()
        expect((status.st_uid, status.st_gid, status.st_mtime, status.st_nlink), (1000, 1000, 1, 2))
        expect(str(find(grandchild, "link").readlink()), "/etc/passwd")
        expect(os.getxattr(find(grandchild, "closed"), "user.note"), b"y")
        expect(stat.S_IMODE(find(grandchild, "closed").stat().st_mode), 0o711)
        hold(find(grandchild, "pipe").is_fifo(), "a pipe stays a pipe")
        expect(find(grandchild, "etc/name").read_text(), "template")
        expect((top / "file").read_text(), "after")
        for name in names:
            await store.remove(name)


async def what_was_saved_outlives_its_root_and_is_restored_as_often_as_wanted(
    open_store: OpenStore, at: Path
) -> None:
    async with opened(open_store) as store:
        name = new_sandbox_id()
        root = await store.create(make_template(at), name, LIMIT_BYTES)
        (writable(root) / "data").write_bytes(os.urandom(1_048_576))
        kept = (writable(root) / "data").read_bytes()
        home = await store.snapshots() / "sn-conformance"
        home.mkdir()
        size = await store.save(root, home)
        hold(1_048_576 <= size < 4_194_304, f"the size is what was written, not {size}")
        (writable(root) / "data").write_bytes(b"later")
        await store.remove(name)
    async with opened(open_store) as store:
        home = await store.snapshots() / "sn-conformance"
        for _ in range(2):
            again = new_sandbox_id()
            restored = await store.restore(home, again, LIMIT_BYTES)
            hold(find(restored, "data").read_bytes() == kept, "it is as it was")
            expect(find(restored, "etc/name").read_text(), "template")
            find(restored, "data").write_bytes(b"changed")
            await store.remove(again)
        await store.discard(home)
        await store.discard(home)
        hold(not home.exists(), "a discarded snapshot is gone")
        with refused("store_failed"):
            await store.restore(home, new_sandbox_id(), LIMIT_BYTES)


async def removing_copes_with_what_a_guest_can_make(open_store: OpenStore, at: Path) -> None:
    outside = at / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    async with opened(open_store) as store:
        name = new_sandbox_id()
        top = writable(await store.create(None, name, LIMIT_BYTES))
        (top / "link").symlink_to(outside)
        (top / "-rf").touch()
        (top / "new\nline").touch()
        here = os.open(top, os.O_RDONLY)
        for _ in range(3_000):
            os.mkdir("deep", dir_fd=here)
            below = os.open("deep", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        await store.remove(name)
        await store.remove(name)
        hold(not top.exists(), "a removed root is gone")
        hold((outside / "precious").exists(), "links are removed, not followed")


async def a_store_goes_on_after_it_was_closed(open_store: OpenStore, at: Path) -> None:
    async with opened(open_store) as store:
        names = [new_sandbox_id() for _ in range(2)]
        root = await store.create(make_template(at), names[0], LIMIT_BYTES)
        (writable(root) / "file").write_text("kept")
        await store.settle()
        await store.close()
        child = await store.fork(root, names[1], LIMIT_BYTES)
        expect(find(child, "file").read_text(), "kept")
        for name in names:
            await store.remove(name)


async def several_use_one_data_directory_at_once(open_store: OpenStore, at: Path) -> None:
    template = make_template(at)

    async def work() -> None:
        async with opened(open_store) as store:
            for _ in range(3):
                name = new_sandbox_id()
                root = await store.create(template, name, LIMIT_BYTES)
                (writable(root) / "mine").write_text(name)
                await anyio.lowlevel.checkpoint()
                expect(find(root, "mine").read_text(), name)
                await store.remove(name)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(work)


async def what_is_not_there_is_said(open_store: OpenStore, at: Path) -> None:
    async with opened(open_store) as store:
        name = new_sandbox_id()
        parent = await store.create(None, name, LIMIT_BYTES)
        await store.remove(name)
        with refused("store_failed"):
            await store.fork(parent, new_sandbox_id(), LIMIT_BYTES)


PROMISES: tuple[Promise, ...] = promises(__name__, OpenStore, Path)
