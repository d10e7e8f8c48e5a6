"""A btrfs in a sparse file, for data directories on another filesystem.

The file grows with its content, shrinks when files are deleted, and always leaves a floor of free space on the disk.
A process that attaches, makes or grows it holds the lock beside it.
"""

import errno
import os
import shutil
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.store import api, btrfs_ioctl, mounts
from cloister.system.locks import lock_within

FIRST_BYTES = 32 * 1024**3
"""Initial size, if the disk has room."""

LOW_BYTES = 8 * 1024**3
"""It grows when less than this is free in it."""

SMALLEST_BYTES = 256 * 1024**2
STEP_BYTES = 256 * 1024**2
TOP = "cloister"
"""The directory of the store in its filesystem."""

_MAKE_SECONDS = 120.0
_LOCK_SECONDS = 900.0


class Mounted:
    """A mounted store. On a native btrfs nothing had to be mounted, and there is no device."""

    def __init__(self, top: Path, device: Path | None = None, mount: int | None = None) -> None:
        self.top = top
        self.device = device
        # Closed once, at the latest when this object is collected.
        self._close = None if mount is None else weakref.finalize(self, os.close, mount)

    def close(self) -> None:
        if self._close is not None:
            self._close()


class Image:
    """One image file. `floor` is the free space it leaves on the disk."""

    def __init__(self, path: Path, search_path: str, floor: int | None) -> None:
        # The data directory may link to another store; the lock belongs to the file itself.
        self.path = path.resolve()
        self._search_path = search_path
        self._floor = floor

    @property
    def floor(self) -> int:
        return api.floor_of(self.path.parent) if self._floor is None else self._floor

    async def open(self) -> Mounted:
        """Mount it; make it first if it is missing. Raises `HostError`."""
        async with locked(self.path.with_name(f".{self.path.name}.lock")):
            if not self.path.exists():
                await self._make()
            return await anyio.to_thread.run_sync(self._mount)

    async def _make(self) -> None:
        if shutil.which("mkfs.btrfs", path=self._search_path) is None:
            raise HostError("no_btrfs", "mkfs.btrfs is not installed: run `apt-get install btrfs-progs`.")
        size = min(FIRST_BYTES, self._bound())
        if size < SMALLEST_BYTES:
            raise api.no_disk(f"{api.free(self.path.parent) / 2**30:.1f} GiB are free")
        scratch = self.path.with_name(f".{self.path.name}.new")
        try:
            with scratch.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(size)
            # One copy of everything: a second one in the same file protects nothing.
            argv = ["mkfs.btrfs", "-q", "-f", "-K", "-m", "single", "-d", "single", str(scratch)]
            made = await capture(argv, env={"PATH": self._search_path}, seconds=_MAKE_SECONDS)
            if not made.ok:
                raise HostError(
                    "no_btrfs", f"mkfs.btrfs could not make the store: {one_line(decode(made.err), 300)}"
                )
            scratch.rename(self.path)
        finally:
            scratch.unlink(missing_ok=True)

    def _mount(self) -> Mounted:
        shared = False
        try:
            descriptor, device, shared = mounts.attach(self.path)
            try:
                mount = mounts.mount_btrfs(device)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _stands_still() if shared else self._unmountable(error) from error
        mounted = Mounted(Path(f"/proc/{os.getpid()}/fd/{mount}") / TOP, device, mount)
        try:
            mounted.top.mkdir(mode=0o700, exist_ok=True)
            if not btrfs_ioctl.has_quota(mounted.top):
                btrfs_ioctl.enable_quota(mounted.top)
            self._fill_device(mounted)
        except OSError as error:
            mounted.close()
            raise api.explained(error, "Opening", self.path.parent, self.floor) from error
        return mounted

    def _unmountable(self, error: OSError) -> HostError:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOSYS):
            return HostError("no_btrfs", f"This machine cannot mount a btrfs from a file ({error.strerror}).")
        api.check_floor(self.path.parent, self.floor)
        return HostError(
            "store_damaged",
            f"The store {self.path} cannot be mounted ({error.strerror}): check it with `btrfs check`, "
            "or remove it and lose its snapshots.",
        )

    def check_room(self, mounted: Mounted) -> None:
        """Raises `HostError` (`no_disk`) when nothing new may be made."""
        api.check_floor(self.path.parent, self.floor)
        if os.statvfs(mounted.top).f_flag & os.ST_RDONLY:
            raise _stands_still()

    def needs_growth(self, mounted: Mounted) -> bool:
        return api.free(mounted.top) < LOW_BYTES and self._next_size() > 0

    async def grow(self, mounted: Mounted) -> bool:
        """Grow it if the disk allows; return whether it grew."""
        async with locked(self.path.with_name(f".{self.path.name}.lock")):
            return await anyio.to_thread.run_sync(self._grow, mounted)

    def _grow(self, mounted: Mounted) -> bool:
        size = self._next_size()
        if size == 0:
            return False
        os.truncate(self.path, size)
        self._fill_device(mounted)
        return True

    def _fill_device(self, mounted: Mounted) -> None:
        """Grow the filesystem to the size of its file; a process that died while growing left it smaller."""
        found = os.statvfs(mounted.top)
        if mounted.device and self.path.stat().st_size - found.f_blocks * found.f_frsize >= STEP_BYTES // 2:
            mounts.notice_growth(mounted.device)
            btrfs_ioctl.grow(mounted.top)

    def _next_size(self) -> int:
        """The size to grow to, or 0."""
        size = self.path.stat().st_size
        wanted = min(self._bound(), max(2 * size, size + LOW_BYTES))
        return wanted if wanted - size >= STEP_BYTES else 0

    def _bound(self) -> int:
        """The largest size at which even a full image leaves the floor free."""
        taken = self.path.stat().st_blocks * 512 if self.path.exists() else 0
        room = taken + api.free(self.path.parent) - self.floor
        return max(0, room) // STEP_BYTES * STEP_BYTES


def _stands_still() -> HostError:
    return api.no_disk("the disk is full, and the store stays read-only until its sandboxes have ended")


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Hold a lock on `path` among all processes. Raises `HostError` (`store_failed`)."""
    try:
        async with lock_within(path, _LOCK_SECONDS):
            yield
    except TimeoutError as error:
        raise HostError("store_failed", f"Another process has held {path} for too long.") from error
