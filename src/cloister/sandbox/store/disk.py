"""How much of this machine's disk the store may take, and what is said when it is full."""

import errno
import os
from pathlib import Path

from cloister.core.errors import HostError

FLOOR_BYTES = 10 * 1024**3
FLOOR_SHARE = 0.05
"""What is left to the rest of the machine: the smaller of these two."""

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_BROKEN = frozenset((errno.EIO, errno.EROFS))


def floor_of(directory: Path) -> int:
    """The free bytes on the disk of `directory` below which nothing new is made."""
    found = os.statvfs(directory)
    return min(FLOOR_BYTES, int(found.f_blocks * found.f_frsize * FLOOR_SHARE))


def free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def check_floor(directory: Path, floor: int) -> None:
    """Raises `HostError` (`no_disk`) when the disk of `directory` is as full as we let it become."""
    left = free(directory)
    if left < floor:
        raise no_disk(f"{directory} has {left / 2**30:.1f} GiB left and {floor / 2**30:.1f} GiB stay free")


def no_disk(why: str) -> HostError:
    return HostError(
        "no_disk", f"There is no room for the files of a sandbox ({why}): free some disk and try again."
    )


def explained(error: OSError, what: str, directory: Path, floor: int) -> HostError:
    """What a failed system call on the store means to a person."""
    if error.errno in _FULL or (error.errno in _BROKEN and free(directory) < floor):
        return no_disk(os.strerror(error.errno or errno.ENOSPC))
    return HostError("store_failed", f"{what} failed in the store of {directory}: {error.strerror or error}.")
