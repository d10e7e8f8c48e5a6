"""Unpack an archive that a sandbox made, on this machine. Nothing in it is trusted.

Files go only below the given directory: no name leads out of it, nothing is written through a link, whoever made it,
and links are made last, when nothing is written any more. Devices, pipes and special modes are left out.
"""

import os
import stat
import tarfile
from pathlib import Path
from typing import IO

from cloister.core.errors import HostError, OutsideError, UserError

MEMBERS = 1_000_000
BYTES = 68_719_476_736
"""What one archive may hold, in names and when unpacked."""

_NAME_BYTES = 4_096


class Unpacked:
    """What came of it."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self.left_out: list[str] = []
        """Names that were not made."""


def unpack(
    archive: IO[bytes], root: Path, *, most_members: int = MEMBERS, most_bytes: int = BYTES
) -> Unpacked:
    """Unpack a tar stream below `root`, which is made. Raises `UserError` (`archive_too_large`), `OutsideError`."""
    result = Unpacked()
    links: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for number, member in enumerate(tar):
                result.bytes += max(0, member.size)
                if number >= most_members or result.bytes > most_bytes or member.size < 0:
                    raise UserError(
                        "archive_too_large",
                        f"There is more than {most_members:,} names or {most_bytes:,} bytes in it: copy a part of it.",
                    )
                path = _place(root, member.name)
                if path is None or not _make(tar, root, path, member, links):
                    result.left_out.append(member.name)
                else:
                    result.files += 1
    except tarfile.TarError as error:
        raise OutsideError(
            "bad_archive", f"What the sandbox sent is no whole tar archive ({error})."
        ) from None
    except OSError as error:
        raise HostError("copy_failed", f"{error.filename or root}: {error.strerror or error}.") from None
    for path, member in links:
        if not _link(root, path, member):
            result.left_out.append(member.name)
    return result


def _place(root: Path, name: str) -> Path | None:
    """Where a member belongs; None when that is not below `root`, or behind a link."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or len(name) > _NAME_BYTES or name.startswith("/"):
        return None
    path = root
    for part in parts[:-1]:
        path = path / part
        if path.is_symlink():
            return None
    return root.joinpath(*parts)


def _make(
    tar: tarfile.TarFile,
    root: Path,
    path: Path,
    member: tarfile.TarInfo,
    links: list[tuple[Path, tarfile.TarInfo]],
) -> bool:
    if member.issym() or member.islnk():
        links.append((path, member))
        return True
    if member.isdir():
        return _make_directory(root, path, member)
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if path == root or (path.is_dir() and not path.is_symlink()):
        return False
    path.unlink(missing_ok=True)
    # Not "wb": what is there under this name now, nobody but us can have put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while data := source.read(1_048_576):
            file.write(data)
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
    os.utime(path, (max(0, member.mtime), max(0, member.mtime)), follow_symlinks=False)
    return True


def _make_directory(root: Path, path: Path, member: tarfile.TarInfo) -> bool:
    if path != root:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            return False
        path.mkdir(parents=True, exist_ok=True)
    return True


def _stays(depth: int, target: str) -> bool:
    """Whether a link in a directory so far below the root leads to something below the root.

    Up first, then down: a way up behind another link would start wherever that one leads.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    return up <= depth and ".." not in parts[up:] and bool(target) and not target.startswith("/")


def _link(root: Path, path: Path, member: tarfile.TarInfo) -> bool:
    """Make a link that stays below `root`."""
    parent = _place(root, path.relative_to(root).as_posix())
    if parent is None or path == root or (path.is_dir() and not path.is_symlink()):
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.islnk():
            target = _place(root, member.linkname)
            if target is None or not stat.S_ISREG(target.lstat().st_mode):
                return False
            path.unlink(missing_ok=True)
            os.link(target, path, follow_symlinks=False)
            return True
        if not _stays(len(path.relative_to(root).parts) - 1, member.linkname):
            return False
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)
    except (OSError, ValueError):
        return False
    return True
