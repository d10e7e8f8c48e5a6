"""Machines from nothing and from memory: the emulator is started, jailed, and the guest in it is greeted."""

import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute

from cloister.core.errors import HostError, SandboxLost
from cloister.core.requests import Quota
from cloister.sandbox.api import Door, SandboxSpec
from cloister.sandbox.container import oci
from cloister.sandbox.container.cgroup import Cgroup
from cloister.sandbox.container.names import Claims
from cloister.sandbox.container.runtimes import Way
from cloister.sandbox.microvm import command_line
from cloister.sandbox.microvm.disks import Disk, OpenFile
from cloister.sandbox.microvm.kernel import Kernel, initramfs
from cloister.sandbox.microvm.machine import Machine, started
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.link import Link, link_over
from cloister.sandbox.snapshots import Origin

BOOT_SECONDS: dict[command_line.Accelerator, tuple[float, ...]] = {"kvm": (20.0,), "tcg": (60.0, 180.0)}
"""How long a boot may take, the first time and when it is tried again.

With hardware it is over in a second or never. An emulated kernel now and then never says a word on a busy host, and
boots the next time.
"""

_NOWHERE = Origin("")
"""Of a machine that nobody will keep."""

_SEED_BYTES = 64
_OPEN_FILES_MAX = 1_048_576
_PARTING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Means:
    """What machines are made with."""

    emulator: Path
    version: str
    jail: Path
    guest: Path
    kernel: Kernel
    accelerator: command_line.Accelerator
    path: str
    place: str
    """Where a jail is mounted, in a namespace of its own."""
    counter_khz: int
    """How fast this machine's time stamp counter runs."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A machine at one moment: what any number of machines can go on from."""

    ram: OpenFile
    """Sealed."""
    state: OpenFile
    disk: Disk

    @property
    def files(self) -> tuple[OpenFile, ...]:
        return self.ram, self.state, *self.disk.files


@dataclass(frozen=True, slots=True)
class Wish:
    """What one machine shall be."""

    spec: SandboxSpec
    door: Door | None = None
    origin: Origin = _NOWHERE


@dataclass(frozen=True, slots=True)
class Awake:
    """A machine whose guest answers."""

    name: oci.Name
    machine: Machine
    link: Link
    disk: Disk


class Silent(HostError):
    """A machine that did not say a word in all the time it had to boot."""


@asynccontextmanager
async def booted(
    means: Means, claims: Claims, wish: Wish, disk: Disk, memory: OpenFile, seconds: float | None = None
) -> AsyncGenerator[Awake]:
    """A machine that has just booted, within `seconds`, with its memory in `memory`.

    Raises `HostError` (`start_failed`), and `Silent` where another try may go better.
    """
    size = os.fstat(memory.descriptor).st_size
    async with claims.named(_outer(wish.spec.quota, size)) as (name, group):
        archive = _initramfs_file(means)

        def argv(link: int, monitor: int) -> tuple[Sequence[str], Sequence[int]]:
            kernel = os.open(means.kernel.image, os.O_RDONLY | os.O_CLOEXEC)
            start = command_line.Boot(
                kernel, archive, command_line.cmdline(means.accelerator, means.counter_khz)
            )
            shared = os.dup(memory.descriptor)
            return _argv(means, name, group, _plan(means, size, (shared, True), (link, monitor), disk, start))

        async with started(argv, means.path, group, wish.spec.ttl_seconds) as machine:
            await _first_word(machine, seconds or BOOT_SECONDS[means.accelerator][-1])
            async with _linked(machine, name, wish, _setup(wish, "template")) as link:
                yield Awake(name, machine, link, disk)


@asynccontextmanager
async def woken(
    means: Means, claims: Claims, wish: Wish, moment: Moment, top: OpenFile
) -> AsyncGenerator[Awake]:
    """A machine that goes on from `moment`, with `top` on its disk. Raises `HostError` (`start_failed`)."""
    size = os.fstat(moment.ram.descriptor).st_size
    disk = moment.disk.under(top)
    async with claims.named(_outer(wish.spec.quota, size)) as (name, group):

        def argv(link: int, monitor: int) -> tuple[Sequence[str], Sequence[int]]:
            state, private = moment.state.again(os.O_RDONLY), os.dup(moment.ram.descriptor)
            return _argv(
                means, name, group, _plan(means, size, (private, False), (link, monitor), disk, state)
            )

        async with started(argv, means.path, group, wish.spec.ttl_seconds) as machine:
            hostname = f"{oci.HOSTNAME}-{secrets.token_hex(4)}"
            greeting = (_wake(wish.spec.quota), _setup(wish, hostname))
            async with _linked(machine, name, wish, greeting) as link:
                machine.ends_with(link.lost)
                yield Awake(name, machine, link, disk)


def _wake(quota: Quota) -> frames.Wake:
    return frames.Wake(
        clock_ns=time.time_ns(),
        processes=quota.processes,
        open_files=min(quota.open_files, _OPEN_FILES_MAX),
        machine_id=secrets.token_hex(16),
        seed=secrets.token_bytes(_SEED_BYTES),
    )


def _setup(wish: Wish, hostname: str) -> frames.Setup:
    return frames.Setup(max(1, round(wish.spec.ttl_seconds)), oci.PROXY_PORT, hostname)


def _outer(quota: Quota, memory: int) -> Quota:
    """What the emulator may use of this machine; what commands may use is held inside."""
    return Quota(quota.cpus, memory + command_line.OVERHEAD_BYTES, command_line.TASKS)


def _initramfs_file(means: Means) -> int:
    archive = initramfs(
        means.guest.read_bytes(), {name: path.read_bytes() for name, path in means.kernel.modules.items()}
    )
    descriptor = os.memfd_create("initramfs", os.MFD_CLOEXEC)
    os.pwrite(descriptor, archive, 0)
    return descriptor


def _plan(
    means: Means,
    memory_bytes: int,
    memory: tuple[int, bool],
    lines: tuple[int, int],
    disk: Disk,
    start: command_line.Boot | int,
) -> command_line.MachinePlan:
    below = (disk.base, *disk.layers[:-1])
    return command_line.MachinePlan(
        accelerator=means.accelerator,
        memory_bytes=memory_bytes,
        ram=memory[0],
        ram_shared=memory[1],
        link=lines[0],
        monitor=lines[1],
        disk=(
            *(command_line.LayerFiles(file.again(os.O_RDONLY)) for file in below),
            command_line.LayerFiles(disk.top.again(os.O_RDONLY), disk.top.again(os.O_RDWR)),
        ),
        start=start,
    )


def _argv(
    means: Means, name: oci.Name, group: Cgroup, made: command_line.MachinePlan
) -> tuple[Sequence[str], Sequence[int]]:
    jail = [
        *(str(means.jail), "-p", str(os.getpid()), "-u", str(name.first_id), "-m", means.place),
        *(word for path in group.procs_files() for word in ("-g", str(path))),
        *(("-k",) if means.accelerator == "kvm" else ()),
        "--",
    ]
    start = (
        (made.start.kernel, made.start.initramfs)
        if isinstance(made.start, command_line.Boot)
        else (made.start,)
    )
    files = [number for layer in made.disk for number in (layer.read, layer.write) if number is not None]
    return [*jail, *command_line.emulator_argv(means.emulator, made)], [
        made.ram,
        made.link,
        made.monitor,
        *files,
        *start,
    ]


async def _first_word(machine: Machine, seconds: float) -> None:
    """Wait until the guest says something, or the machine ends. A boot takes longer than a greeting may."""
    with anyio.move_on_after(seconds) as patience:
        async with anyio.create_task_group() as either:

            async def until_ended() -> None:
                await machine.ended.wait()
                either.cancel_scope.cancel()

            either.start_soon(until_ended)
            await anyio.wait_readable(machine.link.extra(SocketAttribute.raw_socket))  # noqa: S610 - no SQL here
            either.cancel_scope.cancel()
    said = machine.last_words
    if machine.ended.is_set() or (patience.cancelled_caught and said):
        raise HostError(
            "start_failed", f"A virtual machine did not boot: {said or 'it ended without a word'}"
        )
    if patience.cancelled_caught:
        raise Silent(
            "start_failed", f"A virtual machine did not boot: it said nothing for {seconds:g} seconds"
        )


@asynccontextmanager
async def _linked(
    machine: Machine,
    name: oci.Name,
    wish: Wish,
    greeting: frames.Setup | tuple[frames.Wake, frames.Setup],
) -> AsyncGenerator[Link]:
    door = None if wish.door is None else partial(wish.door, name.sandbox)
    opened = False
    try:
        async with link_over(
            machine.link, machine.link, greeting, env=oci.environment(wish.spec, Way()), door=door
        ) as link:
            opened = True
            yield link
    except SandboxLost as error:
        if opened:
            raise
        # The guest never spoke: the reason is what the emulator or the console said about it.
        with anyio.move_on_after(_PARTING_SECONDS):
            await machine.ended.wait()
        raise HostError(
            "start_failed", f"A virtual machine could not be started: {machine.last_words or error}"
        ) from error
