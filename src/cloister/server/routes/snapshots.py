"""Routes of snapshots: take, look, delete. And of forks: the other way to have a sandbox twice."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from cloister.core import limits
from cloister.core.errors import UserError
from cloister.sandbox.api import SandboxInfo, SnapshotInfo
from cloister.sandbox.providers import which
from cloister.server.bodies import while_wanted
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.wiring import App

Reference = Annotated[str, PathParameter(description="A snapshot's name or id.")]


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wish to keep the files of a sandbox as they are now."""

    name: str | None = None
    """Unique; without one it is removed when it is old."""


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wish for copies of a sandbox that lives."""

    n: Annotated[int, Meta(ge=1, le=limits.FORKS)] = 1


@contextmanager
def _named() -> Generator[None]:
    """Where the snapshot is the address, an unknown one is nothing at that address."""
    try:
        yield
    except UserError as error:
        if error.code != "unknown_snapshot":
            raise
        raise UserError("no_such_snapshot", error.message) from None


@post(
    "/v1/sandboxes/{sandbox:str}/snapshots",
    summary="Keep the files of a sandbox",
    operation_id="newSnapshot",
    status_code=201,
)
async def new_snapshot(
    sandbox: SandboxName,
    data: JSONBody[NewSnapshot],
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> SnapshotInfo:
    target = app.sandboxes.get(sandbox)

    async def work() -> SnapshotInfo:
        return await target.snapshot(data.name)

    return await while_wanted(request, sockets.leaving, work)


@get(
    "/v1/sandboxes/{sandbox:str}/snapshots",
    summary="The snapshots of a sandbox, also of one that is gone",
    operation_id="listSandboxSnapshots",
)
async def list_sandbox_snapshots(
    sandbox: SandboxName, app: NamedDependency["App"]
) -> tuple[SnapshotInfo, ...]:
    return tuple(info for info in await app.host.snapshots() if info.sandbox == sandbox)


@get("/v1/snapshots", summary="The snapshots there are, oldest first", operation_id="listSnapshots")
async def list_snapshots(app: NamedDependency["App"]) -> tuple[SnapshotInfo, ...]:
    return await app.host.snapshots()


@get("/v1/snapshots/{snapshot:str}", summary="One snapshot", operation_id="getSnapshot")
async def get_snapshot(snapshot: Reference, app: NamedDependency["App"]) -> SnapshotInfo:
    with _named():
        return which(snapshot, await app.host.snapshots())


@delete("/v1/snapshots/{snapshot:str}", summary="Delete a snapshot", operation_id="deleteSnapshot")
async def delete_snapshot(snapshot: Reference, app: NamedDependency["App"]) -> None:
    with _named():
        await app.host.delete_snapshot(snapshot)


@post(
    "/v1/sandboxes/{sandbox:str}/fork",
    summary="Fork a sandbox that lives",
    operation_id="forkSandbox",
    status_code=201,
)
async def fork_sandbox(
    sandbox: SandboxName,
    data: JSONBody[Fork],
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> tuple[SandboxInfo, ...]:
    async def work() -> tuple[SandboxInfo, ...]:
        return await app.sandboxes.fork(sandbox, data.n)

    return await while_wanted(request, sockets.leaving, work)


ROUTES = (
    new_snapshot,
    list_sandbox_snapshots,
    list_snapshots,
    get_snapshot,
    delete_snapshot,
    fork_sandbox,
)
