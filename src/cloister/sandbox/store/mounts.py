"""Mount a filesystem in a file for this process alone. All functions raise `OSError`.

The mount is a descriptor: it appears in no mount table, and the kernel removes it when the process ends. The loop
device goes with its last mount. Several processes may mount the same device.
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
