"""Images of templates: the filesystem as a disk, and a machine that booted it, saved in files.

Both are made once and never changed; one rename publishes each when it is complete.
"""

import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec

from cloister.core.computer import Command
from cloister.core.errors import HostError, UserError
from cloister.core.requests import Quota
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import Report, SandboxSpec
from cloister.sandbox.local.names import Claims
from cloister.sandbox.microvm import command_line, ram
from cloister.sandbox.microvm.boot import BOOT_SECONDS, MachineRequest, Moment, Silent, VmTools, booted
from cloister.sandbox.microvm.disks import DISK_STEP, Disk, OpenFile, held, new_layer, open_file
from cloister.sandbox.microvm.snapshots import last_moment
from cloister.sandbox.store.choose import files_of
from cloister.sandbox.templates.building import Built, locked

logger = logging.getLogger(__name__)

WARM_UP = (
    ("/bin/sh", "-c", ":"),
    ("/bin/bash", "-c", ":"),
    ("python3", "-c", "pass"),
    ("git", "--version"),
    ("ls", "/work"),
    ("/bin/sh", "-c", "find /usr/bin -type f -size -96k -exec cat {} + > /dev/null"),
    ("/bin/sync",),
    ("echo", "hi"),
)
"""Run once before a machine is saved, so that these files are in memory; missing programs are skipped."""

_BUILD_SECONDS = 600.0
_SETTLE_SECONDS = 3.0
"""Lets the kernel finish deferred work before it is saved, instead of in every sandbox."""

_BLOCK = 4_096
_INODE_BYTES = 256
_OVERHEAD_BYTES = 16 * 1024**2
_NOBODY = 65_534

_LOADED = 3
_UNUSED_SECONDS = 2 * 86_400.0
"""Age at which an unused image is removed when another one is made."""

_VERSION = 6
"""Increased when the format of an image changes."""


class Size(msgspec.Struct, frozen=True):
    """How large a machine is."""

    memory_bytes: int
    disk_bytes: int
    """Free space beyond the template."""


def size_for(quota: Quota) -> Size:
    """The size of a machine with this quota, in steps, because each size needs its own image."""
    return Size(command_line.memory_for(quota.memory_bytes), quota.disk_bytes // DISK_STEP * DISK_STEP)


class _Key(msgspec.Struct, frozen=True):
    """Everything that decides the content of an image."""

    template: str
    kernel: str
    guest: str
    emulator: str
    accelerator: str
    cmdline: str
    processor: str
    memory_bytes: int
    disk_bytes: int
    version: int = _VERSION

    @property
    def directory(self) -> str:
        return f"{self.template}-{self.memory_bytes >> 20}m-{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class BootSource:
    """The disk that the machine of an image boots from."""

    name: str
    """Identifies the disk; never reused."""
    disk: Callable[[], Awaitable[Disk]]
    """Opens it, without a writable layer."""
    warm_up: tuple[tuple[str, ...], ...] = WARM_UP
    settle_seconds: float = _SETTLE_SECONDS


class Images:
    """The disks and images below one directory, which several processes may share."""

    def __init__(
        self, directory: Path, claims: Claims, path: str, boot_seconds: Sequence[float] | None = None
    ) -> None:
        """`path` is `PATH`; `boot_seconds` limits the first boot and the retries, None for `BOOT_SECONDS`."""
        self.directory = directory
        self._path = path
        self._claims = claims
        self._boot_seconds = boot_seconds
        self._loaded: dict[str, Moment] = {}
        self._loading = anyio.Lock()

    def template(self, template: Built, size: Size, report: Report) -> BootSource:
        """The root filesystem of `template`, with as much free space as `size` has."""

        async def disk() -> Disk:
            made = await self.disk(template.version, template.rootfs, size.disk_bytes, report)
            return Disk(made, ())

        return BootSource(template.version, disk)

    async def moment(self, tools: VmTools, source: BootSource, size: Size, report: Report) -> Moment:
        """The saved machine of that size with the disk of `source`; made if missing.

        Raises `HostError` (`no_disk_image`, `start_failed`).
        """
        key = _key(tools, source.name, size)
        if (known := self._loaded.get(key.directory)) is not None:
            return known
        async with self._loading:
            if (known := self._loaded.get(key.directory)) is not None:
                return known
            home = self.directory / key.directory
            if not home.is_dir():
                self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                async with locked(self.directory / f".lock-{key.directory}", report):
                    if not home.is_dir():
                        await self._build(tools, source, key, report)
            made = await anyio.to_thread.run_sync(_load, home, await source.disk())
            # A loaded image takes memory, so only the last few stay.
            self._unload(list(self._loaded)[: -(_LOADED - 1)])
            self._loaded[key.directory] = made
            for file in made.files:
                file.hold()
            return made

    def unload(self) -> None:
        """Release all images; their machines go on."""
        self._unload(list(self._loaded))

    def forget(self, name: str) -> None:
        """Release the images of the source of that name."""
        self._unload([key for key in self._loaded if key.startswith(f"{name}-")])

    def _unload(self, names: Sequence[str]) -> None:
        for name in names:
            for file in self._loaded.pop(name).files:
                file.let_go()

    async def disk(self, version: str, rootfs: Path, free_bytes: int, report: Report) -> OpenFile:
        """`rootfs` as a filesystem image with `free_bytes` to write; made if missing.

        Raises `HostError` (`no_disk_image`).
        """
        target = self.directory / f"{version}-{free_bytes >> 20}m-free.ext4"
        if not target.is_file():
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            async with locked(self.directory / f".lock-{target.name}", report):
                if not target.is_file():
                    report(None, "making the disk image of the template")
                    async with files_of(rootfs, self._path) as files:
                        await make_disk(files, target, free_bytes, self._path)
        return open_file(target)

    async def _build(self, tools: VmTools, source: BootSource, key: _Key, report: Report) -> None:
        *shorter, longest = self._boot_seconds or BOOT_SECONDS[tools.accelerator]
        report(None, "booting a virtual machine")
        for seconds in shorter:
            try:
                await self._boot(tools, source, key, seconds)
                break
            except Silent as error:
                logger.warning("%s; retrying", error.message)
        else:
            await self._boot(tools, source, key, longest)
        await anyio.to_thread.run_sync(_remove_unused, self.directory)

    async def _boot(self, tools: VmTools, source: BootSource, key: _Key, seconds: float) -> None:
        below = await source.disk()
        disk = below.under(new_layer(self.directory, below.base.size))
        memory = OpenFile(ram.new_ram(key.memory_bytes))
        spec = SandboxSpec(quota=Quota(memory_bytes=key.memory_bytes), ttl_seconds=_BUILD_SECONDS)
        with held(memory, *disk.files):
            async with booted(tools, self._claims, MachineRequest(spec), disk, memory, seconds) as awake:
                for argv in source.warm_up:
                    with suppress(UserError):
                        await awake.link.run(Command(argv, cwd="/", seconds=60.0))
                await anyio.sleep(source.settle_seconds)
                moment = await last_moment(awake, memory)
            with held(moment.state):
                await anyio.to_thread.run_sync(_keep, moment, self.directory, key.directory)


async def make_disk(rootfs: Path, target: Path, free_bytes: int, path: str) -> None:
    """Make a filesystem image with the files of `rootfs` and `free_bytes` of free space, in a sparse file."""
    scratch = target.with_name(f".making-{target.name}-{secrets.token_hex(4)}")
    used = await anyio.to_thread.run_sync(_bytes_in, rootfs)
    size = (used + used // 4 + free_bytes + free_bytes // 8 + _OVERHEAD_BYTES) // 1024
    # No journal: a crash ends the sandbox anyway. The kernel initialises the inode tables lazily.
    argv = [
        *("mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-m", "0"),
        *("-O", "^has_journal,^metadata_csum"),
        *("-E", "lazy_itable_init=1,root_owner=0:0", "-d", str(rootfs), str(scratch), f"{size}k"),
    ]
    try:
        await _run(argv, path)
        shown = await _run(["dumpe2fs", "-h", str(scratch)], path)
        blocks, free = _number(shown, "Block count:"), _number(shown, "Free blocks:")
        # Free space beyond the quota is reserved for an id that no command has. Root inside could assume that id; then
        # the end of the disk stops it a little later.
        kept = min(max(0, free - free_bytes // _BLOCK), blocks // 2 - 1)  # at most half can be reserved
        await _run(["tune2fs", "-r", str(kept), "-u", str(_NOBODY), "-g", str(_NOBODY), str(scratch)], path)
        scratch.chmod(0o600)
        scratch.rename(target)
    finally:
        scratch.unlink(missing_ok=True)


async def _run(argv: list[str], path: str) -> str:
    done = await capture(argv, env={"PATH": path, "LC_ALL": "C.UTF-8"}, seconds=_BUILD_SECONDS)
    if not done.ok:
        said = one_line(decode(done.err), 300)
        raise HostError("no_disk_image", f"The disk image of a template could not be made: {said}")
    return decode(done.out)


def _number(shown: str, field: str) -> int:
    """The number after `field` in the output of `dumpe2fs`."""
    return int(next(line for line in shown.splitlines() if line.startswith(field)).split(":")[1])


def _bytes_in(rootfs: Path) -> int:
    """Size of the files below, in whole blocks and with an inode each."""
    total = 0
    for at, directories, files in os.walk(rootfs):
        for name in (*directories, *files):
            total += (os.lstat(f"{at}/{name}").st_size + _BLOCK - 1) // _BLOCK * _BLOCK + _INODE_BYTES
    return total


def _key(tools: VmTools, name: str, size: Size) -> _Key:
    return _Key(
        template=name,
        kernel=tools.kernel.version,
        guest=tools.guest.name,
        emulator=tools.version,
        accelerator=tools.accelerator,
        cmdline=command_line.cmdline(tools.accelerator, tools.counter_khz),
        processor=command_line.processor(tools.accelerator),
        memory_bytes=size.memory_bytes,
        disk_bytes=size.disk_bytes,
    )


def _keep(moment: Moment, directory: Path, name: str) -> None:
    scratch = directory / f".keeping-{name}-{secrets.token_hex(4)}"
    scratch.mkdir(mode=0o700)
    try:
        for file, source in (("ram", moment.ram), ("state", moment.state), ("layer", moment.disk.top)):
            with (scratch / file).open("wb") as target:
                os.ftruncate(target.fileno(), os.fstat(source.descriptor).st_size)
                ram.copy_sparse(source.descriptor, target.fileno())
                os.fsync(target.fileno())
        scratch.rename(directory / name)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _remove_unused(directory: Path) -> None:
    """A process that uses one has its files open, or makes it again."""
    for ram_file in directory.glob("*/ram"):
        if time.time() - ram_file.parent.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(ram_file.parent, ignore_errors=True)


def _load(home: Path, below: Disk) -> Moment:
    os.utime(home)
    kept = open_file(home / "ram")
    with held(kept):
        memory = OpenFile(ram.new_ram(kept.size))
        ram.copy_sparse(kept.descriptor, memory.descriptor)
    ram.seal(memory.descriptor)
    return Moment(memory, open_file(home / "state"), below.under(open_file(home / "layer")))
