"""The object cache: packs of fetched repositories that later runs of the same address start with.

A run's repository gets hard links, never alternates, so it stays whole when the cache evicts an entry. The cache holds
objects only: which commit a name stands for, and whether the caller may read the repository at all, the server answers
each time, with the caller's own credential (`plain_git.py`).
"""

import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from cloister.core.system import in_thread
from cloister.core.system.locks import lock, lock_within
from cloister.forge.host import ensure_bare, in_bare, is_oid, must

BORROWED = "refs/cloister/cached/"
"""Refs in a run's repository while it fetches: what it need not be sent."""
LEAST_BYTES = 4_194_304
"""Smaller repositories are fetched as quickly without a cache."""
_TIPS = 64
_PACKS = 16
"""Packs of an entry after which all but the largest are joined."""
_LOCK_SECONDS = 60.0
_ABOUT = "entry.json"
_FILES = (".pack", ".rev", ".idx")
"""Git finds a pack by its index, so the index comes last."""


class Entry(msgspec.Struct, frozen=True):
    """The packs of one repository; together they hold all history of the tips."""

    address: str
    tips: tuple[str, ...] = ()
    packs: dict[str, int] = {}
    """Name without suffix → size in bytes."""

    @property
    def size(self) -> int:
        return sum(self.packs.values())


class ObjectCache:
    """Packs by the exact address of their repository, without credentials. At most `limit_bytes`; 0 turns it off."""

    def __init__(self, root: Path, limit_bytes: int, *, least_bytes: int = LEAST_BYTES) -> None:
        self._root, self._limit, self._least = root, limit_bytes, least_bytes

    def entries(self) -> list[Entry]:
        """Every usable entry, the least recently used first. Blocks briefly."""
        files = [(path.stat().st_mtime_ns, path) for path in self._root.glob(f"*/{_ABOUT}")]
        return [entry for _, path in sorted(files) if (entry := _read(path.parent)) is not None]

    @asynccontextmanager
    async def lent(self, address: str, bare: Path) -> AsyncGenerator[bool]:
        """The objects of earlier fetches from `address` are in `bare`; True if there are any.

        During the block refs name them, so that a fetch asks for the rest only. They stay valid afterwards.
        """
        tips = await self._link(address, bare) if self._limit else ()
        if tips:
            made = "".join(f"update {BORROWED}{tip} {tip}\n" for tip in tips)
            if not (await in_bare(bare, "update-ref", "--stdin", stdin=made.encode())).ok:
                await self.drop(address)  # it is damaged: this fetch starts from nothing
                await in_thread(shutil.rmtree, bare / "objects/pack")
                tips = ()
        yield bool(tips)
        if tips:
            gone = "".join(f"delete {BORROWED}{tip}\n" for tip in tips)
            must(await in_bare(bare, "update-ref", "--stdin", stdin=gone.encode()), "return cached refs")

    async def _link(self, address: str, bare: Path) -> tuple[str, ...]:
        at = self._at(address)
        with suppress(TimeoutError):
            async with lock_within(_lock_of(at), _LOCK_SECONDS, shared=True):
                entry = await in_thread(_read, at)
                if entry is not None:
                    await in_thread(_link_packs, at, bare, tuple(entry.packs))
                    (at / _ABOUT).touch()
                    return entry.tips
        return ()

    async def add(self, address: str, bare: Path, commit: str) -> None:
        """Keep the packs of `bare`, which holds all history of `commit` and nothing that a guest wrote."""
        if not self._limit or not is_oid(commit) or (bare / "shallow").exists():
            return
        at = self._at(address)
        with suppress(TimeoutError):
            async with lock_within(_lock_of(at), _LOCK_SECONDS):
                before = await in_thread(_read, at)
                if before is not None and commit in before.tips:
                    return
                found = await in_thread(_packs_of, bare)
                if before is None and sum(found.values()) < self._least:
                    return
                if before is None:
                    await in_thread(_remove, at)  # what a crash left
                await ensure_bare(at)
                await in_thread(_link_packs, bare, at, tuple(found))
                for name in found:  # joining save points leaves these packs as they are
                    (bare / "objects/pack" / f"{name}.keep").touch()
                tips = (commit, *(before.tips if before else ()))[:_TIPS]
                packs = {**(before.packs if before else {}), **found}
                _write(at, await _joined(at, Entry(address, tips, packs)))
        await in_thread(self._evict)

    async def drop(self, address: str) -> None:
        """Remove the entry of `address`; runs that use its packs keep theirs."""
        at = self._at(address)
        with suppress(TimeoutError):
            async with lock_within(_lock_of(at), _LOCK_SECONDS):
                await in_thread(_remove, at)

    @property
    def content(self) -> "ContentCache":
        """The objects of LFS."""
        return ContentCache(self._root / "lfs", self._limit)

    def _evict(self) -> None:
        """Remove the least recently used entries until the rest fits. An entry in use is skipped."""
        entries = self.entries()
        size = sum(entry.size for entry in entries)
        for entry in entries:
            if size <= self._limit:
                return
            at = self._at(entry.address)
            with suppress(BlockingIOError), lock(_lock_of(at), create=True):
                _remove(at)
                size -= entry.size

    def _at(self, address: str) -> Path:
        self._root.mkdir(exist_ok=True, mode=0o700)
        return self._root / hashlib.sha256(address.encode()).hexdigest()


class ContentCache:
    """Objects of LFS by their hash; at most `limit_bytes`. Blocking: call it in a thread.

    Whether a caller may read an object, the server answers each time, as for packs.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root, self._limit = root, limit_bytes

    def take(self, oid: str, store: Path) -> bool:
        """Link an object into the store of a run. False if it is not there, or no longer what its name says."""
        place = self._root / oid
        try:
            with place.open("rb") as file:
                whole = hashlib.file_digest(file, "sha256").hexdigest() == oid
            if not whole:
                place.unlink(missing_ok=True)
                return False
            with suppress(FileExistsError):
                os.link(place, store / oid)
            os.utime(place)
        except OSError:
            return False
        return True

    def keep(self, store: Path, oids: Iterable[str]) -> None:
        """Link objects of a run's store; the least recently used ones give way."""
        if not self._limit:
            return
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for oid in oids:
            with suppress(OSError):
                os.link(store / oid, self._root / oid)
        files = sorted((path.stat().st_mtime_ns, path) for path in self._root.iterdir())
        size = sum(path.stat().st_size for _, path in files)
        for _, path in files:
            if size <= self._limit:
                return
            size -= path.stat().st_size
            path.unlink(missing_ok=True)


def _lock_of(at: Path) -> Path:
    return at.with_suffix(".lock")


def _read(at: Path) -> Entry | None:
    """The entry at `at`; None if it is missing, or if a crash or a full disk left it incomplete."""
    try:
        entry = msgspec.json.decode((at / _ABOUT).read_bytes(), type=Entry)
        sizes = {name: (at / "objects/pack" / f"{name}.pack").stat().st_size for name in entry.packs}
        whole = all((at / "objects/pack" / f"{name}.idx").exists() for name in entry.packs)
    except (OSError, msgspec.MsgspecError):
        return None
    return entry if whole and sizes == entry.packs else None


def _write(at: Path, entry: Entry) -> None:
    temporary = at / f"{_ABOUT}.new"
    temporary.write_bytes(msgspec.json.encode(entry))
    temporary.replace(at / _ABOUT)


def _remove(at: Path) -> None:
    (at / _ABOUT).unlink(missing_ok=True)  # first: a half-removed entry is none
    shutil.rmtree(at, ignore_errors=True)


def _packs_of(bare: Path) -> dict[str, int]:
    folder = bare / "objects/pack"
    return {
        path.stem: path.stat().st_size for path in folder.glob("*.pack") if path.with_suffix(".idx").exists()
    }


def _link_packs(source: Path, target: Path, names: tuple[str, ...]) -> None:
    folder = target / "objects/pack"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for suffix in _FILES:
            old, new = source / "objects/pack" / f"{name}{suffix}", folder / f"{name}{suffix}"
            with suppress(FileExistsError):
                try:
                    os.link(old, new)
                except FileNotFoundError:
                    if suffix != ".rev":  # which older versions of git do not write
                        raise
                except OSError as error:
                    if isinstance(error, FileExistsError):
                        raise
                    shutil.copy2(old, new)
        (folder / f"{name}.keep").touch()


async def _joined(at: Path, entry: Entry) -> Entry:
    """Join all packs but the largest into one if there are many; the rest would slow every reader down."""
    if len(entry.packs) <= _PACKS:
        return entry
    small = sorted(entry.packs, key=lambda name: entry.packs[name])[:-1]
    listed = "".join(f"{name}.pack\n" for name in small).encode()
    prefix = str(at / "objects/pack/pack")
    made = await in_bare(at, "pack-objects", "--stdin-packs", "--quiet", prefix, stdin=listed)
    name = f"pack-{must(made, 'join cached packs').decode().strip()}"
    for old in small:
        for suffix in (".idx", ".rev", ".pack", ".keep"):
            (at / "objects/pack" / f"{old}{suffix}").unlink(missing_ok=True)
    size = (at / "objects/pack" / f"{name}.pack").stat().st_size
    kept = {one: number for one, number in entry.packs.items() if one not in small}
    return msgspec.structs.replace(entry, packs={**kept, name: size})
