"""Start machines: boot one from nothing, or resume one from a saved moment, and greet its guest."""

import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
from anyio.abc import SocketAttribute

from cloister.core.errors import HostError
from cloister.core.requests import Quota
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import Door, Report, SandboxSpec
from cloister.sandbox.local.cgroup import Cgroup
from cloister.sandbox.local.lifetime import Greeting, linked
from cloister.sandbox.local.names import Claims, Name
from cloister.sandbox.local.spec import HOSTNAME, environment, setup_frame
from cloister.sandbox.microvm import command_line, ram
from cloister.sandbox.microvm.disks import Disk, OpenFile
from cloister.sandbox.microvm.machine import Machine, started
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.link import Link
from cloister.sandbox.snapshots import Origin
from cloister.sandbox.templates.building import locked

# The kernel of the machines: Debian's cloud kernel, unpacked from its package but not installed, and its initramfs.


PACKAGE = "linux-image-cloud-amd64"
MODULES = {
    "virtio": "virtio/virtio.ko",
    "virtio_ring": "virtio/virtio_ring.ko",
    "virtio_mmio": "virtio/virtio_mmio.ko",
    "virtio_console": "char/virtio_console.ko",
    "virtio_blk": "block/virtio_blk.ko",
}
"""Name → file below `kernel/drivers`. The guest loads them in whatever order this kernel needs."""

_FETCH_SECONDS = 600.0
_ASK_SECONDS = 60.0
_DEPENDS = re.compile(r"Depends: (linux-image-[a-z0-9.+-]+)")


class Kernel(msgspec.Struct, frozen=True):
    """A kernel that is ready to boot."""

    image: Path
    modules: dict[str, Path]

    @property
    def version(self) -> str:
        return self.image.parent.name


class Kernels:
    """The kernels below one directory, which several processes may share."""

    def __init__(self, directory: Path, path: str) -> None:
        self._directory = directory
        self._env = {"PATH": path, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}

    def find(self) -> Kernel | None:
        """The newest unpacked kernel."""
        if not self._directory.is_dir():
            return None
        homes = [home for home in self._directory.iterdir() if home.is_dir() and home.name[0] != "."]
        return _kernel_in(max(homes, key=lambda home: home.stat().st_mtime)) if homes else None

    async def prepare(self, report: Report) -> Kernel:
        """Fetch and unpack a kernel if there is none. Raises `HostError` (`no_kernel`)."""
        if found := self.find():
            return found
        self._directory.mkdir(parents=True, exist_ok=True)
        async with locked(self._directory / ".lock", report):
            return self.find() or await self._fetch(report)

    async def _fetch(self, report: Report) -> Kernel:
        report(None, "fetching a kernel for virtual machines")
        scratch = self._directory / f".fetching-{secrets.token_hex(4)}"
        scratch.mkdir(mode=0o755)
        try:
            package = await self._package()
            await self._run(["apt-get", "download", package], scratch, _FETCH_SECONDS)
            (archive,) = scratch.glob("*.deb")
            await self._run(["dpkg-deb", "-x", str(archive), "unpacked"], scratch, _FETCH_SECONDS)
            kept = await anyio.to_thread.run_sync(_keep, scratch, package.removeprefix("linux-image-"))
            home = self._directory / kept.name
            kept.rename(home)
            return _kernel_in(home)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    async def _package(self) -> str:
        shown = await self._run(["apt-cache", "depends", PACKAGE], self._directory, _ASK_SECONDS)
        if found := _DEPENDS.search(shown):
            return found[1]
        raise HostError("no_kernel", f"apt knows no package {PACKAGE}: run `apt-get update` and try again.")

    async def _run(self, argv: list[str], cwd: Path, seconds: float) -> str:
        done = await capture(argv, env=self._env, cwd=cwd, seconds=seconds)
        if not done.ok:
            said = one_line(decode(done.err), 300)
            raise HostError("no_kernel", f"A kernel for virtual machines could not be fetched: {said}")
        return decode(done.out)


def _keep(scratch: Path, version: str) -> Path:
    """Keep only the files for booting, in a directory named by version and content."""
    unpacked = scratch / "unpacked"
    files = {"vmlinuz": unpacked / "boot" / f"vmlinuz-{version}"}
    drivers = unpacked / "lib" / "modules" / version / "kernel" / "drivers"
    files |= {f"{name}.ko": drivers / below for name, below in MODULES.items()}
    if missing := [path.name for path in files.values() if not path.is_file()]:
        raise HostError("no_kernel", f"The kernel package {version} lacks {', '.join(missing)}.")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files.values())).hexdigest()[:8]
    kept = scratch / f"{version}-{digest}"
    kept.mkdir(mode=0o755)
    for name, path in files.items():
        shutil.copyfile(path, kept / name)
        with (kept / name).open("rb") as file:
            os.fsync(file.fileno())
    return kept


def _kernel_in(home: Path) -> Kernel:
    return Kernel(home / "vmlinuz", {name: home / f"{name}.ko" for name in MODULES})


_ALIGNED = 4
_CONSOLE = (5, 1)


def initramfs(guest: bytes, modules: Mapping[str, bytes]) -> bytes:
    """A cpio archive with `guest` as `/init` and each of `modules` as `/modules/NAME.ko`."""
    parts = [
        _entry("dev", stat.S_IFDIR | 0o755),
        _entry("dev/console", stat.S_IFCHR | 0o600, device=_CONSOLE),
        _entry("modules", stat.S_IFDIR | 0o755),
        *(_entry(f"modules/{name}.ko", stat.S_IFREG | 0o444, data) for name, data in modules.items()),
        _entry("init", stat.S_IFREG | 0o755, guest),
        _entry("TRAILER!!!", 0),
    ]
    return b"".join(parts)


def _entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """One member in the `newc` format: a header of hexadecimal fields, the name and the content, each aligned."""
    encoded = name.encode("ascii") + b"\0"
    inode, owner, group, links, modified, checksum = 0, 0, 0, 1, 0, 0
    fields = (inode, mode, owner, group, links, modified, len(data), 0, 0, *device, len(encoded), checksum)
    header = b"070701" + b"".join(f"{field:08x}".encode("ascii") for field in fields)
    return _padded(header + encoded) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNED)


BOOT_SECONDS: dict[command_line.Accelerator, tuple[float, ...]] = {"kvm": (20.0,), "tcg": (60.0, 180.0)}
"""How long the first boot and the retries may take.

With hardware a boot takes a second or never ends. On a busy host an emulated kernel sometimes hangs without any
output, and boots the next time.
"""

_UNKNOWN = Origin("")
_SEED_BYTES = 64
_OPEN_FILES_MAX = 1_048_576


@dataclass(frozen=True, slots=True)
class VmTools:
    """The programs and facts that machines are made with."""

    emulator: Path
    version: str
    jail: Path
    guest: Path
    kernel: Kernel
    accelerator: command_line.Accelerator
    path: str
    place: str
    """Where a jail is mounted, in its own mount namespace."""
    counter_khz: int
    """Frequency of this machine's time stamp counter."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A saved machine, from which any number of machines can resume."""

    ram: OpenFile
    """Sealed."""
    state: OpenFile
    disk: Disk

    @property
    def files(self) -> tuple[OpenFile, ...]:
        return self.ram, self.state, *self.disk.files


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """Everything that decides what one machine becomes."""

    spec: SandboxSpec
    door: Door | None = None
    origin: Origin = _UNKNOWN


@dataclass(frozen=True, slots=True)
class Awake:
    """A machine whose guest answers."""

    name: Name
    machine: Machine
    link: Link
    disk: Disk


class Silent(HostError):
    """A machine printed nothing in the time it had to boot."""


@asynccontextmanager
async def booted(
    tools: VmTools,
    claims: Claims,
    request: MachineRequest,
    disk: Disk,
    memory: OpenFile,
    seconds: float | None = None,
) -> AsyncGenerator[Awake]:
    """Boot a machine within `seconds`, with its memory in `memory`.

    Raises `HostError` (`start_failed`), and `Silent` when a retry may succeed.
    """
    size = os.fstat(memory.descriptor).st_size
    async with claims.named(_outer(request.spec.quota, size)) as (name, group):
        archive = _initramfs_file(tools)

        def argv(link: int, monitor: int) -> tuple[Sequence[str], Sequence[int]]:
            kernel = os.open(tools.kernel.image, os.O_RDONLY | os.O_CLOEXEC)
            start = command_line.Boot(
                kernel, archive, command_line.cmdline(tools.accelerator, tools.counter_khz)
            )
            shared = os.dup(memory.descriptor)
            return _argv(tools, name, group, _plan(tools, size, (shared, True), (link, monitor), disk, start))

        async with started(argv, tools.path, group, request.spec.ttl_seconds) as machine:
            await _first_word(machine, seconds or BOOT_SECONDS[tools.accelerator][-1])
            async with _linked(machine, name, request, setup_frame(request.spec, "template")) as link:
                yield Awake(name, machine, link, disk)


@asynccontextmanager
async def woken(
    tools: VmTools, claims: Claims, request: MachineRequest, moment: Moment, top: OpenFile
) -> AsyncGenerator[Awake]:
    """Resume a machine from `moment`, with `top` on its disk. Raises `HostError` (`start_failed`)."""
    size = os.fstat(moment.ram.descriptor).st_size
    disk = moment.disk.under(top)
    async with claims.named(_outer(request.spec.quota, size)) as (name, group):

        def argv(link: int, monitor: int) -> tuple[Sequence[str], Sequence[int]]:
            state, private = moment.state.again(os.O_RDONLY), os.dup(moment.ram.descriptor)
            return _argv(
                tools, name, group, _plan(tools, size, (private, False), (link, monitor), disk, state)
            )

        async with started(argv, tools.path, group, request.spec.ttl_seconds) as machine:
            hostname = f"{HOSTNAME}-{secrets.token_hex(4)}"
            greeting = (_wake(request.spec.quota), setup_frame(request.spec, hostname))
            async with _linked(machine, name, request, greeting) as link:
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


def _outer(quota: Quota, memory: int) -> Quota:
    """The limits of the emulator on this host; the guest enforces those of commands."""
    return Quota(quota.cpus, memory + command_line.OVERHEAD_BYTES, command_line.TASKS)


def _initramfs_file(tools: VmTools) -> int:
    archive = initramfs(
        tools.guest.read_bytes(), {name: path.read_bytes() for name, path in tools.kernel.modules.items()}
    )
    descriptor = ram.new_ram(name="initramfs")
    os.pwrite(descriptor, archive, 0)
    ram.seal(descriptor)
    return descriptor


def _plan(
    tools: VmTools,
    memory_bytes: int,
    memory: tuple[int, bool],
    lines: tuple[int, int],
    disk: Disk,
    start: command_line.Boot | int,
) -> command_line.MachinePlan:
    below = (disk.base, *disk.layers[:-1])
    return command_line.MachinePlan(
        accelerator=tools.accelerator,
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
    tools: VmTools, name: Name, group: Cgroup, made: command_line.MachinePlan
) -> tuple[Sequence[str], Sequence[int]]:
    jail = [
        *(str(tools.jail), "-p", str(os.getpid()), "-u", str(name.first_id), "-m", tools.place),
        *(word for path in group.procs_files() for word in ("-g", str(path))),
        *(("-k",) if tools.accelerator == "kvm" else ()),
        "--",
    ]
    boot = made.start
    start = (boot.kernel, boot.initramfs) if isinstance(boot, command_line.Boot) else (boot,)
    files = [number for layer in made.disk for number in (layer.read, layer.write) if number is not None]
    argv = [*jail, *command_line.emulator_argv(tools.emulator, made)]
    return argv, [made.ram, made.link, made.monitor, *files, *start]


async def _first_word(machine: Machine, seconds: float) -> None:
    """Wait for the first output of the guest, or the end of the machine. A boot takes longer than a greeting may."""
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
            "start_failed", f"A virtual machine did not boot: {said or 'it ended without any output'}"
        )
    if patience.cancelled_caught:
        raise Silent("start_failed", f"A virtual machine did not boot: no output for {seconds:g} seconds")


def _linked(
    machine: Machine,
    name: Name,
    request: MachineRequest,
    first: frames.Setup | tuple[frames.Wake, frames.Setup],
) -> AbstractAsyncContextManager[Link]:
    greeting = Greeting(name.sandbox, first, environment(request.spec), request.door)
    return linked(machine, machine.link, machine.link, greeting)
