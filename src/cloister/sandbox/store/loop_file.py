"""A btrfs in a sparse file, for data directories on another filesystem.

The file grows with its content, shrinks when files are deleted, and always leaves a floor of free space on the disk.
A process that attaches, makes or grows it holds the lock beside it.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.system.locks import lock_within
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.store import api, btrfs_ioctl

# Mount a filesystem in a file for this process alone. All functions raise `OSError`.
#
# The mount is a descriptor: it appears in no mount table, and the kernel removes it when the process ends. The loop
# device goes with its last mount. Several processes may mount the same device.


_LOOP_CONFIGURE, _LOOP_GET_STATUS, _LOOP_SET_CAPACITY, _LOOP_GET_FREE = 0x4C0A, 0x4C05, 0x4C07, 0x4C82
_AUTOCLEAR, _DIRECT_IO = 4, 16
_STATUS = struct.Struct("<5Q4I64s64s32s2Q")
_BLOCK_BYTES = 4_096
_ATTEMPTS = 32

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_SET_STRING, _CREATE = 1, 6
_NOSUID, _NODEV, _NOATIME = 0x2, 0x4, 0x10

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def attach(image: Path) -> tuple[int, Path, bool]:
    """Attach a loop device to `image`; return a descriptor that keeps it, its path, and whether it was attached.

    Callers hold a lock on the image. An attached device is reused: two devices on one file would destroy it.
    """
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        if (found := _attached(file)) is not None:
            return *found, True
        return *_attach_new(file), False
    finally:
        os.close(file)


def _attached(file: int) -> tuple[int, Path] | None:
    wanted = os.fstat(file)
    for entry in sorted(Path("/sys/block").glob("loop*/loop")):
        device = Path("/dev") / entry.parent.name
        try:
            descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # The open descriptor keeps the device attached to this file.
            status = bytearray(_STATUS.size)
            fcntl.ioctl(descriptor, _LOOP_GET_STATUS, status)
            on_device, inode, *_ = _STATUS.unpack(status)
            if (on_device, inode) == (wanted.st_dev, wanted.st_ino):
                return descriptor, device
        except OSError:
            pass  # It was detached meanwhile.
        os.close(descriptor)
    return None


def _attach_new(file: int) -> tuple[int, Path]:
    for _ in range(_ATTEMPTS):
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            device = Path(f"/dev/loop{fcntl.ioctl(control, _LOOP_GET_FREE)}")
        finally:
            os.close(control)
        try:
            descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            continue  # Another process took it and is releasing it.
        try:
            _configure(descriptor, file)
            return descriptor, device
        except OSError as error:
            os.close(descriptor)
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "other processes took every loop device")


def _configure(device: int, file: int) -> None:
    # Bypass the page cache where the filesystem allows it: else all data is in memory twice, and a flush of one
    # sandbox waits for the writes of all others.
    for flags in (_AUTOCLEAR | _DIRECT_IO, _AUTOCLEAR):
        status = _STATUS.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, b"cloister", b"", b"", 0, 0)
        wish = struct.pack("<II", file, _BLOCK_BYTES) + status + bytes(64)
        try:
            fcntl.ioctl(device, _LOOP_CONFIGURE, wish)
            return
        except OSError as error:
            if error.errno != errno.EINVAL or not flags & _DIRECT_IO:
                raise


def notice_growth(device: Path) -> None:
    """Grow the loop device to the size of its file."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _LOOP_SET_CAPACITY)
    finally:
        os.close(descriptor)


def mount_btrfs(device: Path) -> int:
    """Mount `device`; return the descriptor of the mount. Closing it unmounts."""
    context = _call(_FSOPEN, b"btrfs", _CLOEXEC)
    try:
        for name, value in ((b"source", os.fsencode(device)), (b"discard", b"async")):
            _call(_FSCONFIG, context, _SET_STRING, name, value, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        # Without access times: a read must not cause a write.
        return _call(_FSMOUNT, context, _CLOEXEC, _NOSUID | _NODEV | _NOATIME)
    finally:
        os.close(context)


def flush(path: Path) -> None:
    """Write everything pending on the filesystem of `path` to disk, and wait for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)


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
            descriptor, device, shared = attach(self.path)
            try:
                mount = mount_btrfs(device)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise stands_still() if shared else self._unmountable(error) from error
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
            raise stands_still()

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
            notice_growth(mounted.device)
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


def stands_still() -> HostError:
    return api.no_disk("the disk is full, and the store stays read-only until its sandboxes have ended")


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Hold a lock on `path` among all processes. Raises `HostError` (`store_failed`)."""
    try:
        async with lock_within(path, _LOCK_SECONDS):
            yield
    except TimeoutError as error:
        raise HostError("store_failed", f"Another process has held {path} for too long.") from error
