"""Snapshots of machines: hard links to the files of a disk.

Nothing is copied, so the cost does not depend on the size. A machine that opens one boots from it.
"""

import errno
import mmap
import os
import shutil
import struct
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError
from cloister.sandbox.microvm import command_line, ram
from cloister.sandbox.microvm.boot import Awake, Moment
from cloister.sandbox.microvm.disks import Disk, OpenFile, held, open_file
from cloister.sandbox.microvm.machine import Qmp
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
    for file in disk.layers[len(disk.layers) - parent.own :]:
        os.fsync(file.descriptor)
    return written_bytes(disk, parent.own)


def written_bytes(disk: Disk, own: int) -> int:
    """What the newest `own` layers of a disk take."""
    return sum(os.fstat(file.descriptor).st_blocks * _BLOCK for file in disk.layers[len(disk.layers) - own :])


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


# Save a running machine: stop it, save its devices, memory and disk, let it go on.
#
# While it is stopped, only the memory written since its start is copied, and most of that is copied before.


PAGE = 4096
BLOCK = b"ram"
"""The emulator's name of the machine's memory."""

_HEADER = struct.Struct(">II")
_MAGIC, _VERSION = 0x5145564D, 3
_SECTION = struct.Struct(">BIB3sII")
_START, _FOOTER = 0x01, 0x7E
_NUMBER = 0x7FFF
"""Number of the section; the emulator counts its own from 0."""
_RAM_VERSION = 4
_PAGE, _END, _SAME_BLOCK = 0x08, 0x10, 0x20
_ADDRESS = struct.Struct(">Q")


def with_pages(state: bytes, pages: Iterable[tuple[int, memoryview]]) -> Iterator[bytes]:
    """Insert `pages` (address and content) into the device state `state`, in the emulator's format; yield pieces.

    A machine that resumes from it maps the original memory and gets these pages as private copies.
    Raises `ValueError` when `state` is not a saved state.
    """
    if _HEADER.unpack_from(state) != (_MAGIC, _VERSION):
        raise ValueError("this is not the state of a machine")
    yield state[: _HEADER.size]
    yield _SECTION.pack(_START, _NUMBER, 3, b"ram", 0, _RAM_VERSION)
    named = False
    for address, page in pages:
        if named:
            yield _ADDRESS.pack(address | _PAGE | _SAME_BLOCK)
        else:
            yield _ADDRESS.pack(address | _PAGE) + bytes((len(BLOCK),)) + BLOCK
        named = True
        yield bytes(page)
    yield _ADDRESS.pack(_END) + struct.pack(">BI", _FOOTER, _NUMBER)
    yield state[_HEADER.size :]


CARRIED_BYTES = 16 * 1024**2
"""Up to this size, each child gets the written pages as its own copy and shares the original memory. Beyond it, the
whole memory is copied once and shared by the children of that moment."""

_STATE_SET = 1_000
"""Number of the emulator's descriptor set for the state; above every layer's."""


async def last_moment(awake: Awake, memory: OpenFile) -> Moment:
    """Save a machine whose memory is in `memory`, and leave it stopped."""
    async with awake.link.held():
        await awake.machine.monitor.ask("stop")
        state = await _save_devices(awake.machine.monitor)
    return Moment(memory, state, awake.disk)


class Fork:
    """A saved moment of a machine that went on, and how long it was stopped."""

    def __init__(self, moment: Moment, disk: Disk, pause_seconds: float) -> None:
        self.moment = moment
        self.disk = disk
        """The machine's own disk from now on."""
        self.pause_seconds = pause_seconds


async def fork_moment(awake: Awake, disk: Disk, base: OpenFile, top: OpenFile) -> Fork:
    """Save a machine that started with the memory `base`, and let it go on with the disk layer `top`."""
    written = OpenFile(ram.new_ram(os.fstat(base.descriptor).st_size))
    try:
        with mmap.mmap(written.descriptor, 0) as target:
            # First while it runs; pages that change meanwhile are copied again below.
            await anyio.to_thread.run_sync(_copy_written, awake, base, target)
            async with awake.link.held(), stopped(awake) as began:
                state = await _save_devices(awake.machine.monitor)
                runs = await anyio.to_thread.run_sync(_copy_written, awake, base, target)
                # Last, because nothing before it changes the machine: on an error it can go on.
                await grow(awake, len(disk.layers) + 1, top)
            pause = time.monotonic() - began
            carried = sum(end - begin for begin, end in runs) <= CARRIED_BYTES
            if carried:
                with held(state):
                    state = await anyio.to_thread.run_sync(_carry, state, target, runs)
            else:
                await anyio.to_thread.run_sync(ram.fill_holes, base.descriptor, written.descriptor, runs)
        if not carried:
            ram.seal(written.descriptor)
    except BaseException:
        written.close()
        raise
    if carried:
        written.close()
    return Fork(Moment(base if carried else written, state, disk), disk.under(top), pause)


def _carry(state: OpenFile, target: mmap.mmap, runs: Sequence[ram.Run]) -> OpenFile:
    """The state, with the pages that the machine has written."""
    with memoryview(target) as view:
        pages = ((at, view[at : at + ram.PAGE]) for begin, end in runs for at in range(begin, end, ram.PAGE))
        whole = os.pread(state.descriptor, os.fstat(state.descriptor).st_size, 0)
        made = OpenFile(ram.new_ram(name="state"))
        with os.fdopen(os.dup(made.descriptor), "wb") as file:
            file.writelines(with_pages(whole, pages))
        ram.seal(made.descriptor)
    return made


@asynccontextmanager
async def stopped(awake: Awake) -> AsyncGenerator[float]:
    """Stop the machine; yield the time when it stopped."""
    await awake.machine.monitor.ask("stop")
    began = time.monotonic()
    try:
        yield began
    finally:
        with anyio.CancelScope(shield=True):
            await awake.machine.monitor.ask("cont")


def _copy_written(awake: Awake, base: OpenFile, target: mmap.mmap) -> tuple[ram.Run, ...]:
    pid = awake.machine.pid()
    address, size = ram.find_mapping(pid, base.descriptor)
    return ram.copy_private(pid, address, size, target)


async def _save_devices(monitor: Qmp) -> OpenFile:
    state = OpenFile(ram.new_ram(name="state"))
    await _add(monitor, state.again(os.O_WRONLY), _STATE_SET)
    # Despite its name it has nothing to do with Xen here: it saves every device, without the memory.
    file = f"/dev/fdset/{_STATE_SET}"
    await monitor.ask("xen-save-devices-state", {"filename": file, "live": False})
    await monitor.ask("remove-fd", {"fdset-id": _STATE_SET})
    # The emulator could still have it open.
    ram.seal(state.descriptor)
    return state


async def grow(awake: Awake, number: int, top: OpenFile) -> None:
    """Put `top` on the disk as layer `number`; the layers below become read-only."""
    monitor = awake.machine.monitor
    overlay = {"node": command_line.node(number - 1), "overlay": command_line.node(number)}
    try:
        with anyio.CancelScope(shield=True):
            await _add(monitor, top.again(os.O_RDONLY), number)
            await _add(monitor, top.again(os.O_RDWR), number)
            await monitor.ask("blockdev-add", command_line.layer_node(number, None, write=True))
            await monitor.ask("blockdev-snapshot", overlay)
    except HostError:
        # The state of its disk is unknown now.
        await awake.link.fail("The disk of the sandbox could not be divided for a fork.")
        raise


async def _add(monitor: Qmp, descriptor: int, number: int) -> None:
    try:
        await monitor.ask("add-fd", {"fdset-id": number}, (descriptor,))
    finally:
        os.close(descriptor)
