"""Taking a moment of a running machine: it stands still, its devices, memory and disk are kept, it goes on.

Only what the machine has written since it began is copied while it stands still, and most of the work even for that
is done before.
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

# Pages of memory put into a saved machine's state, in the emulator's own format. Pure.
#
# The state of the devices alone begins with a header; a section of memory may follow it. Whoever starts from such a state
# maps the memory that it began with and receives, privately, the pages that were different by then.


PAGE = 4096
BLOCK = b"ram"
"""What the emulator calls the machine's memory."""

_HEADER = struct.Struct(">II")
_MAGIC, _VERSION = 0x5145564D, 3
_SECTION = struct.Struct(">BIB3sII")
_START, _FOOTER = 0x01, 0x7E
_NUMBER = 0x7FFF
"""Of the section; the emulator counts its own from 0."""
_RAM_VERSION = 4
_PAGE, _END, _SAME_BLOCK = 0x08, 0x10, 0x20
_ADDRESS = struct.Struct(">Q")


def with_pages(state: bytes, pages: Iterable[tuple[int, memoryview]]) -> Iterator[bytes]:
    """`state` with `pages` in it, as pieces: each page is its place in the memory and its content.

    Raises `ValueError` when `state` is not what the emulator saves.
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
"""Pages that each child gets as its own copy, so that all go on sharing what the machine began with. When a machine
has written more than this, its whole memory is kept anew and shared by the children of that moment."""

_STATE_SET = 1_000
"""Number of the emulator's descriptor set for the state; above every layer's."""


async def last_moment(awake: Awake, memory: OpenFile) -> Moment:
    """Of a machine whose memory is in `memory` and which is not to go on."""
    async with awake.link.held():
        await awake.machine.monitor.ask("stop")
        state = await _save_devices(awake.machine.monitor)
    return Moment(memory, state, awake.disk)


class Fork:
    """A moment of a machine that goes on, and how long it stood still."""

    def __init__(self, moment: Moment, disk: Disk, pause_seconds: float) -> None:
        self.moment = moment
        self.disk = disk
        """The machine's own disk from now on."""
        self.pause_seconds = pause_seconds


async def fork_moment(awake: Awake, disk: Disk, base: OpenFile, top: OpenFile) -> Fork:
    """Of a machine that began with the memory `base`; its disk goes on in `top`."""
    written = OpenFile(ram.new_ram(os.fstat(base.descriptor).st_size))
    try:
        with mmap.mmap(written.descriptor, 0) as target:
            # Once while it still runs: what is wrong by then is copied again, into pages that are there already.
            await anyio.to_thread.run_sync(_copy_written, awake, base, target)
            async with awake.link.held(), _stopped(awake) as began:
                state = await _save_devices(awake.machine.monitor)
                runs = await anyio.to_thread.run_sync(_copy_written, awake, base, target)
                # Last, because it is the only thing that changes the machine: until here it can go on as it was.
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
    """The state with the pages in it that the machine has written."""
    with memoryview(target) as view:
        pages = ((at, view[at : at + ram.PAGE]) for begin, end in runs for at in range(begin, end, ram.PAGE))
        whole = os.pread(state.descriptor, os.fstat(state.descriptor).st_size, 0)
        made = OpenFile(os.memfd_create("state", os.MFD_CLOEXEC))
        with os.fdopen(os.dup(made.descriptor), "wb") as file:
            file.writelines(with_pages(whole, pages))
    return made


@asynccontextmanager
async def _stopped(awake: Awake) -> AsyncGenerator[float]:
    """The machine stands still inside the block; yields since when."""
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
    # Named after who needed it first; it saves every device and leaves the memory out.
    file = f"/dev/fdset/{_STATE_SET}"
    await monitor.ask("xen-save-devices-state", {"filename": file, "live": False})
    await monitor.ask("remove-fd", {"fdset-id": _STATE_SET})
    return state


async def grow(awake: Awake, number: int, top: OpenFile) -> None:
    """Put `top`, which is the layer of that number, on the disk; what was on top is not written any more."""
    monitor = awake.machine.monitor
    overlay = {"node": command_line.node(number - 1), "overlay": command_line.node(number)}
    try:
        with anyio.CancelScope(shield=True):
            await _add(monitor, top.again(os.O_RDONLY), number)
            await _add(monitor, top.again(os.O_RDWR), number)
            await monitor.ask("blockdev-add", command_line.layer_node(number, None, write=True))
            await monitor.ask("blockdev-snapshot", overlay)
    except HostError:
        # Half way to its new layer: nobody can say any more what its disk is.
        await awake.link.fail("The disk of the sandbox could not be divided for a fork.")
        raise


async def _add(monitor: Qmp, descriptor: int, number: int) -> None:
    try:
        await monitor.ask("add-fd", {"fdset-id": number}, (descriptor,))
    finally:
        os.close(descriptor)
