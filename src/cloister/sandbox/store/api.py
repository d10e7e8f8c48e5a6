"""Where a sandbox's writable root comes from. Kinds of store implement `Store`; nothing else does."""

import errno
import os
from pathlib import Path
from typing import Protocol

import msgspec

from cloister.core.errors import HostError


class Layers(msgspec.Struct, frozen=True):
    """A root that is an overlay of `upper` on `lower`. On disk, ids are the guest's own (0-based)."""

    lower: Path
    upper: Path
    work: Path


class Tree(msgspec.Struct, frozen=True):
    """A root that is one whole directory. On disk, ids are the guest's own (0-based)."""

    path: Path
    """Where this process finds it."""
    device: Path | None = None
    """What the launcher mounts, when `path` is in no mount namespace."""
    subvolume: str = ""
    """Where the root is on `device`."""


Root = Layers | Tree


class Store(Protocol):
    """Makes, copies and removes roots. Several processes may use the store of one data directory at once.

    A root carries the name of its sandbox; `limit_bytes` is what may be written to it. All methods raise
    `HostError`: `no_disk` when there is no room, `store_failed` otherwise; then nothing half made is left.
    """

    @property
    def kind(self) -> str:
        """What a person is shown, e.g. `btrfs-loop`. It says so when there is no limit on a sandbox's disk."""
        ...

    async def adopt(self, template: Path) -> None:
        """Make the root filesystem `template` ready to be used many times; what was adopted stays."""
        ...

    async def create(self, template: Path | None, name: str, limit_bytes: int) -> Root:
        """A fresh copy-on-write root over `template`, or an empty one."""
        ...

    async def fork(self, parent: Root, name: str, limit_bytes: int) -> Root:
        """A copy of `parent` as it is now. The caller has made sure that nobody writes to it meanwhile."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a root that nobody uses; one that is half made or already gone is fine."""
        ...

    async def snapshots(self) -> Path:
        """The directory for snapshots, each with a directory of its own in it."""
        ...

    async def save(self, parent: Root, at: Path) -> int:
        """A copy of `parent` that nobody writes to, in `at`, below the directory for snapshots; returns its size.

        The size is what the sandbox wrote since it was made. The caller holds the sandbox still.
        """
        ...

    async def restore(self, at: Path, name: str, limit_bytes: int) -> Root:
        """A fresh root that starts as what `save` kept in `at`."""
        ...

    async def discard(self, at: Path) -> None:
        """Remove what `save` kept in `at`, whole or half."""
        ...

    async def settle(self) -> None:
        """Called now and then: bring to the disk what was written, so that nobody pays for it at once later."""
        ...

    async def close(self) -> None:
        """Let go of mounts. The next call of any other method takes them again."""
        ...


def writable(root: Root) -> Path:
    """Where this process can put files into a root that is not running yet."""
    match root:
        case Layers():
            return root.upper
        case Tree():
            return root.path


# How much of this machine's disk the store may take, and what is said when it is full.


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
