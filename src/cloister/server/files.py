"""Routes of a sandbox's files: read, write and list, all of it done inside by the guest."""

from typing import TYPE_CHECKING, Annotated, Any

from litestar import Request, Response, get, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from cloister.core import limits
from cloister.core.commands import Entry
from cloister.core.errors import UserError
from cloister.server.sandboxes import SandboxName

if TYPE_CHECKING:
    from cloister.app import App

OFFSET_MAX = 2**53

Path = Annotated[
    str,
    QueryParameter(
        min_length=1, max_length=4_096, description="Absolute, or relative to the work directory."
    ),
]
Offset = Annotated[int, QueryParameter(ge=0, le=OFFSET_MAX, description="Where to start, in bytes.")]
Limit = Annotated[int, QueryParameter(ge=0, le=limits.FILE_BYTES, description="How many bytes; 0 is all.")]
Mode = Annotated[str, QueryParameter(pattern="^[0-7]{3,4}$", description="Permission bits in octal.")]


@get(
    "/v1/sandboxes/{sandbox:str}/files",
    summary="Read a file",
    operation_id="readFile",
    media_type="application/octet-stream",
)
async def read_file(
    sandbox: SandboxName, path: Path, app: NamedDependency["App"], offset: Offset = 0, limit: Limit = 0
) -> Response[bytes]:
    target = app.sandboxes.get(sandbox)
    data = await target.read(path, offset=offset, limit_bytes=limit or limits.FILE_BYTES)
    if not limit and len(data) == limits.FILE_BYTES:
        # A file of exactly the limit is whole; anything behind it would be missing silently.
        rest = await target.read(path, offset=offset + len(data), limit_bytes=1)
        if rest:
            raise UserError(
                "file_too_large",
                f"The file is larger than {limits.FILE_BYTES:,} bytes: read it in parts with offset and limit.",
            )
    return Response(
        data, media_type="application/octet-stream", headers={"content-disposition": "attachment"}
    )


@put(
    "/v1/sandboxes/{sandbox:str}/files",
    summary="Write a file, whole or not at all",
    operation_id="writeFile",
    status_code=204,
    request_max_body_size=limits.FILE_BYTES,
)
async def write_file(
    sandbox: SandboxName,
    path: Path,
    app: NamedDependency["App"],
    request: Request[Any, Any, State],
    mode: Mode = "644",
) -> None:
    target = app.sandboxes.get(sandbox)
    bits = int(mode, 8)
    if bits > 0o777:
        raise UserError("bad_mode", "mode is three octal digits, like 644: special bits are not set here.")
    await target.write(path, await request.body(), mode=bits)


@get("/v1/sandboxes/{sandbox:str}/files/list", summary="List a directory", operation_id="listFiles")
async def list_files(
    sandbox: SandboxName, app: NamedDependency["App"], path: Path = "."
) -> tuple[Entry, ...]:
    return await app.sandboxes.get(sandbox).list(path)


ROUTES = (read_file, write_file, list_files)
