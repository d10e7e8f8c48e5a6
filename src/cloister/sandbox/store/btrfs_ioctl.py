"""btrfs system calls: subvolumes, their quotas, the size of the filesystem. All functions raise `OSError`.

No process is started, so a copy takes milliseconds. Callers choose the names; a guest never does.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAGIC = 0x94
_WRITE, _READ, _BOTH = 1, 2, 3
_PAGE = 4_096
_FIRST_INODE = 256
_READ_ONLY = 1 << 1
_LIMIT_EXCLUSIVE = 1 << 1
_QUOTA_TREE = 8
_QGROUP_STATUS, _QGROUP_INFO = 240, 242
_ENABLE, _ENABLE_SIMPLE = 1, 4
_SIMPLE = 1 << 3

_VOLUME = struct.Struct("<q4088s")
_VOLUME_2 = struct.Struct("<qQQ32s4040s")
_SEARCH = struct.Struct("<7Q4I4Q")
_FOUND = struct.Struct("<3Q2I")
_FIVE = struct.Struct("<5Q")


def _code(direction: int, number: int, size: int) -> int:
    return (direction << 30) | (size << 16) | (_MAGIC << 8) | number


_SYNC = _code(0, 8, 0)
_RESIZE = _code(_WRITE, 3, _PAGE)
_DESTROY = _code(_WRITE, 15, _PAGE)
_TREE_SEARCH = _code(_BOTH, 17, _PAGE)
_INO_LOOKUP = _code(_BOTH, 18, _PAGE)
_SNAPSHOT = _code(_WRITE, 23, _PAGE)
_CREATE = _code(_WRITE, 24, _PAGE)
_SET_FLAGS = _code(_WRITE, 26, 8)
_QUOTA_CONTROL = _code(_BOTH, 40, 16)
_QGROUP_CREATE = _code(_WRITE, 42, 16)
_QGROUP_LIMIT = _code(_READ, 43, 48)
_CLONE_FILE = _code(_WRITE, 9, 4)


@contextmanager
def directory(path: Path) -> Generator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def create(path: Path) -> None:
    """An empty subvolume called `path`."""
    with directory(path.parent) as parent:
        fcntl.ioctl(parent, _CREATE, bytearray(_VOLUME_2.pack(0, 0, 0, b"", os.fsencode(path.name))))
    # Whatever the umask: this is the guest's `/`, which every user inside must be able to enter.
    path.chmod(0o755)


def snapshot(source: Path, path: Path, *, read_only: bool = False) -> None:
    """Make `path` a copy of the subvolume `source`."""
    flags = _READ_ONLY if read_only else 0
    with directory(source) as whole, directory(path.parent) as parent:
        wish = bytearray(_VOLUME_2.pack(whole, 0, flags, b"", os.fsencode(path.name)))
        fcntl.ioctl(parent, _SNAPSHOT, wish)


def destroy(path: Path) -> None:
    """Remove the subvolume; the kernel frees its space in the background."""
    with directory(path.parent) as parent:
        fcntl.ioctl(parent, _DESTROY, bytearray(_VOLUME.pack(0, os.fsencode(path.name))))


def protect(path: Path) -> None:
    """Make the subvolume read-only."""
    with directory(path) as whole:
        fcntl.ioctl(whole, _SET_FLAGS, struct.pack("<Q", _READ_ONLY))


def tree_of(path: Path) -> int:
    """The id of the subvolume that contains the directory `path`, which is also the id of its quota group."""
    with directory(path) as whole:
        answer = bytearray(struct.pack("<QQ4080s", 0, _FIRST_INODE, b""))
        fcntl.ioctl(whole, _INO_LOOKUP, answer)
    return int.from_bytes(answer[:8], "little")


def enable_quota(top: Path) -> None:
    """Enable quotas. Simple ones cost nothing per copy; kernels before 6.7 lack them."""
    with directory(top) as whole:
        try:
            fcntl.ioctl(whole, _QUOTA_CONTROL, bytearray(struct.pack("<QQ", _ENABLE_SIMPLE, 0)))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            fcntl.ioctl(whole, _QUOTA_CONTROL, bytearray(struct.pack("<QQ", _ENABLE, 0)))


def has_quota(top: Path) -> bool:
    return _search(top, _QGROUP_STATUS, 0) is not None


def has_group(top: Path, subvolume: int) -> bool:
    """Whether the subvolume with this id has a quota group."""
    return _search(top, _QGROUP_INFO, subvolume) is not None


def counts_by_writer(top: Path) -> bool:
    """True if shared bytes count for the subvolume that wrote them; else bytes count only where they are exclusive."""
    found = _search(top, _QGROUP_STATUS, 0)
    return found is not None and bool(_FIVE.unpack_from(found.ljust(_FIVE.size, b"\0"))[2] & _SIMPLE)


def limit(path: Path, limit_bytes: int) -> None:
    """Limit the exclusive bytes of the subvolume, directories included."""
    with directory(path) as whole:
        wish = struct.pack("<6Q", tree_of(path), _LIMIT_EXCLUSIVE, 0, limit_bytes, 0, 0)
        fcntl.ioctl(whole, _QGROUP_LIMIT, bytearray(wish))


def forget_limit(top: Path, subvolume: int) -> bool:
    """Remove the quota group of a removed subvolume; return False while the kernel still needs it."""
    with directory(top) as whole, suppress(OSError):
        fcntl.ioctl(whole, _QGROUP_CREATE, bytearray(struct.pack("<QQ", 0, subvolume)))
    return not has_group(top, subvolume)


def held(path: Path) -> int:
    """The bytes that count against the limit of the subvolume `path`; 0 without quotas."""
    found = _search(path, _QGROUP_INFO, tree_of(path))
    return 0 if found is None else _FIVE.unpack_from(found)[3]


def sync(top: Path) -> None:
    """Write pending data to disk, and free the space of destroyed subvolumes."""
    with directory(top) as whole:
        fcntl.ioctl(whole, _SYNC)


def grow(top: Path) -> None:
    """Grow the filesystem to the size of its device."""
    with directory(top) as whole:
        fcntl.ioctl(whole, _RESIZE, bytearray(_VOLUME.pack(0, b"max")))


def clone_file(source: int, target: int) -> None:
    """Make the file `target` share the blocks of `source`; both are descriptors."""
    fcntl.ioctl(target, _CLONE_FILE, source)


def _search(path: Path, kind: int, offset: int) -> bytes | None:
    """One item of the quota tree, or None."""
    everything = 2**64 - 1
    key = _SEARCH.pack(_QUOTA_TREE, 0, 0, offset, offset, 0, everything, kind, kind, 1, 0, 0, 0, 0, 0)
    answer = bytearray(key.ljust(_PAGE, b"\0"))
    with directory(path) as whole:
        try:
            fcntl.ioctl(whole, _TREE_SEARCH, answer)
        except FileNotFoundError:
            return None
    if int.from_bytes(answer[64:68], "little") == 0:
        return None
    start = _SEARCH.size
    *_, size = _FOUND.unpack_from(answer, start)
    return bytes(answer[start + _FOUND.size : start + _FOUND.size + size])
