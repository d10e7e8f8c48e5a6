"""The repositories and attachments of runs, on every machine of a cluster that needs them.

A run's files are written on the machine that drives it. `share` stores what is new in them, by content, and then a
record of all of them; another machine's `open` fetches what the record names. The record has the epoch of the claim
that wrote it: a machine whose run was claimed by another one can no longer share.
"""

import logging
import re
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec

from cloister.core.errors import Fenced, HostError
from cloister.core.ids import RunId
from cloister.core.requests import is_digest
from cloister.core.system import in_thread
from cloister.log.jetstream.objects import FRESH_SECONDS, Objects, digest_of

_SHARED = re.compile(
    r"repo\.git/objects/pack/pack-[0-9a-f]{40}\.(pack|idx|rev|keep)"
    r"|repo\.git/objects/[0-9a-f]{2}/[0-9a-f]{38}"
    r"|repo\.git/(HEAD|packed-refs|shallow)"
    r"|repo\.git/refs/(?!.*(\.\.|\.lock$))[\w./-]{1,200}"
    r"|attachments/[0-9a-f]{64}"
)
"""What travels. No configuration and no hook: git on another machine would obey them."""

_REFS = re.compile(r"repo\.git/(refs/|packed-refs|shallow)")
"""Files that go where the record does not name them; objects may stay."""

_MARK = "shared.json"

logger = logging.getLogger(__name__)


class Removed(Protocol):
    """Who removed a run's files."""

    @property
    def who(self) -> str: ...


class Local(Protocol):
    """The repositories on this machine: `RunRepositories`, as far as it is needed here."""

    async def open(self, run: RunId) -> Path: ...
    async def exists(self, run: RunId) -> bool: ...
    def working(self, run: RunId, *, alone: bool = False) -> AbstractAsyncContextManager[None]: ...
    async def collect(
        self, run: RunId, ended_at: float, kept: Callable[[], Awaitable[frozenset[str] | None]]
    ) -> bool: ...
    def collectable(self, run: RunId, ended_at: float) -> bool: ...
    async def remove(self, run: RunId, who: str) -> Any: ...


class Mark(msgspec.Struct, frozen=True):
    """The record that the files on this machine follow."""

    epoch: int = 0
    number: int = 0
    written: bool = False
    """True if this machine wrote it."""


class Listing(msgspec.Struct, frozen=True):
    """The content of a record."""

    epoch: int
    files: dict[str, str] = {}
    """Path below the run's directory → SHA-256."""
    removed: str | None = None
    """Who removed the run's files."""


class SharedRepositories:
    """`RunRepositories` whose files follow the runs. `prepare` makes an empty repository."""

    def __init__(
        self, local: Local, runs: Path, objects: Objects, prepare: Callable[[Path], Awaitable[None]]
    ) -> None:
        self._local = local
        self._runs = runs
        self._objects = objects
        self._prepare = prepare
        self._locks: dict[RunId, anyio.Lock] = {}
        self._known: dict[RunId, dict[str, tuple[tuple[int, int], str]]] = {}
        """Path → size and time of change, and the digest at that time."""

    async def open(self, run: RunId) -> Path:
        """As `RunRepositories.open`; what another machine shared is here when this returns."""
        async with self._alone(run):
            await self._follow(run)
        return await self._local.open(run)

    async def exists(self, run: RunId) -> bool:
        if await self._local.exists(run):
            return True
        found = await self._objects.record(run)
        return found is not None and _listing(found.data).removed is None

    def working(self, run: RunId, *, alone: bool = False) -> AbstractAsyncContextManager[None]:
        return self._local.working(run, alone=alone)

    async def collect(
        self, run: RunId, ended_at: float, kept: Callable[[], Awaitable[frozenset[str] | None]]
    ) -> bool:
        collected = await self._local.collect(run, ended_at, kept)
        mark = await in_thread(_marked, self._runs / run)
        if collected and mark.written:
            await self.share(run, mark.epoch)
        return collected

    def collectable(self, run: RunId, ended_at: float) -> bool:
        return self._local.collectable(run, ended_at)

    async def remove(self, run: RunId, who: str) -> Any:
        """Delete the files here, and on each other machine when it next asks for them."""
        async with self._alone(run):
            while True:
                found = await self._objects.record(run)
                listing = _listing(found.data) if found else Listing(0)
                gone = msgspec.json.encode(Listing(listing.epoch, removed=listing.removed or who))
                if await self._objects.replace(run, gone, found.number if found else 0) is not None:
                    break
            return await self._local.remove(run, who)

    async def share(self, run: RunId, epoch: int) -> None:
        """Make the run's files visible to other machines, before an event speaks of them.

        Raises `Fenced` if a claim with a greater epoch has shared already.
        """
        async with self._alone(run):
            at = self._runs / run
            files = await in_thread(self._scan, run)
            mark = await in_thread(_marked, at)
            while True:
                found = await self._objects.record(run)
                listing = _listing(found.data) if found else Listing(0)
                if listing.epoch > epoch or listing.removed is not None:
                    raise Fenced(f"Run {run} was claimed by another owner, or its files were removed.")
                if mark.written and mark.epoch == epoch == listing.epoch and listing.files == files:
                    return
                for path in sorted(files.keys() - {p for p, d in listing.files.items() if files.get(p) == d}):
                    await self._objects.put(files[path], at / path)
                data = msgspec.json.encode(Listing(epoch, files))
                number = await self._objects.replace(run, data, found.number if found else 0)
                if number is not None:
                    await in_thread(_put_mark, at, Mark(epoch, number, written=True))
                    return

    async def offer(self, sha256: str, path: Path) -> None:
        """Store a file that a person sent, before the run that it was sent for."""
        await self._objects.put(sha256, path)

    async def fetch(self, run: RunId, digests: Iterable[str]) -> None:
        """Have the attachments with these digests with the run; one that the cluster has lost is left out."""
        home = self._runs / run / "attachments"
        for digest in digests:
            if is_digest(digest) and not (home / digest).exists():
                home.mkdir(parents=True, exist_ok=True, mode=0o700)
                try:
                    await self._objects.get(digest, home / digest)
                except HostError as error:
                    if error.code != "file_lost":
                        raise
                    logger.warning("run %s lacks an attachment: %s", run, error.message)

    async def sweep(self, fresh_seconds: float = FRESH_SECONDS) -> int:
        """Remove stored files that no record names and that are not fresh; return how many."""
        named: set[str] = set()
        for run in await self._objects.runs():
            if found := await self._objects.record(run):
                try:
                    listing = msgspec.json.decode(found.data, type=Listing)
                except msgspec.MsgspecError:
                    logger.warning("no file is removed: the record of %s is of another version", run)
                    return 0
                named.update(listing.files.values())
        return await self._objects.sweep(named, fresh_seconds)

    async def _follow(self, run: RunId) -> None:
        """Fetch what a later claim, on another machine, has shared."""
        at = self._runs / run
        found = await self._objects.record(run)
        if found is None:
            return
        listing, mark = _listing(found.data), await in_thread(_marked, at)
        if listing.removed is not None:
            await self._local.remove(run, listing.removed)
        elif not (mark.written and mark.epoch >= listing.epoch) and found.number != mark.number:
            await self._fetch(at, listing)
            await in_thread(_put_mark, at, Mark(listing.epoch, found.number))

    async def _fetch(self, at: Path, listing: Listing) -> None:
        files = {path: digest for path, digest in listing.files.items() if _SHARED.fullmatch(path)}
        if any(path.startswith("repo.git/") for path in files):
            await anyio.Path(at).mkdir(parents=True, exist_ok=True, mode=0o700)
            await self._prepare(at / "repo.git")
        # Objects before the refs that need them, an index after its pack.
        for path in sorted(files, key=lambda path: (_REFS.match(path) is not None, ".idx" in path, path)):
            place = at / path
            if _REFS.match(path) or path == "repo.git/HEAD" or not place.exists():
                await anyio.Path(place.parent).mkdir(parents=True, exist_ok=True, mode=0o700)
                await self._objects.get(files[path], place)
        here = await in_thread(_walk, at)
        for path in here.keys() - files.keys():
            if _REFS.match(path):
                (at / path).unlink(missing_ok=True)

    def _scan(self, run: RunId) -> dict[str, str]:
        """Path → digest of everything that travels; only files that changed are read."""
        at = self._runs / run
        before, known = self._known.get(run, {}), dict[str, tuple[tuple[int, int], str]]()
        for path, seen in _walk(at).items():
            old = before.get(path)
            try:
                known[path] = old if old is not None and old[0] == seen else (seen, digest_of(at / path))
            except FileNotFoundError:
                continue  # a ref that moved; the next call finds it
        self._known[run] = known
        return {path: digest for path, (_, digest) in known.items()}

    @asynccontextmanager
    async def _alone(self, run: RunId) -> AsyncGenerator[None]:
        async with self._locks.setdefault(run, anyio.Lock()):
            yield


def _walk(at: Path) -> dict[str, tuple[int, int]]:
    """Path → size and time of change of every file that travels."""
    found: dict[str, tuple[int, int]] = {}
    for path in at.rglob("*"):
        name = path.relative_to(at).as_posix()
        if _SHARED.fullmatch(name):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found[name] = (status.st_size, status.st_mtime_ns)
    return found


def _marked(at: Path) -> Mark:
    try:
        return msgspec.json.decode((at / _MARK).read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return Mark()


def _put_mark(at: Path, mark: Mark) -> None:
    at.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = at / f"{_MARK}.new"
    draft.write_bytes(msgspec.json.encode(mark))
    draft.replace(at / _MARK)


def _listing(data: bytes) -> Listing:
    try:
        return msgspec.json.decode(data, type=Listing)
    except msgspec.MsgspecError:
        return Listing(0)
