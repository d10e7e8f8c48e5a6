"""What sandboxes of a template start from: its file system as a disk, and a machine that has booted it, kept in files.

Both are made once and never written again; each appears by one rename, so what has its name is complete.
"""

import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec

from cloister.core.commands import Command
from cloister.core.errors import HostError, UserError
from cloister.core.records import Quota
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import Report, SandboxSpec
from cloister.sandbox.claims import Claims
from cloister.sandbox.microvm import qemu, ram
from cloister.sandbox.microvm.boot import Means, Moment, Wish, booted
from cloister.sandbox.microvm.disks import DISK_BYTES, Disk, OpenFile, new_layer, open_file
from cloister.sandbox.microvm.moments import last_moment
from cloister.sandbox.template import locked

WARM_UP = (
    ("/bin/sh", "-c", ":"),
    ("/bin/bash", "-c", ":"),
    ("python3", "-c", "pass"),
    ("git", "--version"),
    ("ls", "/work"),
    ("/bin/sh", "-c", "find /usr/bin -type f -size -96k -exec cat {} + > /dev/null"),
    ("echo", "hi"),
)
"""What is run once before a machine is kept, so that its files are in memory; what the template lacks is left out."""

_BUILD_SECONDS = 600.0
_LOADED = 3
_UNUSED_SECONDS = 7 * 86_400.0
"""After so long an image that nobody loaded is removed when another one is made."""

_VERSION = 2
"""Raised when what is kept changes."""


class _Key(msgspec.Struct, frozen=True):
    """Everything that decides what is in an image."""

    template: str
    kernel: str
    guest: str
    emulator: str
    accelerator: str
    cmdline: str
    processor: str
    memory_bytes: int
    disk_bytes: int = DISK_BYTES
    version: int = _VERSION

    @property
    def directory(self) -> str:
        return f"{self.template}-{self.memory_bytes >> 20}m-{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]}"


class Images:
    """The disks and images below one directory, which several processes may share."""

    def __init__(self, directory: Path, claims: Claims) -> None:
        self.directory = directory
        self._claims = claims
        self._loaded: dict[str, Moment] = {}
        self._loading = anyio.Lock()

    async def moment(self, means: Means, rootfs: Path, memory_bytes: int, report: Report) -> Moment:
        """What a machine with the file system `rootfs` and so much memory starts from; made if it is missing.

        Raises `HostError` (`no_disk_image`, `start_failed`).
        """
        key = _key(means, rootfs, memory_bytes)
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
                        await self._build(means, rootfs, key, report)
            made = await anyio.to_thread.run_sync(_load, home, await self.disk(rootfs, means.path, report))
            # Each takes memory for as long as it is loaded, so only the last few stay.
            kept = list(self._loaded.items())[-(_LOADED - 1) :]
            self._loaded = {**dict(kept), key.directory: made}
            return made

    async def disk(self, rootfs: Path, path: str, report: Report) -> OpenFile:
        """`rootfs` as a file system in a file; made if it is missing. Raises `HostError` (`no_disk_image`)."""
        target = self.directory / f"{rootfs.parent.name}-{DISK_BYTES >> 30}g.ext4"
        if not target.is_file():
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            async with locked(self.directory / f".lock-{target.name}", report):
                if not target.is_file():
                    report(None, "making the disk of the template")
                    await make_disk(rootfs, target, path)
        return open_file(target)

    async def _build(self, means: Means, rootfs: Path, key: _Key, report: Report) -> None:
        disk = Disk(await self.disk(rootfs, means.path, report), (new_layer(self.directory),))
        report(None, "booting the template")
        memory = OpenFile(ram.new_ram(key.memory_bytes))
        spec = SandboxSpec(quota=Quota(memory_bytes=key.memory_bytes), ttl_seconds=_BUILD_SECONDS)
        async with booted(means, self._claims, Wish(spec), disk, memory) as awake:
            for argv in WARM_UP:
                with suppress(UserError):
                    await awake.link.run(Command(argv, cwd="/", seconds=60.0))
            moment = await last_moment(awake, memory)
        await anyio.to_thread.run_sync(_keep, moment, self.directory, key.directory)
        await anyio.to_thread.run_sync(_remove_unused, self.directory)


async def make_disk(rootfs: Path, target: Path, path: str) -> None:
    """A file system of `DISK_BYTES` with the files of `rootfs` in it, in a sparse file."""
    scratch = target.with_name(f".making-{target.name}-{secrets.token_hex(4)}")
    # No journal: a crash ends the sandbox anyway. The tables of free inodes are left for the kernel to imagine.
    argv = [
        *("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^metadata_csum"),
        *(
            "-E",
            "lazy_itable_init=1,root_owner=0:0",
            "-d",
            str(rootfs),
            str(scratch),
            f"{DISK_BYTES // 1024}k",
        ),
    ]
    try:
        done = await capture(argv, env={"PATH": path}, seconds=_BUILD_SECONDS)
        if not done.ok:
            raise HostError(
                "no_disk_image",
                f"The disk of a template could not be made: {one_line(decode(done.err), 300)}",
            )
        scratch.chmod(0o600)
        scratch.rename(target)
    finally:
        scratch.unlink(missing_ok=True)


def _key(means: Means, rootfs: Path, memory_bytes: int) -> _Key:
    return _Key(
        template=rootfs.parent.name,
        kernel=means.kernel.version,
        guest=means.guest.name,
        emulator=means.version,
        accelerator=means.accelerator,
        cmdline=qemu.cmdline(means.accelerator, means.counter_khz),
        processor=qemu.processor(means.accelerator),
        memory_bytes=memory_bytes,
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
    """Whoever still uses one has its files open, or will make it again."""
    for ram_file in directory.glob("*/ram"):
        if time.time() - ram_file.parent.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(ram_file.parent, ignore_errors=True)


def _load(home: Path, base: OpenFile) -> Moment:
    os.utime(home)
    kept = open_file(home / "ram")
    memory = OpenFile(ram.new_ram(os.fstat(kept.descriptor).st_size))
    ram.copy_sparse(kept.descriptor, memory.descriptor)
    ram.seal(memory.descriptor)
    return Moment(memory, open_file(home / "state"), Disk(base, (open_file(home / "layer"),)))
