"""Snapshots of machines: hard links to the files of a disk.

Nothing is copied, so the cost does not depend on the size. A machine that opens one boots from it.
"""

import errno
import os
import shutil
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError
from cloister.sandbox.microvm import ram
from cloister.sandbox.microvm.disks import Disk, OpenFile, open_file
from cloister.sandbox.store import api as room

_FACTS = "disk.json"
_BLOCK = 512
"""Unit of `st_blocks`."""


class Written(msgspec.Struct, frozen=True):
    """The disk of a machine, which is not written any more."""

    disk: Disk
    own: int
    """Number of layers that the machine wrote itself."""
    disk_bytes: int
    """Its disk quota."""


class _Facts(msgspec.Struct, frozen=True):
    layers: int
    disk_bytes: int


class Shelf:
    """The snapshots below one directory, on the same filesystem as the disks of living machines."""

    def __init__(self, directory: Path, images: Path) -> None:
        self._directory = directory
        self._images = images

    async def snapshots(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._directory

    async def save(self, parent: Written, at: Path) -> int:
        """See `Store.save`. Raises `HostError` (`no_disk`, `store_failed`)."""
        try:
            return await anyio.to_thread.run_sync(_save, parent, at)
        except OSError as error:
            raise room.explained(error, "A snapshot", at.parent, room.floor_of(at.parent)) from error

    async def discard(self, at: Path) -> None:
        """Also removes the images that were made of it."""
        number = at.name.rpartition(".")[2].removeprefix("new-").removeprefix("old-")

        def remove() -> None:
            for path in (at, *self._images.glob(f"{number}-*")):
                shutil.rmtree(path, ignore_errors=True)
            for lock in self._images.glob(f".lock-{number}-*"):
                lock.unlink(missing_ok=True)

        await anyio.to_thread.run_sync(remove)


def load(home: Path) -> Disk:
    """The disk of the snapshot in `home`. Raises `HostError` (`store_failed`)."""
    try:
        layers = tuple(open_file(home / f"layer{number}") for number in range(_facts(home).layers))
        return Disk(open_file(home / "base"), layers)
    except OSError as error:
        raise _unreadable(home, error) from error


def disk_bytes(home: Path) -> int:
    """The disk quota of the snapshot in `home`. Raises `HostError` (`store_failed`)."""
    return _facts(home).disk_bytes


def _facts(home: Path) -> _Facts:
    try:
        return msgspec.json.decode((home / _FACTS).read_bytes(), type=_Facts)
    except (OSError, msgspec.MsgspecError) as error:
        raise _unreadable(home, error) from error


def _unreadable(home: Path, error: Exception) -> HostError:
    return HostError("store_failed", f"The snapshot {home.name} cannot be read: {error}.")


def _save(parent: Written, at: Path) -> int:
    disk = parent.disk
    for number, file in enumerate(disk.layers):
        _link(file, at / f"layer{number}")
    _link(disk.base, at / "base")
    facts = _Facts(len(disk.layers), parent.disk_bytes)
    with (at / _FACTS).open("wb") as target:
        target.write(msgspec.json.encode(facts))
        target.flush()
        os.fsync(target.fileno())
    own = disk.layers[len(disk.layers) - parent.own :]
    for file in own:
        os.fsync(file.descriptor)
    return sum(os.fstat(file.descriptor).st_blocks * _BLOCK for file in own)


def _link(file: OpenFile, at: Path) -> None:
    """Give an open file a name; copy it if its last name was removed."""
    ours = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(file.descriptor), at, src_dir_fd=ours, follow_symlinks=True)
        return
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EXDEV):
            raise
    finally:
        os.close(ours)
    with at.open("wb") as target:
        os.ftruncate(target.fileno(), file.size)
        ram.copy_sparse(file.descriptor, target.fileno())
        os.fsync(target.fileno())
