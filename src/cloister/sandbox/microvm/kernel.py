"""The kernel of the machines: Debian's cloud kernel, unpacked from its package but not installed, and its initramfs."""

import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import Report
from cloister.sandbox.templates.building import locked

PACKAGE = "linux-image-cloud-amd64"
MODULES = {
    "virtio": "virtio/virtio.ko",
    "virtio_ring": "virtio/virtio_ring.ko",
    "virtio_mmio": "virtio/virtio_mmio.ko",
    "virtio_console": "char/virtio_console.ko",
    "virtio_blk": "block/virtio_blk.ko",
}
"""Name → file below `kernel/drivers`, in the order in which the guest loads them."""

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
