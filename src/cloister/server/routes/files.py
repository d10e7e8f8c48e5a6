"""Routes of a sandbox's files, all of it done inside by the guest: read, write, look, move, remove, watch, trees."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post, put, websocket
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from cloister.app.verbs.api import FileVerbs
from cloister.core.computer import Entry
from cloister.server.bodies import Streamed, body_of, read_on_after_errors
from cloister.server.routes import Given, of
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import NORMAL, Ending, Part, Socket, Sockets, Wire, converse

OFFSET_MAX = 2**53
PATH_MAX = 4_096
_MODE = "^0?[0-7]{3}$"

Path = Annotated[
    str,
    QueryParameter(
        min_length=1, max_length=PATH_MAX, description="Absolute, or relative to the work directory."
    ),
]
Offset = Annotated[int, QueryParameter(ge=0, le=OFFSET_MAX, description="Where to start, in bytes.")]
Limit = Annotated[int, QueryParameter(ge=0, le=OFFSET_MAX, description="How many bytes; 0 is all.")]
Mode = Annotated[str, QueryParameter(pattern=_MODE, description="Permission bits in octal.")]
PathField = Annotated[str, Meta(min_length=1, max_length=PATH_MAX)]


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another name for a file or a directory."""

    path: PathField
    to: PathField


class Remove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to remove."""

    path: PathField
    recursive: bool = False
    """Also a directory that is not empty."""


class MakeDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory to make, with its parents."""

    path: PathField
    mode: Annotated[str, Meta(pattern=_MODE)] = "755"


@get(
    "/v1/sandboxes/{sandbox:str}/files",
    **of(FileVerbs.read, "Read a file", "readFile"),
    media_type="application/octet-stream",
)
async def read_file(
    sandbox: SandboxName, path: Path, verbs: Given, offset: Offset = 0, limit: Limit = 0
) -> Response[bytes]:
    file = verbs.files.read(sandbox, path, offset=offset, limit_bytes=limit or None)
    return Streamed(lambda: file)


@put(
    "/v1/sandboxes/{sandbox:str}/files",
    **of(FileVerbs.write, "Write a file, whole or not at all", "writeFile", 204),
    request_max_body_size=None,
)
async def write_file(
    sandbox: SandboxName,
    path: Path,
    verbs: Given,
    request: Request[Any, Any, State],
    mode: Mode = "644",
) -> None:
    file = verbs.files.write(sandbox, path, mode=int(mode, 8))
    async with read_on_after_errors(request), file as sink:
        async for data in body_of(request):
            await sink.send(data)


@get("/v1/sandboxes/{sandbox:str}/files/list", **of(FileVerbs.list, "List a directory", "listFiles"))
async def list_files(sandbox: SandboxName, verbs: Given, path: Path = ".") -> tuple[Entry, ...]:
    return await verbs.files.list(sandbox, path)


@get(
    "/v1/sandboxes/{sandbox:str}/files/stat",
    **of(FileVerbs.stat, "Look at a file; a link is not followed", "statFile"),
)
async def stat_file(sandbox: SandboxName, path: Path, verbs: Given) -> Entry:
    return await verbs.files.stat(sandbox, path)


@post(
    "/v1/sandboxes/{sandbox:str}/files/move",
    **of(FileVerbs.move, "Move a file or a directory", "moveFile", 204),
)
async def move_file(sandbox: SandboxName, data: JSONBody[Move], verbs: Given) -> None:
    await verbs.files.move(sandbox, data.path, data.to)


@post(
    "/v1/sandboxes/{sandbox:str}/files/remove",
    **of(FileVerbs.remove, "Remove a file or a directory", "removeFile", 204),
)
async def remove_file(sandbox: SandboxName, data: JSONBody[Remove], verbs: Given) -> None:
    await verbs.files.remove(sandbox, data.path, recursive=data.recursive)


@post(
    "/v1/sandboxes/{sandbox:str}/files/mkdir",
    **of(FileVerbs.mkdir, "Make a directory and its parents", "makeDirectory", 204),
)
async def make_directory(sandbox: SandboxName, data: JSONBody[MakeDirectory], verbs: Given) -> None:
    await verbs.files.mkdir(sandbox, data.path, mode=int(data.mode, 8))


@get(
    "/v1/sandboxes/{sandbox:str}/tree",
    **of(FileVerbs.download, "A directory as a tar archive", "readTree"),
    media_type="application/octet-stream",
)
async def read_tree(sandbox: SandboxName, path: Path, verbs: Given) -> Response[bytes]:
    tree = verbs.files.download(sandbox, path)
    return Streamed(lambda: tree)


@put(
    "/v1/sandboxes/{sandbox:str}/tree",
    **of(FileVerbs.upload, "Unpack a tar archive into a directory", "writeTree", 204),
    request_max_body_size=None,
)
async def write_tree(
    sandbox: SandboxName, path: Path, verbs: Given, request: Request[Any, Any, State]
) -> None:
    tree = verbs.files.upload(sandbox, path)
    async with read_on_after_errors(request), tree as sink:
        async for data in body_of(request):
            await sink.send(data)


@websocket("/v1/sandboxes/{sandbox:str}/files/watch", **of(FileVerbs.watch))
async def watch_files(
    socket: Socket, verbs: Given, sockets: NamedDependency[Sockets], sandbox: SandboxName
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        path = socket.query_params.get("path", ".")
        watched = verbs.files.watch(sandbox, path)

        async def tell() -> Ending:
            async with watched as changes:
                await wire.send_record(watching=path)
                async for change in changes:
                    await wire.send_patiently(msgspec.json.encode({"change": change}).decode())
            return Ending(NORMAL, "The directory is gone.")

        async def listen() -> Ending:
            while True:
                await wire.receive()  # only to notice that the client leaves: `ClientGone`

        return tell, listen

    await converse(socket, sockets, parts)


SOCKET_ROUTES = (watch_files,)
