"""The first file system of a machine: the guest, the modules of its devices, nothing else. Pure."""

import stat
from collections.abc import Mapping

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
