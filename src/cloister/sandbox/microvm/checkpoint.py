"""Save a running machine: stop it, save its devices, memory and disk, let it go on.

While it is stopped, only the memory written since its start is copied, and most of that is copied before.
"""

import mmap
import os
import struct
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio

from cloister.core.errors import HostError
from cloister.sandbox.microvm import command_line, ram
from cloister.sandbox.microvm.boot import Awake, Moment
from cloister.sandbox.microvm.disks import Disk, OpenFile, held
from cloister.sandbox.microvm.machine import Qmp

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
            async with awake.link.held(), _stopped(awake) as began:
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
        made = OpenFile(os.memfd_create("state", os.MFD_CLOEXEC))
        with os.fdopen(os.dup(made.descriptor), "wb") as file:
            file.writelines(with_pages(whole, pages))
    return made


@asynccontextmanager
async def _stopped(awake: Awake) -> AsyncGenerator[float]:
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
    state = OpenFile(os.memfd_create("state", os.MFD_CLOEXEC))
    await _add(monitor, state.again(os.O_WRONLY), _STATE_SET)
    # Despite its name it has nothing to do with Xen here: it saves every device, without the memory.
    file = f"/dev/fdset/{_STATE_SET}"
    await monitor.ask("xen-save-devices-state", {"filename": file, "live": False})
    await monitor.ask("remove-fd", {"fdset-id": _STATE_SET})
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
