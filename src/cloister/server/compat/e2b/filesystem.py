"""`filesystem.Filesystem` and `/files` of e2b: files inside, over Connect and as plain bodies."""

import stat
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import State, UploadFile
from msgspec import Meta

from cloister.app.verbs.api import FileVerbs, SandboxVerbs, Verbs
from cloister.core.computer import Entry
from cloister.core.errors import CloisterError, UserError
from cloister.server.bodies import Streamed, body_of, read_on_after_errors
from cloister.server.compat.connect import failing, frame, framed, stream, unary
from cloister.server.compat.e2b import HOME, at, placed, sandbox_of
from cloister.server.compat.e2b.control import opened, stamp
from cloister.server.compat.live import Live, Tell
from cloister.server.routes import Given, of

_Asked = Request[Any, Any, State]
_TYPES = {"dir": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
_EVENTS = {"created": "EVENT_TYPE_CREATE", "changed": "EVENT_TYPE_WRITE", "removed": "EVENT_TYPE_REMOVE"}
_BITS = {"dir": stat.S_IFDIR, "link": stat.S_IFLNK}
ENTRIES = 10_000
"""Most names in one answer, and in one watched tree."""
WATCHERS = 64
"""Watchers of all sandboxes; the one that was asked longest ago is dropped."""
WATCHED = 100_000
"""Names that all of them remember together."""
FORM_BYTES = 67_108_864
"""Largest form with files; a plain body has no limit."""
_INFLATE_BYTES = 262_144

Where = Annotated[str, Meta(min_length=1, max_length=4_096)]


class _Path(msgspec.Struct, frozen=True, rename="camel"):
    path: Where = HOME
    depth: int = 1
    recursive: bool = False
    source: str = ""
    destination: str = ""
    watcher_id: str = ""


def _entry(entry: Entry, path: str) -> dict[str, object]:
    return {
        "name": path.rpartition("/")[2] or path,
        "type": _TYPES.get(entry.kind, "FILE_TYPE_FILE"),
        "path": path,
        "size": str(entry.size),
        "mode": entry.mode & 0o7777,
        "permissions": stat.filemode(_BITS.get(entry.kind, stat.S_IFREG) | entry.mode & 0o7777),
        "owner": "user",
        "group": "user",
        "modifiedTime": stamp(entry.modified),
    }


@post(at("/filesystem.Filesystem/Stat"), **of(FileVerbs.stat, status=200), **opened())
async def stat_file(request: _Asked, verbs: Given) -> dict[str, object]:
    path = placed((await unary(_Path, request)).path)
    return {"entry": _entry(await verbs.files.stat(sandbox_of(request), path), path)}


@post(at("/filesystem.Filesystem/ListDir"), **of(FileVerbs.list, status=200), **opened())
async def list_dir(request: _Asked, verbs: Given) -> dict[str, object]:
    wish = await unary(_Path, request)
    found = await _tree(verbs, sandbox_of(request), placed(wish.path), max(1, wish.depth))
    return {"entries": [_entry(entry, path) for path, entry in found.items()]}


async def _tree(verbs: Verbs, sandbox: str, path: str, depth: int) -> dict[str, Entry]:
    """The names below a directory, level by level. Raises `UserError` (`too_large`)."""
    found: dict[str, Entry] = {}
    level = [path]
    while level and depth > 0:
        below: list[str] = []
        for directory in level:
            try:
                entries = await verbs.files.list(sandbox, directory)
            except UserError:
                if directory == path:
                    raise
                continue  # removed meanwhile, or not for the agent
            for entry in entries:
                named = f"{directory.rstrip('/')}/{entry.name}"
                found[named] = entry
                if entry.kind == "dir":
                    below.append(named)
            if len(found) > ENTRIES:
                raise UserError("too_large", f"There are more than {ENTRIES:,} names below {path[:200]}.")
        level, depth = below, depth - 1
    return found


@post(at("/filesystem.Filesystem/MakeDir"), **of(FileVerbs.mkdir, status=200), **opened())
async def make_dir(request: _Asked, verbs: Given) -> dict[str, object]:
    sandbox, path = sandbox_of(request), placed((await unary(_Path, request)).path)
    try:
        await verbs.files.stat(sandbox, path)
    except UserError as error:
        if error.code != "not_found":
            raise
    else:
        raise UserError("name_taken", f"{path[:200]} is there already.")
    await verbs.files.mkdir(sandbox, path)
    return {"entry": _entry(await verbs.files.stat(sandbox, path), path)}


@post(at("/filesystem.Filesystem/Move"), **of(FileVerbs.move, status=200), **opened())
async def move(request: _Asked, verbs: Given) -> dict[str, object]:
    sandbox, wish = sandbox_of(request), await unary(_Path, request)
    target = placed(wish.destination)
    await verbs.files.move(sandbox, placed(wish.source), target)
    return {"entry": _entry(await verbs.files.stat(sandbox, target), target)}


@post(at("/filesystem.Filesystem/Remove"), **of(FileVerbs.remove, status=200), **opened())
async def remove(request: _Asked, verbs: Given) -> dict[str, object]:
    path = placed((await unary(_Path, request)).path)
    await verbs.files.remove(sandbox_of(request), path, recursive=True)
    return {}


# Watching: a stream of changes, and watchers that are asked from time to time.


@post(
    at("/filesystem.Filesystem/WatchDir"),
    **of(FileVerbs.watch, status=200),
    **opened(request_max_body_size=None),
)
async def watch_dir(request: _Asked, verbs: Given) -> Live:
    try:
        sandbox, wish = sandbox_of(request), await framed(_Path, request)
    except CloisterError as error:
        return failing(error)

    async def produce(tell: Tell) -> None:
        async with verbs.files.watch(sandbox, placed(wish.path)) as changes:
            await tell(frame({"start": {}}))
            async for change in changes:
                if change.kind != "overflow" and (wish.recursive or "/" not in change.path):
                    event = {"name": change.path, "type": _EVENTS[change.kind]}
                    await tell(frame({"filesystem": event}))

    return stream(produce, {"keepalive": {}})


class Watcher(msgspec.Struct):
    """What a client watches, and what it saw there last."""

    sandbox: str
    path: str
    depth: int
    seen: dict[str, Entry]
    asked: float


class Watchers:
    """What each watcher saw when it was last asked; nothing runs in between."""

    def __init__(self, most: int = WATCHED) -> None:
        self._most = most
        self._all: OrderedDict[str, Watcher] = OrderedDict()

    def add(self, watcher: Watcher) -> str:
        name = token_hex(16)
        self._all[name] = watcher
        self._bound()
        return name

    def saw(self, watcher: Watcher, now: dict[str, Entry]) -> dict[str, Entry]:
        """Remember what a watcher sees now; returns what it saw before."""
        before, watcher.seen = watcher.seen, now
        self._bound()
        return before

    def _bound(self) -> None:
        names = sum(len(one.seen) for one in self._all.values())
        while len(self._all) > WATCHERS or names > self._most:
            names -= len(self._all.popitem(last=False)[1].seen)

    def get(self, sandbox: str, name: str) -> Watcher:
        """Raises `UserError` (`no_such_watcher`)."""
        found = self._all.get(name)
        if found is None or found.sandbox != sandbox:
            raise UserError("no_such_watcher", "There is no such watcher in this sandbox.")
        self._all.move_to_end(name)
        return found

    def remove(self, sandbox: str, name: str) -> None:
        self.get(sandbox, name)
        del self._all[name]


def _watchers(request: _Asked) -> Watchers:
    return request.app.state["watchers"]


@post(at("/filesystem.Filesystem/CreateWatcher"), **of(FileVerbs.list, status=200), **opened())
async def create_watcher(request: _Asked, verbs: Given) -> dict[str, object]:
    sandbox, wish = sandbox_of(request), await unary(_Path, request)
    path, depth = placed(wish.path), 32 if wish.recursive else 1
    seen = await _tree(verbs, sandbox, path, depth)
    return {"watcherId": _watchers(request).add(Watcher(sandbox, path, depth, seen, time.time()))}


@post(at("/filesystem.Filesystem/GetWatcherEvents"), **of(FileVerbs.list, status=200), **opened())
async def watcher_events(request: _Asked, verbs: Given) -> dict[str, object]:
    sandbox, wish = sandbox_of(request), await unary(_Path, request)
    watcher = _watchers(request).get(sandbox, wish.watcher_id)
    now = await _tree(verbs, sandbox, watcher.path, watcher.depth)
    before = _watchers(request).saw(watcher, now)
    events: list[tuple[str, str]] = [(path, "removed") for path in before if path not in now]
    for path, entry in now.items():
        old = before.get(path)
        if old is None:
            events.append((path, "created"))
        elif entry.kind != "dir" and (old.size, old.modified) != (entry.size, entry.modified):
            events.append((path, "changed"))
    start = len(watcher.path.rstrip("/")) + 1
    return {"events": [{"name": path[start:], "type": _EVENTS[kind]} for path, kind in events]}


@post(at("/filesystem.Filesystem/RemoveWatcher"), **of(FileVerbs.list, status=200), **opened())
async def remove_watcher(request: _Asked, verbs: Given) -> dict[str, object]:
    sandbox, wish = sandbox_of(request), await unary(_Path, request)
    await verbs.files.list(sandbox, "/")
    _watchers(request).remove(sandbox, wish.watcher_id)
    return {}


# Bytes of files.


@get(at("/health"), **of(SandboxVerbs.get, status=204), **opened())
async def health(request: _Asked, verbs: Given) -> None:
    if (await verbs.sandboxes.get(sandbox_of(request))).paused:
        raise UserError("sandbox_paused", "The sandbox is paused.")


@get(at("/files"), **of(FileVerbs.read), **opened(media_type="application/octet-stream"))
async def read_file(request: _Asked, verbs: Given) -> Response[bytes]:
    file = verbs.files.read(sandbox_of(request), placed(_asked_path(request)))
    return Streamed(lambda: file)


@post(at("/files"), **of(FileVerbs.write, status=200), **opened(request_max_body_size=None))
async def write_file(request: _Asked, verbs: Given) -> Response[list[dict[str, str]]]:
    sandbox = sandbox_of(request)
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        return Response([_written(path) for path in await _write_form(sandbox, request, verbs)])
    path = placed(_asked_path(request))
    file = verbs.files.write(sandbox, path)
    async with read_on_after_errors(request), file as sink:
        async for data in _plain(request):
            await sink.send(data)
    return Response([_written(path)])


def _asked_path(request: _Asked) -> str:
    path = request.query_params.get("path", "")
    if not 0 < len(path) <= 4_096:
        raise UserError("bad_request", "Name the file in the query, as path=….")
    return path


def _written(path: str) -> dict[str, str]:
    return {"name": path.rpartition("/")[2], "type": "file", "path": path}


async def _write_form(sandbox: str, request: _Asked, verbs: Verbs) -> list[str]:
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > FORM_BYTES:
        raise UserError("too_large", f"A form may have {FORM_BYTES:,} bytes: send the file as a plain body.")
    written: list[str] = []
    named = request.query_params.get("path")
    for part in (await request.form()).getall("file", []):
        if not isinstance(part, UploadFile):
            continue
        path = placed(named or part.filename)
        async with verbs.files.write(sandbox, path) as sink:
            while data := await part.read(_INFLATE_BYTES):
                await sink.send(data)
        written.append(path)
    return written


async def _plain(request: _Asked) -> AsyncIterator[bytes]:
    """The body, unpacked if the client packed it; never more than a piece at once."""
    if request.headers.get("content-encoding", "") != "gzip":
        async for data in body_of(request):
            yield data
        return
    unpack = zlib.decompressobj(wbits=31)
    try:
        async for data in body_of(request):
            rest, more = data, True
            while more:
                if (
                    unpack.eof
                ):  # what follows is another member; as `unused_data` it would grow without a limit
                    unpack = zlib.decompressobj(wbits=31)
                piece = unpack.decompress(rest, _INFLATE_BYTES)
                rest = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                more = bool(rest) or (len(piece) == _INFLATE_BYTES and not unpack.eof)
                if piece:
                    yield piece
    except zlib.error:
        raise UserError("bad_request", "The body is not gzip, as its head says.") from None
    if not unpack.eof:
        raise UserError("bad_request", "The body ends in the middle of its gzip data: send it again.")


ROUTES = (
    stat_file,
    list_dir,
    make_dir,
    move,
    remove,
    watch_dir,
    create_watcher,
    watcher_events,
    remove_watcher,
    health,
    read_file,
    write_file,
)
