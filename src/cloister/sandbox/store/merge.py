"""Puts an overlay's upper directory onto a copy of its lower one, as the kernel would show the two together.

The names and links in `upper` are a guest's. Nothing is followed: a directory is entered only after it was seen to be
one, on both sides, and nobody else writes to either meanwhile.
"""

import os
import shutil
import stat
from contextlib import suppress

_OVERLAY = "trusted.overlay."
_OPAQUE = f"{_OVERLAY}opaque"
_ODD_BITS = stat.S_ISUID | stat.S_ISGID


def merge(upper: str, root: str) -> None:
    """Move everything in `upper` to its place in `root`; `upper` is used up. Blocks; raises `OSError`."""
    _like(os.lstat(upper), root)
    left = [(upper, root)]
    while left:
        above, below = left.pop()
        with os.scandir(above) as entries:
            names = [(entry.path, f"{below}/{entry.name}") for entry in entries]
        for source, target in names:
            status = os.lstat(source)
            if stat.S_ISCHR(status.st_mode):
                _remove(target)  # a whiteout: the only device a guest's files can hold
            elif stat.S_ISDIR(status.st_mode):
                _directory(source, target, status)
                left.append((source, target))
            else:
                _file(source, target, status)


def _directory(source: str, target: str, status: os.stat_result) -> None:
    if _attribute(source, _OPAQUE) == b"y" or not _is_directory(target):
        _remove(target)
        os.mkdir(target, 0o700)  # noqa: PTH102 - names need not be text
    _like(status, target)


def _file(source: str, target: str, status: os.stat_result) -> None:
    if _is_directory(target):
        _remove(target)
    if stat.S_ISREG(status.st_mode) and status.st_mode & _ODD_BITS:
        os.chmod(source, stat.S_IMODE(status.st_mode) & ~_ODD_BITS)  # noqa: PTH101
    for name in os.listxattr(source, follow_symlinks=False):
        if name.startswith(_OVERLAY):
            os.removexattr(source, name, follow_symlinks=False)
    os.replace(source, target)  # noqa: PTH105


def _like(status: os.stat_result, directory: str) -> None:
    os.chown(directory, status.st_uid, status.st_gid)
    os.chmod(directory, stat.S_IMODE(status.st_mode))  # noqa: PTH101


def _remove(path: str) -> None:
    if _is_directory(path):
        shutil.rmtree(path)
        return
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _attribute(path: str, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None
