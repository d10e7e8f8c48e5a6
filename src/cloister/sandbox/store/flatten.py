"""Copy a sandbox's root into one plain directory, for a template.

The names and links in an upper directory are the guest's. Nothing is followed: `merge` enters a directory only after
it was seen to be one on both sides, and nothing else writes to either meanwhile.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.text import one_line
from cloister.sandbox._spawn import copy_tree, remove_tree
from cloister.sandbox.store.api import Layers, Root, Tree
from cloister.sandbox.templates.root import scrub

_OVERLAY = "trusted.overlay."
_OPAQUE = f"{_OVERLAY}opaque"
_ODD_BITS = stat.S_ISUID | stat.S_ISGID


def merge(upper: str, root: str) -> None:
    """Move everything in `upper` to its place in `root`, as the kernel would merge them. Blocks; raises `OSError`."""
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


async def flatten(root: Root, at: Path, path: str) -> None:
    """Copy `root`, which the caller holds still, to the new directory `at`.

    Raises `HostError` (`keep_failed`); then `at` and `at-upper` may be half made.
    """
    match root:
        case Tree():
            await _copy(root.path, at, path)
            await anyio.to_thread.run_sync(scrub, at)
        case Layers():
            await _merged(root, at, path)


async def _merged(root: Layers, at: Path, path: str) -> None:
    upper = at.with_name(f"{at.name}-upper")
    await _copy(root.upper, upper, path)
    try:
        # Templates are never written, so unchanged files can be hard links.
        await _copy(root.lower, at, path, "--link")
    except HostError:
        await remove_tree(at, path)
        await _copy(root.lower, at, path)
    try:
        await anyio.to_thread.run_sync(merge, str(upper), str(at))
    except (OSError, RecursionError) as error:
        raise HostError("keep_failed", f"The files could not be merged: {one_line(str(error))}.") from error
    await remove_tree(upper, path)


async def _copy(source: Path, target: Path, path: str, how: str = "--reflink=auto") -> None:
    if why := await copy_tree(str(source), str(target), path, how):
        raise HostError("keep_failed", f"The files could not be copied: {why}")
