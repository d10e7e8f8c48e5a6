"""The plain stores: an overlay whose upper directory is copied on fork. They work on every filesystem.

With reflinks the cost of a copy grows with the number of files, without them with their size.
"""

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.text import one_line
from cloister.sandbox._spawn import copy_tree, remove_tree
from cloister.sandbox.store import api
from cloister.sandbox.store.api import Layers, Root, Shortage, Tree
from cloister.sandbox.templates.root import scrub


class OverlayStore:
    """`create` makes two empty directories; `fork` and `save` copy the upper one; all share the template."""

    def __init__(self, data_dir: Path, path: str, *, reflink: bool = False, floor: int | None = None) -> None:
        self._data_dir = data_dir
        self._reflink = reflink
        self._floor = floor
        self._path = path

    @property
    def kind(self) -> str:
        return f"{'reflink' if self._reflink else 'overlay'}+copy (no disk quota)"

    async def adopt(self, template: Path) -> Path:
        """The template is used where it is."""
        if api.is_kept(template):
            raise api.lost(template)
        return template

    async def keep(self, parent: Root, template: Path) -> None:
        await flatten(parent, template, self._path)

    async def create(self, template: Path | None, name: str, limit_bytes: int) -> Root:
        self._check_room()
        at = self._at(name)
        template = template and await self.adopt(template)
        layers = Layers(lower=template or at / "lower", upper=at / "upper", work=at / "work")
        empty = () if template else (layers.lower,)
        _make(at, layers.upper, layers.work, *empty)
        return layers

    async def fork(self, parent: Root, name: str, limit_bytes: int) -> Root:
        self._check_room()
        here = _layers(parent)
        at = self._at(name)
        layers = Layers(lower=here.lower, upper=at / "upper", work=at / "work")
        _make(at, layers.work)
        await self._copy(here.upper, layers.upper)
        return layers

    async def remove(self, name: str) -> None:
        await self._remove(self._at(name))

    async def snapshots(self) -> Path:
        directory = self._data_dir / "store" / "snapshots"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return directory

    async def save(self, parent: Root, at: Path) -> int:
        self._check_room()
        here = _layers(parent)
        (at / "lower").symlink_to(here.lower.resolve())
        await self._copy(here.upper, at / "upper")
        return await anyio.to_thread.run_sync(_size, at / "upper")

    async def used(self, root: Root) -> int | None:
        """None: counting would mean to walk through a tree that a guest changes meanwhile."""
        return None

    async def restore(self, at: Path, name: str, limit_bytes: int) -> Root:
        lower = at / "lower"
        if not lower.is_dir():
            raise HostError("store_failed", f"The snapshot {at.name} or its template has been removed.")
        lower = lower.resolve()
        return await self.fork(Layers(lower, at / "upper", at / "work"), name, limit_bytes)

    async def discard(self, at: Path) -> None:
        await self._remove(at)

    async def shortage(self) -> Shortage | None:
        return api.shortage(self._data_dir)

    async def settle(self) -> None:
        """Nothing: a copy reads what is in memory."""

    async def close(self) -> None:
        """Nothing is held."""

    def _at(self, name: str) -> Path:
        return self._data_dir / "sandboxes" / name / "files"

    def _check_room(self) -> None:
        floor = api.floor_of(self._data_dir) if self._floor is None else self._floor
        api.check_floor(self._data_dir, floor)

    async def _copy(self, source: Path, target: Path) -> None:
        why = await copy_tree(str(source), str(target), self._path)
        if why is None:
            return
        if os.strerror(errno.ENOSPC) in why:
            await self._remove(target)
        raise api.not_copied(why)

    async def _remove(self, at: Path) -> None:
        if not await anyio.Path(at).exists():
            return
        if why := await remove_tree(at, self._path):
            raise HostError("remove_failed", f"{at} could not be removed: {why}; remove it by hand.")


def _layers(root: Root) -> Layers:
    match root:
        case Layers():
            return root
        case _:
            raise HostError("store_failed", "Another kind of store made this sandbox.")


def _make(*directories: Path) -> None:
    try:
        for directory in directories:
            directory.mkdir(parents=True)
            # The upper directory is the guest's `/`, which every user inside must be able to enter. The data
            # directory around it keeps other users of this machine out.
            directory.chmod(0o755)
    except OSError as error:
        shutil.rmtree(directories[0], ignore_errors=True)
        if error.errno == errno.ENOSPC:
            raise api.no_disk(os.strerror(errno.ENOSPC)) from error
        raise HostError("store_failed", f"{directories[0]} cannot be made: {error.strerror}.") from error


def _size(directory: Path) -> int:
    """Bytes that the files below take on disk."""
    total, left = 0, [directory]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
    return total


# Copy a sandbox's root into one plain directory, for a template.
#
# The names and links in an upper directory are the guest's. Nothing is followed: `merge` enters a directory only after
# it was seen to be one on both sides, and nothing else writes to either meanwhile.


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
