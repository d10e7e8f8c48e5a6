"""A filesystem in a file, mounted for this process alone.

The mount is a descriptor: it is in nobody's list of mounts, and it is gone with the process that holds it,
however that ends. The loop device goes with its last mount. Several processes mount the same device.
All functions raise `OSError`.
"""

import ctypes
import errno
import fcntl
import os
import struct
from pathlib import Path

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
    """A loop device over `image`: an open descriptor, which keeps it, its path, and whether others have it too.

    Callers hold a lock on the image. A device that somebody else has attached is taken again, for two devices on one file destroy it.
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
            # Asked of the open device: from here on it stays what it is.
            status = bytearray(_STATUS.size)
            fcntl.ioctl(descriptor, _LOOP_GET_STATUS, status)
            on_device, inode, *_ = _STATUS.unpack(status)
            if (on_device, inode) == (wanted.st_dev, wanted.st_ino):
                return descriptor, device
        except OSError:
            pass  # It was let go in this moment.
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
            continue  # Another took it since, and lets go of it in this moment.
        try:
            _configure(descriptor, file)
            return descriptor, device
        except OSError as error:
            os.close(descriptor)
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "others take every loop device first")


def _configure(device: int, file: int) -> None:
    # Around the page cache where the filesystem below can: else everything is in memory twice, and a flush of one
    # sandbox waits for what all others wrote.
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
    """The loop device becomes as large as its file is by now."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _LOOP_SET_CAPACITY)
    finally:
        os.close(descriptor)


def mount_btrfs(device: Path) -> int:
    """A descriptor that is the mount: what is below it is reached through it, and closing it unmounts."""
    context = _call(_FSOPEN, b"btrfs", _CLOEXEC)
    try:
        for name, value in ((b"source", os.fsencode(device)), (b"discard", b"async")):
            _call(_FSCONFIG, context, _SET_STRING, name, value, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        # Without times of access: a read must not make a copy of what it read.
        return _call(_FSMOUNT, context, _CLOEXEC, _NOSUID | _NODEV | _NOATIME)
    finally:
        os.close(context)


def flush(path: Path) -> None:
    """Everything written to the filesystem of `path` is on its way to the disk, and has arrived."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
