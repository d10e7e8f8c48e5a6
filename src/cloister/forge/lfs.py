"""Git LFS: commits hold pointers; the host fetches the content where the repository's settings ask for it.

The content comes from the person's own directory or from the server of the repository's address. `.lfsconfig`, which a
stranger may have written, names no other. Every byte is checked against the hash in its pointer.
"""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

import anyio
import msgspec

from cloister.core import limits
from cloister.core.repository import FILES, read_settings
from cloister.core.system import in_thread
from cloister.core.text import decode, one_line
from cloister.forge.cache import ContentCache
from cloister.forge.host import Checkout, Who, in_bare, in_checkout, must
from cloister.forge.packs import check_room
from cloister.forge.read import CONTENT, Blob, blobs, read_file, texts

if TYPE_CHECKING:
    import httpx2

_POINTER = re.compile(
    r"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize ([1-9][0-9]{0,14})\n"
)
_POINTER_BYTES = 160
_OBJECTS = 2_000
_BATCH = 100
_AT_ONCE = 4
_TYPE = "application/vnd.git-lfs+json"
_REPLY_BYTES = 4_194_304
_READ_BYTES = 1_048_576
_HEADERS = 20
_TRIES = 3


class Pointer(NamedTuple):
    """The object that the content of a file is."""

    oid: str
    size: int


class Server(NamedTuple):
    """Where the content of a repository is."""

    address: str
    """The repository's, of http or https."""
    credential: Callable[[], Awaitable[str | None]]
    """The header `Authorization` for it; None if the host has none."""


class _Link(msgspec.Struct, frozen=True):
    href: str
    header: dict[str, str] = {}


class _Actions(msgspec.Struct, frozen=True):
    download: _Link | None = None


class _Problem(msgspec.Struct, frozen=True):
    message: str = ""


class _Object(msgspec.Struct, frozen=True):
    oid: str
    actions: _Actions | None = None
    error: _Problem | None = None


class _Batch(msgspec.Struct, frozen=True):
    objects: list[_Object] = []


class LeftOut(Exception):
    """Why content is missing, as part of a sentence."""


async def wanted(bare: Path, commit: str) -> dict[str, Pointer]:
    """The pointers of `commit` whose content its settings ask for, by path."""
    contents = {name: decode(text) for name in FILES if (text := await read_file(bare, commit, name))}
    patterns = read_settings(contents).lfs
    if not patterns:
        return {}
    files = await blobs(bare, commit)
    small = {
        path: blob
        for path, blob in files.items()
        if blob.size <= _POINTER_BYTES and any(fnmatchcase(path, one) for one in patterns)
    }
    found: dict[str, Pointer] = {}
    for path, text in (await texts(bare, await _filtered(bare, commit, small))).items():
        if match := _POINTER.fullmatch(text):
            found[path] = Pointer(match[1], int(match[2]))
    return found


async def _filtered(bare: Path, commit: str, files: Mapping[str, Blob]) -> dict[str, Blob]:
    """Those of `files` that the attributes of the commit give to LFS."""
    if not files:
        return {}
    with tempfile.TemporaryDirectory(prefix="cloister-", dir=bare) as folder:
        env = {"GIT_INDEX_FILE": f"{folder}/index"}
        must(await in_bare(bare, "read-tree", commit, env=env), "read the commit")
        names = "\0".join(files).encode(errors="replace")
        asked = await in_bare(bare, "check-attr", "--cached", "-z", "--stdin", "filter", stdin=names, env=env)
    fields = decode(must(asked, "read the attributes")).split("\0")
    given = zip(fields[::3], fields[2::3], strict=False)
    return {path: files[path] for path, value in given if value == "lfs" and path in files}


async def fetch_content(
    bare: Path,
    pointers: Sequence[Pointer],
    checkout: Checkout | None,
    server: Server | None,
    cache: ContentCache,
) -> str | None:
    """Bring the content into the store of `bare`. Return why some is missing, in one sentence; None if all is there."""
    due = {one.oid: one for one in pointers}
    try:
        large = [one for one in due.values() if one.size > limits.FILE_BYTES]
        if len(due) > _OBJECTS or sum(one.size for one in due.values()) > limits.LFS_BYTES or large:
            raise LeftOut(
                f"a run takes {_OBJECTS:,} objects of at most {limits.FILE_BYTES >> 20} MiB, "
                f"{limits.LFS_BYTES >> 20:,} MiB together"
            )
        await in_thread(check_room, bare, sum(one.size for one in due.values()))
        store = bare / CONTENT
        store.mkdir(mode=0o700, exist_ok=True)
        folders = [] if checkout is None else await _folders(checkout)
        who = checkout.who if checkout is not None else None
        left = await in_thread(_take_local, store, tuple(due.values()), folders, who)
        if left and server is None:
            raise LeftOut("the repository has no address of http or https to fetch them from")
        if left and server is not None:
            with anyio.move_on_after(limits.FETCH_SECONDS) as late:
                await _download(store, left, server, cache)
            if late.cancelled_caught:
                raise LeftOut("the server did not send them in time")
    except LeftOut as error:
        return f"Files of LFS are left as pointers: {one_line(str(error), 300)}."
    return None


# Content that this machine has.


async def _folders(checkout: Checkout) -> list[Path]:
    """Where the repository of a directory keeps LFS objects; a bare one of ours has a store."""
    found = await in_checkout(checkout, "rev-parse", "--path-format=absolute", "--git-common-dir")
    common = Path(os.fsdecode(found.out.strip())) if found.ok and found.out.strip() else checkout.top
    return [common / "lfs" / "objects", common / CONTENT]


def _take_local(
    store: Path, due: Sequence[Pointer], folders: Sequence[Path], who: Who | None
) -> list[Pointer]:
    """Take what is there, and return what is not."""
    left: list[Pointer] = []
    for one in due:
        if (store / one.oid).exists():
            continue
        places = [folder / one.oid[:2] / one.oid[2:4] / one.oid for folder in folders]
        places += [folder / one.oid for folder in folders]
        if not any(_copied(place, store, one, who) for place in places):
            left.append(one)
    return left


def _copied(place: Path, store: Path, pointer: Pointer, who: Who | None) -> bool:
    """Copy an object if it is what the pointer says. Another user may have put anything there.

    A directory may be a link into a third user's: only files of the checkout's owner `who` are taken.
    """
    try:
        source = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(source, "rb") as file, tempfile.NamedTemporaryFile(dir=store, delete=False) as into:
        about = os.fstat(source)
        digest = hashlib.sha256()
        mine = who is None or about.st_uid == who.uid
        if mine and stat.S_ISREG(about.st_mode) and about.st_size == pointer.size:
            while data := file.read(_READ_BYTES):
                digest.update(data)
                into.write(data)
    if digest.hexdigest() != pointer.oid:
        Path(into.name).unlink()
        return False
    Path(into.name).replace(store / pointer.oid)
    return True


# Content that the server has.


async def _download(store: Path, due: Sequence[Pointer], server: Server, cache: ContentCache) -> None:
    """Bring what the server gives this host; what the cache has of it is not sent again. Raises `LeftOut`."""
    from cloister.forge.pulls.hosted import client  # noqa: PLC0415 - loads an HTTP client

    said = await server.credential()
    own = {"User-Agent": "cloister", **({"Authorization": said} if said else {})}
    async with client() as http:
        for start in range(0, len(due), _BATCH):
            links = await _ask(http, due[start : start + _BATCH], server, own)
            part = await in_thread(_not_kept, due[start : start + _BATCH], cache, store)
            slots = anyio.Semaphore(_AT_ONCE)
            problems: list[str] = []

            async def one(pointer: Pointer, link: _Link, slots: anyio.Semaphore, told: list[str]) -> None:
                async with slots:
                    if not told and (why := await _one(http, store, pointer, link)):
                        told.append(why)

            async with anyio.create_task_group() as tasks:
                for pointer in part:
                    tasks.start_soon(one, pointer, links[pointer.oid], slots, problems)
            if problems:
                raise LeftOut(problems[0])
            await in_thread(cache.keep, store, [one.oid for one in part])


def _not_kept(due: Sequence[Pointer], cache: ContentCache, store: Path) -> list[Pointer]:
    return [one for one in due if not cache.take(one.oid, store)]


async def _ask(
    http: "httpx2.AsyncClient", due: Sequence[Pointer], server: Server, own: Mapping[str, str]
) -> dict[str, _Link]:
    """The link of each object, from the batch API. Raises `LeftOut`."""
    import httpx2  # noqa: PLC0415

    url = f"{server.address.removesuffix('/')}/info/lfs/objects/batch"
    body = {
        "operation": "download",
        "transfers": ["basic"],
        "objects": [{"oid": one.oid, "size": one.size} for one in due],
        "hash_algo": "sha256",
    }
    host = urlsplit(url).netloc
    headers = {"Accept": _TYPE, "Content-Type": _TYPE, **own}
    try:
        async with http.stream("POST", url, content=msgspec.json.encode(body), headers=headers) as reply:
            text = b"".join([piece async for piece in _bounded(reply.aiter_bytes(), _REPLY_BYTES)])
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise LeftOut(f"{host} cannot be reached: {error}") from None
    if reply.status_code in (401, 403, 404):
        raise LeftOut(f"{host} does not let this host's credential read them")
    if reply.status_code != 200:
        raise LeftOut(f"{host} answered with status {reply.status_code}")
    try:
        found = {one.oid: one for one in msgspec.json.decode(text, type=_Batch).objects}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise LeftOut(f"{host} sent an answer that cannot be read") from None
    links: dict[str, _Link] = {}
    for pointer in due:
        one = found.get(pointer.oid)
        if one is None or one.actions is None or one.actions.download is None:
            why = one.error.message if one is not None and one.error is not None else "it is not there"
            raise LeftOut(f"{host} has no object {pointer.oid[:12]}: {why}")
        links[pointer.oid] = _checked(one.actions.download, server.address, own)
    return links


async def _bounded(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > most:
            raise LeftOut("the server sends more than it said")
        yield piece


def _checked(link: _Link, address: str, own: Mapping[str, str]) -> _Link:
    """The link with the headers for it: the host's credential goes to its own server only. Raises `LeftOut`."""
    try:
        to, server = urlsplit(link.href), urlsplit(address)
    except ValueError:
        raise LeftOut("the server names an address that cannot be read") from None
    same = (to.scheme, to.netloc) == (server.scheme, server.netloc)
    if (to.scheme != "https" and not same) or len(link.header) > _HEADERS:
        raise LeftOut(f"{server.netloc} names a place that is not of https")
    return _Link(link.href, dict(link.header) or (dict(own) if same else {}))


async def _one(http: "httpx2.AsyncClient", store: Path, pointer: Pointer, link: _Link) -> str | None:
    """Download one object. Return why that fails; None if it is in the store."""
    import httpx2  # noqa: PLC0415

    why, temporary = "", store / f"{pointer.oid}.new"
    for _ in range(_TRIES):
        host = urlsplit(link.href).netloc
        try:
            async with http.stream("GET", link.href, headers=link.header) as reply:
                to = urljoin(link.href, reply.headers.get("location", ""))
                if reply.status_code in (301, 302, 303, 307, 308) and to.startswith("https://"):
                    link = _Link(to)  # a store, which gets no header
                elif reply.status_code == 200:
                    digest = await _written(reply.aiter_bytes(), pointer.size, temporary)
                    if digest == pointer.oid:
                        temporary.replace(store / pointer.oid)
                        return None
                    return f"{host} sent other content than the pointer names"
                why = f"{host} answered with status {reply.status_code}"
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            why = f"{host} cannot be reached: {error}"
        except LeftOut as error:
            return str(error)
        finally:
            temporary.unlink(missing_ok=True)
    return why


async def _written(pieces: AsyncIterator[bytes], size: int, at: Path) -> str:
    """Write at most `size` bytes to `at` and return their hash."""
    digest = hashlib.sha256()
    async with await anyio.open_file(at, "wb") as into:
        async for piece in _bounded(pieces, size):
            digest.update(piece)
            await into.write(piece)
    return digest.hexdigest()
