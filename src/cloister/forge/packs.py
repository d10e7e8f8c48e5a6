"""Objects in and out of the run's own repository, as packs: never references, configuration or hooks.

Objects from a guest are unpacked into a quarantine, checked there, and only then moved over.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from anyio import to_thread

from cloister.core import limits
from cloister.core.errors import HostError, SandboxLost, UserError
from cloister.core.system.locks import lock
from cloister.core.text import decode
from cloister.forge.host import complaint, in_bare, is_oid, must, oid

log = logging.getLogger(__name__)

DEPTH = 100
"""How many commits of a too large history to keep, if they are small enough; else one."""
CUT_SHARE = 4
"""A history that is cut anyway gets this part of the room: it is copied at each start."""

_MOVE_ORDER = (".pack", ".rev", ".idx")
"""Git finds a pack by its index, so the index is moved last."""


class Pack(msgspec.Struct, frozen=True):
    """Packed objects, and the commits at which their history is cut off."""

    data: bytes
    shallow: tuple[str, ...] = ()


async def tree_of(bare: Path, commit: str) -> str:
    """The tree of `commit`."""
    found = await in_bare(bare, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")
    return oid(must(found, f"find commit {commit[:12]}"))


async def pack(
    bare: Path, commit: str, tree: str | None = None, *, limit_bytes: int = limits.HISTORY_BYTES
) -> Pack:
    """Pack `commit` with its history, and `tree`. A history over `limit_bytes` is cut off."""
    shallow = await to_thread.run_sync(_shallow_of, bare)
    if shallow:
        shallow = tuple(set(shallow) & {name for name, *_ in await _parents(bare, commit)})
    # One commit has to fit, if it fits into a file.
    for depth, room in ((None, limit_bytes), (DEPTH, limit_bytes // CUT_SHARE), (1, limits.FILE_BYTES)):
        cut = shallow if depth is None else await _cut(bare, commit, depth)
        if depth != 1 and await _exceeds(bare, commit, cut, room):
            continue
        data = await _packed(bare, (commit, tree), cut, room)
        if data is not None:
            return Pack(data, cut)
    raise UserError(
        "repository_too_large",
        f"The files of commit {commit[:7]} take more than {limits.FILE_BYTES >> 20} MiB packed, "
        "more than a sandbox can take.",
    )


async def _exceeds(bare: Path, commit: str, shallow: tuple[str, ...], room: int) -> bool:
    """True if the history surely takes more than `room`: packing it only to find that out takes seconds."""
    if await to_thread.run_sync(_stored_bytes, bare) <= room:
        return False
    async with _shallow_file(bare, shallow) as path:
        usage = ("rev-list", "--objects", "--disk-usage", "--end-of-options", commit)
        counted = await in_bare(bare, "--shallow-file", str(path), *usage)
    return counted.ok and int(counted.out) > room


def _stored_bytes(bare: Path) -> int:
    return sum(path.stat().st_size for path in (bare / "objects" / "pack").glob("*.pack"))


async def pack_tree(bare: Path, tree: str) -> bytes:
    """All objects of one tree, which `take_in` has bounded."""
    data = await _packed(bare, (tree,), (), limits.FILE_BYTES)
    if data is None:
        raise UserError("repository_too_large", f"The tree {tree[:7]} is larger than a sandbox can take.")
    return data


async def pack_since(bare: Path, have: str, commit: str) -> Pack | None:
    """The objects of `commit` that `have` lacks; None if that is unknown here or larger than the limit."""
    if await to_thread.run_sync(_shallow_of, bare):
        return None
    known = await in_bare(bare, "cat-file", "-e", f"{have}^{{commit}}")
    if not known.ok:
        return None
    data = await _packed(bare, (commit, f"^{have}"), (), limits.HISTORY_BYTES)
    return None if data is None else Pack(data)


async def _packed(
    bare: Path, wants: tuple[str | None, ...], shallow: tuple[str, ...], limit_bytes: int
) -> bytes | None:
    """The pack, or None if it is larger than `limit_bytes`."""
    lines = "".join(f"{want}\n" for want in wants if want is not None)
    async with _shallow_file(bare, shallow) as path:
        made = await in_bare(
            bare,
            "--shallow-file",
            str(path),
            *("pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet"),
            stdin=lines.encode(),
            limit_bytes=limit_bytes,
            memory_bytes=None,
        )
    return None if made.cut else must(made, "pack the repository for the sandbox")


@asynccontextmanager
async def _shallow_file(bare: Path, shallow: tuple[str, ...]) -> AsyncGenerator[Path]:
    async with _scratch(bare) as folder:
        path = folder / "shallow"
        await to_thread.run_sync(path.write_text, "".join(f"{name}\n" for name in shallow))
        yield path


@asynccontextmanager
async def _scratch(bare: Path) -> AsyncGenerator[Path]:
    """A temporary directory inside the repository, on the same filesystem."""
    with tempfile.TemporaryDirectory(prefix="cloister-", dir=bare, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _shallow_of(bare: Path) -> tuple[str, ...]:
    try:
        return tuple((bare / "shallow").read_text().split())
    except FileNotFoundError:
        return ()


async def _parents(bare: Path, commit: str, count: int = -1) -> list[list[str]]:
    """Each commit of the history, newest first, followed by its parents."""
    listed = await in_bare(
        bare,
        *("rev-list", "--parents", f"--max-count={count}", "--end-of-options", commit),
        limit_bytes=limits.FILE_BYTES,
    )
    return [line.split() for line in decode(must(listed, "list the history")).splitlines()]


async def _cut(bare: Path, commit: str, depth: int) -> tuple[str, ...]:
    """The commits whose parents are left out when `depth` commits are kept."""
    lines = await _parents(bare, commit, depth)
    kept = {name for name, *_ in lines}
    return tuple(name for name, *parents in lines if not kept.issuperset(parents))


async def take_in(bare: Path, data: bytes, tree: str, base_tree: str) -> None:
    """Take a guest's objects for `tree` into the repository, all or none.

    Raises `SandboxLost` for objects that an honest sandbox never sends: damaged, malformed, with dangling links
    or with names that would be dangerous to check out. Raises `HostError` (`no_disk`) when the disk is almost full.
    """
    if not is_oid(tree):
        raise SandboxLost("The sandbox named a tree that cannot exist.")
    await to_thread.run_sync(check_room, bare, len(data))
    async with _scratch(bare) as quarantine:
        (quarantine / "pack").mkdir()
        env = {
            "GIT_OBJECT_DIRECTORY": str(quarantine),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _in_a_list(bare / "objects"),
        }
        await _check(bare, data, (tree, base_tree), env)
        await to_thread.run_sync(_move, quarantine / "pack", bare / "objects" / "pack")


def check_room(bare: Path, size: int) -> None:
    """Raises `HostError` (`no_disk`) if the disk is almost full. Blocks briefly."""
    disk = shutil.disk_usage(bare)
    floor = min(limits.DISK_FLOOR_BYTES, int(disk.total * limits.DISK_FLOOR_SHARE))
    if disk.free - size < floor:
        left = f"{bare} has {disk.free / 2**30:.1f} GiB left, of which {floor / 2**30:.1f} GiB are reserved"
        raise HostError(
            "no_disk", f"There is no room for a save point ({left}): free some disk and try again."
        )


async def collect(bare: Path) -> None:
    """Join the packs of many save points into one, which holds each object once. No object is lost.

    Unreferenced objects stay too: another attempt may be about to name them.
    """
    folder = bare / "objects" / "pack"
    if await to_thread.run_sync(_loose_packs, folder) <= limits.SAVE_PACKS:
        return
    with suppress(BlockingIOError), lock(bare / "collect.lock", create=True):
        done = await in_bare(bare, "repack", "-a", "-d", "-k", "-q")
        if not done.ok:  # a later save tries again
            log.warning("The save points in %s could not be packed together: %s", bare, complaint(done))


def _loose_packs(folder: Path) -> int:
    """The packs that may be joined; those of the object cache stay as they are."""
    return len([path for path in folder.glob("*.pack") if not path.with_suffix(".keep").exists()])


def _in_a_list(path: Path) -> str:
    """A path quoted for git's colon-separated lists."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


async def _check(bare: Path, data: bytes, trees: tuple[str, str], env: dict[str, str]) -> None:
    tree, base_tree = trees
    size = f"--max-input-size={limits.CHANGE_BYTES}"
    indexed = await in_bare(
        bare, "index-pack", "--stdin", "--fix-thin", "--strict", size, stdin=data, env=env
    )
    if not indexed.ok:
        raise SandboxLost(f"The sandbox sent objects that git rejects: {complaint(indexed)}.")
    found = await in_bare(bare, "rev-parse", "--verify", "--quiet", f"{tree}^{{tree}}", env=env)
    if decode(found.out).strip() != tree:
        raise SandboxLost("The sandbox did not send the tree that it named.")
    whole = await in_bare(bare, "rev-list", "--objects", "--quiet", tree, f"^{base_tree}", env=env)
    if not whole.ok:
        raise SandboxLost(f"The sandbox sent a tree with parts missing: {complaint(whole)}.")


def flush_names(bare: Path, *files: str) -> None:
    """Have the disk know the names of files below a repository, whose content git has flushed. Blocks."""
    folders = {folder for name in files for folder in (bare / name).parents if folder.is_relative_to(bare)}
    for folder in sorted(folders):
        with suppress(FileNotFoundError):  # objects are in packs
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _move(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for suffix in _MOVE_ORDER:
        for path in source.glob(f"*{suffix}"):
            shutil.move(path, target / path.name)
