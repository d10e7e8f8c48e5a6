"""The btrfs store: every root is a subvolume, so a copy costs the same whatever its size.

    templates/KEY/root    a template, read-only     KEY identifies the imported directory and its version
    roots/HASH            the root of a sandbox     a writable snapshot of a template, a sandbox or a snapshot
    snapshots/ID/root     a snapshot, read-only

The directory of a sandbox outside the store exists before and after its subvolume, so that a sweep finds it.
"""

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture, copy_tree
from cloister.sandbox.store import api, btrfs_ioctl, loop_file
from cloister.sandbox.store.api import Root, Shortage, Tree
from cloister.sandbox.store.loop_file import TOP, Image, Mounted, locked

T = TypeVar("T")

_REMOVE_SECONDS = 900.0
_SETTLE_SECONDS = 4.0
_PATIENCE_SECONDS = 3.0
_KEPT = ".kept-"
_KEPT_SECONDS = 86_400.0
"""After this time a kept template that no one adopted belongs to a builder that died."""
_FORGET = 64
"""Quota groups of removed subvolumes that are kept until the kernel releases them."""


class BtrfsStore:
    """On the btrfs of the data directory (`native`), or on one in a file, mounted privately."""

    def __init__(self, data_dir: Path, path: str, *, native: bool, floor: int | None = None) -> None:
        self._data_dir = data_dir
        self._path = path
        self._image = None if native else Image(data_dir / "store.btrfs", path, floor)
        self._native_floor = floor
        self._opened: Mounted | None = None
        self._opening = anyio.Lock()
        self._limits = True
        self._settled = 0.0
        self._gone: list[int] = []

    @property
    def kind(self) -> str:
        if self._image is not None:
            return "btrfs-loop"
        return "btrfs" if self._limits else "btrfs (no disk quota)"

    async def adopt(self, template: Path) -> Path:
        return await self._adopted(await self._ready(), template)

    async def keep(self, parent: Root, template: Path) -> None:
        store = await self._ready()
        name = secrets.token_hex(8)
        home = store.top / "templates" / f"{_KEPT}{name}"

        def kept() -> None:
            home.mkdir(mode=0o700)
            btrfs_ioctl.snapshot(_within(store, parent), home / "root", read_only=True)
            loop_file.flush(home)
            template.mkdir(mode=0o755)
            template.with_name(api.KEPT).write_text(name)

        await self._do(store, "A template", kept)

    async def create(self, template: Path | None, name: str, limit_bytes: int) -> Root:
        store = await self._ready()
        if template is None:
            return await self._make(store, name, limit_bytes, btrfs_ioctl.create)
        source = await self._adopted(store, template)
        return await self._make(store, name, limit_bytes, partial(btrfs_ioctl.snapshot, source))

    async def fork(self, parent: Root, name: str, limit_bytes: int) -> Root:
        store = await self._ready()
        copy = partial(btrfs_ioctl.snapshot, _within(store, parent))
        return await self._make(store, name, limit_bytes, copy)

    async def remove(self, name: str) -> None:
        if self._image is not None and self._opened is None and not self._image.path.exists():
            return
        await self._remove(await self._mounted_again(), "roots", _hidden(name))

    async def snapshots(self) -> Path:
        return (await self._mounted()).top / "snapshots"

    async def save(self, parent: Root, at: Path) -> int:
        store = await self._ready()
        source = _within(store, parent)

        def copy() -> int:
            if btrfs_ioctl.counts_by_writer(store.top):
                btrfs_ioctl.snapshot(source, at / "root", read_only=True)
                return btrfs_ioctl.held(source)
            # After the snapshot nothing belongs to the sandbox alone any more, so measure before it.
            loop_file.flush(store.top)
            size = btrfs_ioctl.held(source)
            btrfs_ioctl.snapshot(source, at / "root", read_only=True)
            return size

        return await self._do(store, "A snapshot", copy)

    async def used(self, root: Root) -> int | None:
        store = await self._ready()
        return await self._do(store, "Looking", partial(btrfs_ioctl.held, _within(store, root)))

    async def restore(self, at: Path, name: str, limit_bytes: int) -> Root:
        store = await self._ready()
        return await self._make(store, name, limit_bytes, partial(btrfs_ioctl.snapshot, at / "root"))

    async def discard(self, at: Path) -> None:
        store = await self._mounted()
        await self._remove(store, "snapshots", at.name, "root")
        await self._do(store, "Removing", partial(shutil.rmtree, at, ignore_errors=True))

    async def shortage(self) -> Shortage | None:
        if (found := api.shortage(self._data_dir)) or self._image is None:
            return found
        if self._opened is None and not self._image.path.exists():
            return None
        try:
            if (opened := self._opened) is not None and _stands_still(opened):
                await self.close()
                return Shortage(loop_file.stands_still().message, full=True)
            store = await self._mounted()
            if self._image.needs_growth(store):
                await self._image.grow(store)
            floor = min(api.FULL_BYTES, api.floor_of(store.top) // 2)
            if api.free(store.top) < floor:
                # Removed files give their room back with the next commit, which comes each half minute otherwise.
                await self._do(store, "Writing", partial(btrfs_ioctl.sync, store.top))
            left = api.free(store.top)
        except (HostError, OSError) as error:
            return Shortage(error.message if isinstance(error, HostError) else str(error), full=True)
        if left >= floor:
            return None
        return Shortage(
            "The store of sandboxes is full: remove snapshots or sandboxes, or free some disk.", full=True
        )

    async def settle(self) -> None:
        store = self._opened
        now = anyio.current_time()
        if store is None or now - self._settled < _SETTLE_SECONDS:
            return
        self._settled = now
        await self._do(store, "Writing", partial(btrfs_ioctl.sync, store.top))
        self._settled = anyio.current_time()
        if self._image is not None and self._image.needs_growth(store):
            await self._image.grow(store)
        self._forget(store)

    async def close(self) -> None:
        async with self._opening:
            store, self._opened = self._opened, None
            if store is not None:
                self._forget(store)
                # Closing the last mount waits for pending writes.
                await anyio.to_thread.run_sync(store.close)

    def _forget(self, store: Mounted) -> None:
        """Remove the quota groups of removed subvolumes, which older kernels keep."""
        with suppress(OSError):
            self._gone = [number for number in self._gone if not btrfs_ioctl.forget_limit(store.top, number)]

    async def _mounted_again(self) -> Mounted:
        """Mount, waiting until the sandbox that just ended has released a read-only store."""
        deadline = anyio.current_time() + _PATIENCE_SECONDS
        while True:
            try:
                return await self._mounted()
            except HostError as error:
                if error.code != "no_disk" or anyio.current_time() > deadline:
                    raise
            await anyio.sleep(0.05)

    async def _mounted(self) -> Mounted:
        async with self._opening:
            if self._opened is not None and self._image is not None and _stands_still(self._opened):
                # Read-only after a disk error. If no sandbox holds it, a new mount is writable again.
                self._opened.close()
                self._opened = None
            if self._opened is None:
                self._opened = await self._open()
            return self._opened

    async def _open(self) -> Mounted:
        if self._image is not None:
            store = await self._image.open()
        else:
            store = Mounted(self._data_dir / "store")
        try:
            for name in ("templates", "roots", "snapshots"):
                (store.top / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._limits = btrfs_ioctl.has_quota(store.top)
        except OSError as error:
            store.close()
            raise self._explained(error, "Opening") from error
        return store

    async def _ready(self) -> Mounted:
        """Mount, and check that there is room for something new."""
        store = await self._mounted()
        if self._image is None:
            api.check_floor(self._data_dir, self._floor)
            return store
        self._image.check_room(store)
        if self._image.needs_growth(store):
            await self._image.grow(store)
        return store

    async def _make(self, store: Mounted, name: str, limit: int, make: Callable[[Path], None]) -> Tree:
        path = store.top / "roots" / _hidden(name)

        def made() -> None:
            make(path)
            if self._limits:
                btrfs_ioctl.limit(path, limit)

        try:
            await self._do(store, "A new root", made)
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(HostError):
                await self._remove(store, "roots", _hidden(name))
            raise
        return Tree(path, store.device, f"{TOP}/roots/{path.name}")

    async def _adopted(self, store: Mounted, template: Path) -> Path:
        where, identity = _identity(template)
        home = store.top / "templates" / hashlib.sha256(identity.encode()).hexdigest()[:16]
        if not home.exists():
            async with locked(store.top / "templates" / ".lock"):
                if not home.exists():
                    await self._import(store, where, home, identity)
        return home / "root"

    async def _import(self, store: Mounted, template: Path, home: Path, identity: str) -> None:
        # We hold the lock, so the process that began these is dead. Imports of a removed directory are useless.
        for other in sorted(home.parent.iterdir()):
            if other.name.startswith(".new-") or (other.name != ".lock" and _outdated(other)):
                await self._remove(store, "templates", other.name, "root")
                shutil.rmtree(other, ignore_errors=True)
        if api.is_kept(template):
            await self._do(store, "A template", partial(_take, template, home, identity))
            return
        scratch = home.with_name(f".new-{secrets.token_hex(4)}")
        try:
            await self._do(store, "A template", partial(_begin, scratch, identity))
            await self._copy(template, scratch / "root")
            await self._do(store, "A template", partial(_finish, scratch, home))
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(HostError):
                await self._remove(store, "templates", scratch.name, "root")
                shutil.rmtree(scratch, ignore_errors=True)
            raise

    async def _copy(self, template: Path, into: Path) -> None:
        if why := await copy_tree(f"{template}/.", f"{into}/", self._path):
            raise api.not_copied(why)

    async def _remove(self, store: Mounted, *parts: str) -> None:
        path = store.top.joinpath(*parts)
        try:
            self._gone = [*self._gone, btrfs_ioctl.tree_of(path)][-_FORGET:]
            await anyio.to_thread.run_sync(btrfs_ioctl.destroy, path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOTTY, errno.EINVAL):
                raise self._explained(error, "Removing") from error
            # Subvolumes within it, or no subvolume at all.
            done = await capture(
                ["rm", "-rf", "--", str(path)], env={"PATH": self._path}, seconds=_REMOVE_SECONDS
            )
            if not done.ok:
                why = one_line(decode(done.err), 300)
                raise HostError("remove_failed", f"{path.name} could not be removed: {why}") from error

    async def _do(self, store: Mounted, what: str, action: Callable[[], T]) -> T:
        """Run `action` in a thread; retry once if the store was full and could grow."""
        try:
            try:
                return await anyio.to_thread.run_sync(action)
            except OSError as error:
                if error.errno != errno.ENOSPC or self._image is None or not await self._image.grow(store):
                    raise
            return await anyio.to_thread.run_sync(action)
        except OSError as error:
            raise self._explained(error, what) from error

    @property
    def _floor(self) -> int:
        if self._image is not None:
            return self._image.floor
        return api.floor_of(self._data_dir) if self._native_floor is None else self._native_floor

    def _explained(self, error: OSError, what: str) -> HostError:
        return api.explained(error, what, self._data_dir, self._floor)


def _within(store: Mounted, root: Root) -> Path:
    """The current path of `root`: the store may have been mounted again since it was made."""
    match root:
        case Tree(path=path):
            return store.top / "roots" / path.name
        case _:
            raise HostError("store_failed", "Another kind of store made this sandbox.")


def _stands_still(store: Mounted) -> bool:
    return bool(os.statvfs(store.top).f_flag & os.ST_RDONLY)


def _hidden(name: str) -> str:
    """The guest sees the name of its root, which must not reveal the name of the sandbox."""
    return hashlib.sha256(name.encode()).hexdigest()[:24]


def _identity(template: Path) -> tuple[Path, str]:
    where = template.resolve()
    found = where.stat()
    return where, f"{where} {found.st_ino} {found.st_mtime_ns}"


def _outdated(home: Path) -> bool:
    """True if the directory that was imported here has been removed or replaced."""
    try:
        if home.name.startswith(_KEPT):
            return time.time() - home.stat().st_ctime > _KEPT_SECONDS
        where, inode, changed = (home / "source").read_text().rsplit(" ", 2)
        found = Path(where).stat()
    except (OSError, ValueError):
        return True
    return (str(found.st_ino), str(found.st_mtime_ns)) != (inode, changed)


def _take(template: Path, home: Path, identity: str) -> None:
    """Give the files that `keep` kept the place of an import. Raises `HostError` (`no_template`)."""
    name = template.with_name(api.KEPT).read_text()[:40]
    kept = home.parent / f"{_KEPT}{name}"
    if not name.isalnum() or not kept.is_dir():
        raise api.lost(template)
    (kept / "source").write_text(identity)
    loop_file.flush(kept)
    kept.rename(home)


def _begin(scratch: Path, identity: str) -> None:
    scratch.mkdir(mode=0o700)
    (scratch / "source").write_text(identity)
    btrfs_ioctl.create(scratch / "root")


def _finish(scratch: Path, home: Path) -> None:
    btrfs_ioctl.protect(scratch / "root")
    loop_file.flush(scratch)
    scratch.rename(home)
