"""The `Store` makes the writable roots of sandboxes; and how much of the disk it may use."""

import errno
import os
from pathlib import Path
from typing import Protocol

import msgspec

from cloister.core import limits
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
    """The device that the launcher mounts, when `path` is in no mount namespace."""
    subvolume: str = ""
    """Where the root is on `device`."""


Root = Layers | Tree


class Shortage(msgspec.Struct, frozen=True):
    """The disk has no room for new sandboxes."""

    why: str
    """One sentence."""
    full: bool
    """True if sandboxes that exist cannot write either."""


class Store(Protocol):
    """Makes, copies and removes roots. Several processes may use the store of one data directory at once.

    A root carries the name of its sandbox; `limit_bytes` is what may be written to it. All methods raise
    `HostError`: `no_disk` when there is no room, `store_failed` otherwise; then nothing half made is left.
    """

    @property
    def kind(self) -> str:
        """The name shown to people, e.g. `btrfs-loop`. It says so when sandboxes have no disk quota."""
        ...

    async def adopt(self, template: Path) -> Path:
        """Import the root filesystem `template` for repeated use; return where its files are.

        Raises `HostError` (`no_template`) if another store has them, or had them.
        """
        ...

    async def keep(self, parent: Root, template: Path) -> None:
        """Make the new directory `template` a root filesystem with the files of `parent`, which the caller holds still.

        A store that can share blocks keeps the files itself: `template` stays empty, and `KEPT` beside it names them.
        """
        ...

    async def create(self, template: Path | None, name: str, limit_bytes: int) -> Root:
        """A fresh copy-on-write root over `template`, or an empty one."""
        ...

    async def fork(self, parent: Root, name: str, limit_bytes: int) -> Root:
        """A copy of `parent`, which the caller holds still."""
        ...

    async def remove(self, name: str) -> None:
        """Remove an unused root, which may be half made or already removed."""
        ...

    async def snapshots(self) -> Path:
        """The directory that holds one directory per snapshot."""
        ...

    async def save(self, parent: Root, at: Path) -> int:
        """Copy `parent`, which the caller holds still, to `at` below `snapshots()`; return its size.

        The size is what the sandbox wrote since it was made.
        """
        ...

    async def used(self, root: Root) -> int | None:
        """The bytes that the sandbox of `root` wrote since it was made, as far as they are on the disk.

        None if the store does not count them.
        """
        ...

    async def restore(self, at: Path, name: str, limit_bytes: int) -> Root:
        """A new root from the copy that `save` made in `at`."""
        ...

    async def discard(self, at: Path) -> None:
        """Remove a copy of `save`, complete or not."""
        ...

    async def shortage(self) -> Shortage | None:
        """Return why nothing new can be made now; None if there is room. Never raises."""
        ...

    async def settle(self) -> None:
        """Write pending data to disk. Called now and then, so that a later copy is fast."""
        ...

    async def close(self) -> None:
        """Release mounts. Any later call mounts again."""
        ...


KEPT = "kept"
"""A file beside a template's root filesystem: the name that the store gave to its files."""


def is_kept(template: Path) -> bool:
    """True if the files of a template are in a store, and its directory is empty."""
    return template.with_name(KEPT).is_file()


def lost(template: Path) -> HostError:
    """The error for a template whose files this store does not have."""
    name = template.parent.name
    return HostError(
        "no_template", f"The files of the template {name} are in another store, or were removed with it."
    )


def writable(root: Root) -> Path:
    """Where this process can write files into a root that does not run yet."""
    match root:
        case Layers():
            return root.upper
        case Tree():
            return root.path


FULL_BYTES = 64 * 1024**2
"""A disk with less than this, or half of its floor, counts as full."""

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_BROKEN = frozenset((errno.EIO, errno.EROFS))


def floor_of(directory: Path) -> int:
    """The free bytes on the disk of `directory` below which nothing new is made."""
    found = os.statvfs(directory)
    return min(limits.DISK_FLOOR_BYTES, int(found.f_blocks * found.f_frsize * limits.DISK_FLOOR_SHARE))


def free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def check_floor(directory: Path, floor: int) -> None:
    """Raises `HostError` (`no_disk`) when the disk of `directory` has less than `floor` left."""
    left = free(directory)
    if left < floor:
        raise no_disk(
            f"{directory} has {left / 2**30:.1f} GiB left, of which {floor / 2**30:.1f} GiB are reserved"
        )


def shortage(directory: Path) -> Shortage | None:
    """Return whether the disk of `directory` has too little left for something new."""
    left, floor = free(directory), floor_of(directory)
    if left >= floor:
        return None
    full = left < min(FULL_BYTES, floor // 2)
    word = "is full" if full else "has too little space"
    return Shortage(
        f"The disk of {directory} {word} ({left / 2**30:.1f} GiB left, {floor / 2**30:.1f} GiB needed): free some.",
        full,
    )


def no_disk(why: str) -> HostError:
    return HostError(
        "no_disk", f"There is no room for the files of a sandbox ({why}): free some disk and try again."
    )


def not_copied(why: str) -> HostError:
    """The error for a failed copy; `why` is the output of `cp`."""
    full = os.strerror(errno.ENOSPC)
    return (
        no_disk(full) if full in why else HostError("store_failed", f"The files could not be copied: {why}")
    )


def explained(error: OSError, what: str, directory: Path, floor: int) -> HostError:
    """The error for a failed system call on the store."""
    if error.errno in _FULL or (error.errno in _BROKEN and free(directory) < floor):
        return no_disk(os.strerror(error.errno or errno.ENOSPC))
    return HostError("store_failed", f"{what} failed in the store of {directory}: {error.strerror or error}.")
