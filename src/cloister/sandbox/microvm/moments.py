"""Taking a moment of a running machine: it stands still, its devices, memory and disk are kept, it goes on.

The long part, what the machine began with, is copied before it stands still; what it wrote since, while it does.
"""

import mmap
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from cloister.sandbox.microvm import qemu, ram
from cloister.sandbox.microvm.boot import Awake, Moment
from cloister.sandbox.microvm.disks import Disk, OpenFile
from cloister.sandbox.microvm.qmp import Qmp

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
    copy = OpenFile(ram.new_ram(os.fstat(base.descriptor).st_size))
    with mmap.mmap(copy.descriptor, 0) as target:
        await anyio.to_thread.run_sync(ram.copy_dense, base.descriptor, target)
        async with awake.link.held(), _stopped(awake) as began:
            await _grow(awake.machine.monitor, len(disk.layers) + 1, top)
            state = await _save_devices(awake.machine.monitor)
            await anyio.to_thread.run_sync(_copy_written, awake, base, target)
        pause = time.monotonic() - began
    ram.seal(copy.descriptor)
    return Fork(Moment(copy, state, disk), disk.under(top), pause)


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


def _copy_written(awake: Awake, base: OpenFile, target: mmap.mmap) -> None:
    pid = awake.machine.pid()
    address, size = ram.find_mapping(pid, base.descriptor)
    ram.copy_private(pid, address, size, target)


async def _save_devices(monitor: Qmp) -> OpenFile:
    state = OpenFile(os.memfd_create("state", os.MFD_CLOEXEC))
    await _add(monitor, state.again(os.O_WRONLY), _STATE_SET)
    # Named after who needed it first; it saves every device and leaves the memory out.
    file = f"/dev/fdset/{_STATE_SET}"
    await monitor.ask("xen-save-devices-state", {"filename": file, "live": False})
    await monitor.ask("remove-fd", {"fdset-id": _STATE_SET})
    return state


async def _grow(monitor: Qmp, number: int, top: OpenFile) -> None:
    """Put `top`, which is the layer of that number, on the disk; what was on top is not written any more."""
    await _add(monitor, top.again(os.O_RDONLY), number)
    await _add(monitor, top.again(os.O_RDWR), number)
    await monitor.ask("blockdev-add", qemu.layer_node(number, None, write=True))
    await monitor.ask("blockdev-snapshot", {"node": qemu.node(number - 1), "overlay": qemu.node(number)})


async def _add(monitor: Qmp, descriptor: int, number: int) -> None:
    try:
        await monitor.ask("add-fd", {"fdset-id": number}, (descriptor,))
    finally:
        os.close(descriptor)
