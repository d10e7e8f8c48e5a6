"""Snapshots: frozen copies of a sandbox's files that outlive it, with names, parents and sizes.

Each is a directory in the store with the files and `info.json`. One rename publishes it and one removes it, so a
directory named by an id is complete.
"""

import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import anyio
import msgspec

from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.ids import SandboxId, SnapshotId, is_id, new_snapshot_id
from cloister.core.requests import TierName
from cloister.core.system import locks
from cloister.core.text import one_line
from cloister.sandbox.api import SNAPSHOT_PREFIX, SnapshotInfo
from cloister.sandbox.store import api
from cloister.sandbox.store.loop_file import locked

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_NEW, _OLD = ".new-", ".old-"

R = TypeVar("R")
Source = TypeVar("Source", contravariant=True)


class Keeper(Protocol[Source]):
    """Keeps snapshots of one kind of source; a `Store` keeps those of roots."""

    async def snapshots(self) -> Path: ...

    async def save(self, parent: Source, at: Path) -> int: ...

    async def discard(self, at: Path) -> None: ...


class Origin(msgspec.Struct, frozen=True):
    """The template and snapshot that a sandbox started from."""

    template: str
    snapshot: SnapshotId | None = None


class Subject(msgspec.Struct, Generic[R], frozen=True):
    """The sandbox to take a snapshot of."""

    sandbox: SandboxId
    tier: TierName
    root: R
    origin: Origin
    still: Callable[[], AbstractAsyncContextManager[None]]
    """Keeps `root` from changing during the block."""


class Snapshots(Generic[R]):
    """The snapshots in one store, which several processes may share."""

    def __init__(self, store: Keeper[R]) -> None:
        self._store = store

    async def take(self, subject: Subject[R], name: str | None) -> SnapshotInfo:
        """Take a snapshot. Raises `UserError` (`bad_name`, `name_taken`) and `HostError`."""
        check_name(name)
        directory = await self._store.snapshots()
        self._check_free(directory, name)
        info = SnapshotInfo(
            id=new_snapshot_id(),
            name=name,
            parent=subject.origin.snapshot,
            sandbox=subject.sandbox,
            template=subject.origin.template,
            created_at=time.time(),
            size_bytes=0,
            tier=subject.tier,
        )
        async with self._scratch(directory / f"{_NEW}{info.id}") as scratch:
            async with subject.still():
                size = await self._store.save(subject.root, scratch)
            info = msgspec.structs.replace(info, size_bytes=size)
            async with locked(directory / ".lock"):
                self._check_free(directory, name)
                await anyio.to_thread.run_sync(_publish, scratch, info)
        await self.collect()
        return info

    async def list(self) -> tuple[SnapshotInfo, ...]:
        """All of them, the oldest first."""
        return _read_all(await self._store.snapshots())

    async def find(self, reference: str) -> tuple[SnapshotInfo, Path]:
        """The snapshot with this name or id, and its directory. Raises `UserError` (`unknown_snapshot`)."""
        directory = await self._store.snapshots()
        for info in matching(_read_all(directory), reference):
            return info, directory / info.id
        raise unknown(reference)

    async def delete(self, reference: str) -> None:
        """Remove one; sandboxes and snapshots made from it stay. Raises as `find`."""
        _, home = await self.find(reference)
        await self._delete(home)

    async def collect(
        self, seconds: float = limits.SNAPSHOT_SECONDS, total_bytes: int = limits.SNAPSHOTS_BYTES
    ) -> int:
        """Remove old and excess snapshots, and the unfinished ones of dead processes; return how many."""
        directory = await self._store.snapshots()
        removed = 0
        for info in outgrown(_read_all(directory), time.time(), seconds, total_bytes):
            await self._delete(directory / info.id)
            removed += 1
        for path in sorted(directory.iterdir()):
            if path.name.startswith((_NEW, _OLD)) and not locks.is_locked(path):
                await self._store.discard(path)
                removed += 1
        return removed

    async def _delete(self, home: Path) -> None:
        # Another process may delete it at the same time.
        with suppress(FileNotFoundError):
            await self._store.discard(_take_away(home))

    def _check_free(self, directory: Path, name: str | None) -> None:
        if name is not None and any(info.name == name for info in _read_all(directory)):
            raise UserError(
                "name_taken", f"The snapshot {name} exists already: delete it or use another name."
            )

    @asynccontextmanager
    async def _scratch(self, path: Path) -> AsyncGenerator[Path]:
        """A locked scratch directory, removed unless it was renamed."""
        descriptor = _begin(path)
        try:
            yield path
        finally:
            os.close(descriptor)
            with anyio.CancelScope(shield=True):
                if await anyio.Path(path).exists():
                    await self._store.discard(path)


@contextmanager
def _disk_errors(directory: Path) -> Generator[None]:
    """Turn `OSError` on the store's small files into `HostError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise api.explained(error, "A snapshot", directory, 0) from error


def _begin(path: Path) -> int:
    """Make a directory and lock it until the returned descriptor is closed."""
    with _disk_errors(path.parent):
        path.mkdir(mode=0o700)
        return locks.take(path, wait=True)


def _publish(scratch: Path, info: SnapshotInfo) -> None:
    with _disk_errors(scratch.parent):
        with (scratch / "info.json").open("wb") as file:
            file.write(msgspec.json.encode(info))
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(scratch.with_name(info.id))
        # On disk before the caller learns of it.
        descriptor = os.open(scratch.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _take_away(home: Path) -> Path:
    with _disk_errors(home.parent):
        return home.rename(home.with_name(f"{_OLD}{home.name}"))


def check_name(name: str | None) -> None:
    """Raises `UserError` (`bad_name`)."""
    if name is not None and (not _NAME.match(name) or is_id(name)):
        raise UserError(
            "bad_name",
            "The name of a snapshot has up to 64 letters, digits, dots, dashes and underscores, "
            "and does not look like an id.",
        )


def reference_in(template: str) -> str | None:
    """The reference in `snapshot:NAME-OR-ID`; None for the name of a template."""
    return template.removeprefix(SNAPSHOT_PREFIX) if template.startswith(SNAPSHOT_PREFIX) else None


def matching(infos: Iterable[SnapshotInfo], reference: str) -> tuple[SnapshotInfo, ...]:
    """The snapshots with this name or id."""
    return tuple(info for info in infos if reference in (info.id, info.name))


def unknown(reference: str) -> UserError:
    return UserError(
        "unknown_snapshot",
        f"There is no snapshot {one_line(reference, 80)!r}: `cloister snapshot ls` lists them.",
    )


def outgrown(
    infos: Iterable[SnapshotInfo], now: float, seconds: float, total_bytes: int
) -> tuple[SnapshotInfo, ...]:
    """The snapshots to remove: old ones without a name, then, down to the total, unnamed before named. Pure."""
    gone: list[SnapshotInfo] = []
    kept: list[SnapshotInfo] = []
    for info in infos:
        (gone if info.name is None and now - info.created_at > seconds else kept).append(info)
    total = sum(info.size_bytes for info in kept)
    for info in sorted(kept, key=lambda info: (info.name is not None, info.created_at)):
        if total <= total_bytes:
            break
        gone.append(info)
        total -= info.size_bytes
    return tuple(gone)


def _read_all(directory: Path) -> tuple[SnapshotInfo, ...]:
    found: list[SnapshotInfo] = []
    for path in directory.iterdir():
        if is_id(path.name):
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode((path / "info.json").read_bytes(), type=SnapshotInfo))
    return tuple(sorted(found, key=lambda info: (info.created_at, info.id)))
