"""The disk of a machine: the filesystem of a template and thin layers over it, each an open file without a name.

Only the topmost layer is written. A fork puts a new layer on both sides and shares those below, so its cost does not
depend on their size. The kernel frees a layer with its last descriptor.
"""

import os
import struct
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

CLUSTER_BITS = 15
"""Clusters of 32 KiB; the first small write to a cluster copies it from the layer below."""

_CLUSTER = 1 << CLUSTER_BITS
_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
_MAGIC = b"QFI\xfb"
_VERSION = 3
_REFCOUNT_ORDER = 4  # sixteen bits each
_L2_ENTRIES = _CLUSTER // 8


def empty_disk(size: int) -> bytes:
    """An empty qcow2 disk (version 3) of `size` bytes: header, reference counts and an empty table.

    The layer below is named when the disk is opened, not in the file.
    """
    entries = -(-size // (_CLUSTER * _L2_ENTRIES))
    table_clusters = -(-entries * 8 // _CLUSTER)
    refcount_table, refcount_block, table = 1, 2, 3
    used = table + table_clusters
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        *(0, 0),  # no name of a disk below
        CLUSTER_BITS,
        size,
        0,  # not encrypted
        *(entries, table * _CLUSTER),
        *(refcount_table * _CLUSTER, 1),
        *(0, 0),  # no snapshots inside
        *(0, 0, 0),  # no features
        _REFCOUNT_ORDER,
        _HEADER.size,
    )
    counts = struct.pack(f">{used}H", *[1] * used)
    clusters = [header, struct.pack(">Q", refcount_block * _CLUSTER), counts]
    return b"".join(cluster.ljust(_CLUSTER, b"\0") for cluster in clusters) + bytes(table_clusters * _CLUSTER)


DISK_STEP = 1024**2
"""Disk quotas are rounded down to a multiple of this."""


class OpenFile:
    """A descriptor with a count of its holders: the last one to let go closes it.

    One that was never held is closed when the object is collected.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.close = weakref.finalize(self, os.close, descriptor)
        self._holders = 0

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self.close()

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def again(self, flags: int) -> int:
        """A new descriptor of the same file, with its own position and access mode."""
        return os.open(f"/proc/self/fd/{self.descriptor}", flags | os.O_CLOEXEC)


@contextmanager
def held(*files: OpenFile) -> Generator[None]:
    """Keep the files open during the block."""
    for file in files:
        file.hold()
    try:
        yield
    finally:
        for file in files:
            file.let_go()


class Disk(msgspec.Struct, frozen=True):
    """The files of one machine's disk, from below."""

    base: OpenFile
    """The filesystem of the template."""
    layers: tuple[OpenFile, ...]
    """Later writes, oldest first; the last layer belongs to this machine."""

    @property
    def top(self) -> OpenFile:
        return self.layers[-1]

    @property
    def files(self) -> tuple[OpenFile, ...]:
        return self.base, *self.layers

    def under(self, top: OpenFile) -> "Disk":
        """The same disk with another layer on top."""
        return Disk(self.base, (*self.layers, top))


def new_layer(directory: Path, size_bytes: int) -> OpenFile:
    """An empty layer of a disk of that size, in the file system of `directory`."""
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    layer = OpenFile(descriptor)
    os.pwrite(descriptor, empty_disk(size_bytes), 0)
    return layer


def open_file(path: Path) -> OpenFile:
    return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
