"""The disk of a machine: a template's file system and thin layers over it, each an open file without a name.

Only the topmost layer is written. A fork puts a new one on top of each side and leaves what was there to both, so it
costs the same however much is in it. What nobody has open any more is gone.
"""

import os
import weakref
from pathlib import Path

import msgspec

from cloister.sandbox.microvm.qcow2 import empty_disk

DISK_BYTES = 8 * 1024**3
"""Size of every machine's disk, and so the most it can fill."""


class OpenFile:
    """A descriptor that is closed when nobody can reach it any more: several machines share what is below them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def again(self, flags: int) -> int:
        """A new descriptor of the same file, with its own position and rights."""
        return os.open(f"/proc/self/fd/{self.descriptor}", flags | os.O_CLOEXEC)


class Disk(msgspec.Struct, frozen=True):
    """The files of one machine's disk, from below."""

    base: OpenFile
    """The template's file system, as it is."""
    layers: tuple[OpenFile, ...]
    """What was written since, in the order in which it was; the last one is this machine's own."""

    @property
    def top(self) -> OpenFile:
        return self.layers[-1]

    def under(self, top: OpenFile) -> "Disk":
        """The same disk with another layer on top."""
        return Disk(self.base, (*self.layers, top))


def new_layer(directory: Path) -> OpenFile:
    """An empty layer in the file system of `directory`."""
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    layer = OpenFile(descriptor)
    os.pwrite(descriptor, empty_disk(DISK_BYTES), 0)
    return layer


def open_file(path: Path) -> OpenFile:
    return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
