"""Routes of sandboxes made by hand: create, list, run commands and code, fork, destroy; and of snapshots."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from cloister.app.verbs.api import SandboxVerbs, SnapshotVerbs
from cloister.app.verbs.records import Exec, Execute, Executed, NewSandbox
from cloister.core import limits
from cloister.sandbox.api import SandboxInfo, SnapshotInfo
from cloister.sandbox.pool import PoolInfo
from cloister.server.auth import role
from cloister.server.bodies import while_wanted
from cloister.server.routes.templates import log_progress
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.verbs.api import Verbs

SandboxName = Annotated[str, PathParameter(description="A sandbox's id.")]
Reference = Annotated[str, PathParameter(description="A snapshot's name or id.")]


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to keep the files of a sandbox as they are now."""

    name: str | None = None
    """Unique; a snapshot without one is removed when it is old."""


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for copies of a living sandbox."""

    n: Annotated[int, Meta(ge=1, le=limits.FORKS)] = 1


@post(
    "/v1/sandboxes",
    summary="Open a sandbox",
    operation_id="newSandbox",
    status_code=201,
    opt=role(SandboxVerbs.create),
    responses={
        200: ResponseSpec(SandboxInfo, description="The same task_id: it lives.", generate_examples=False)
    },
)
async def new_sandbox(
    data: JSONBody[NewSandbox],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Response[SandboxInfo]:
    async def work() -> tuple[SandboxInfo, bool]:
        return await verbs.sandboxes.create(data, log_progress)

    info, made = await while_wanted(request, sockets.leaving, work)
    return Response(info, status_code=201 if made else 200)


@get(
    "/v1/pool",
    summary="The sandboxes that are kept warm",
    operation_id="getPool",
    opt=role(SandboxVerbs.pool),
)
async def get_pool(verbs: NamedDependency["Verbs"]) -> tuple[PoolInfo, ...]:
    return await verbs.sandboxes.pool()


@get(
    "/v1/sandboxes",
    summary="The sandboxes that live, oldest first",
    operation_id="listSandboxes",
    opt=role(SandboxVerbs.list),
)
async def list_sandboxes(verbs: NamedDependency["Verbs"]) -> tuple[SandboxInfo, ...]:
    return await verbs.sandboxes.list()


@get(
    "/v1/sandboxes/{sandbox:str}",
    summary="One sandbox",
    operation_id="getSandbox",
    opt=role(SandboxVerbs.get),
)
async def get_sandbox(sandbox: SandboxName, verbs: NamedDependency["Verbs"]) -> SandboxInfo:
    return await verbs.sandboxes.get(sandbox)


@delete(
    "/v1/sandboxes/{sandbox:str}",
    summary="Destroy a sandbox",
    operation_id="deleteSandbox",
    opt=role(SandboxVerbs.destroy),
)
async def delete_sandbox(sandbox: SandboxName, verbs: NamedDependency["Verbs"]) -> None:
    await verbs.sandboxes.destroy(sandbox)


@post(
    "/v1/sandboxes/{sandbox:str}/exec",
    summary="Run a command to its end",
    operation_id="exec",
    status_code=200,
    opt=role(SandboxVerbs.exec),
)
async def exec_command(
    sandbox: SandboxName,
    data: JSONBody[Exec],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Executed:
    async def work() -> Executed:
        return await verbs.sandboxes.exec(sandbox, data)

    return await while_wanted(request, sockets.leaving, work)


@post(
    "/v1/sandboxes/{sandbox:str}/execute",
    summary="Run code to its end",
    operation_id="execute",
    status_code=200,
    opt=role(SandboxVerbs.execute),
)
async def execute_code(
    sandbox: SandboxName,
    data: JSONBody[Execute],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Executed:
    async def work() -> Executed:
        return await verbs.sandboxes.execute(sandbox, data)

    return await while_wanted(request, sockets.leaving, work)


@post(
    "/v1/sandboxes/{sandbox:str}/fork",
    summary="Fork a sandbox that lives",
    operation_id="forkSandbox",
    status_code=201,
    opt=role(SandboxVerbs.fork),
)
async def fork_sandbox(
    sandbox: SandboxName,
    data: JSONBody[Fork],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> tuple[SandboxInfo, ...]:
    async def work() -> tuple[SandboxInfo, ...]:
        return await verbs.sandboxes.fork(sandbox, data.n)

    return await while_wanted(request, sockets.leaving, work)


@post(
    "/v1/sandboxes/{sandbox:str}/snapshots",
    summary="Keep the files of a sandbox",
    operation_id="newSnapshot",
    status_code=201,
    opt=role(SnapshotVerbs.take),
)
async def new_snapshot(
    sandbox: SandboxName,
    data: JSONBody[NewSnapshot],
    verbs: NamedDependency["Verbs"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> SnapshotInfo:
    async def work() -> SnapshotInfo:
        return await verbs.snapshots.take(sandbox, data.name)

    return await while_wanted(request, sockets.leaving, work)


@get(
    "/v1/sandboxes/{sandbox:str}/snapshots",
    summary="The snapshots of a sandbox, also of one that is gone",
    operation_id="listSandboxSnapshots",
    opt=role(SnapshotVerbs.list),
)
async def list_sandbox_snapshots(
    sandbox: SandboxName, verbs: NamedDependency["Verbs"]
) -> tuple[SnapshotInfo, ...]:
    return await verbs.snapshots.list(sandbox)


@get(
    "/v1/snapshots",
    summary="The snapshots there are, oldest first",
    operation_id="listSnapshots",
    opt=role(SnapshotVerbs.list),
)
async def list_snapshots(verbs: NamedDependency["Verbs"]) -> tuple[SnapshotInfo, ...]:
    return await verbs.snapshots.list()


@get(
    "/v1/snapshots/{snapshot:str}",
    summary="One snapshot",
    operation_id="getSnapshot",
    opt=role(SnapshotVerbs.get),
)
async def get_snapshot(snapshot: Reference, verbs: NamedDependency["Verbs"]) -> SnapshotInfo:
    return await verbs.snapshots.get(snapshot)


@delete(
    "/v1/snapshots/{snapshot:str}",
    summary="Delete a snapshot",
    operation_id="deleteSnapshot",
    opt=role(SnapshotVerbs.remove),
)
async def delete_snapshot(snapshot: Reference, verbs: NamedDependency["Verbs"]) -> None:
    await verbs.snapshots.remove(snapshot)


ROUTES = (
    get_pool,
    new_sandbox,
    list_sandboxes,
    get_sandbox,
    delete_sandbox,
    exec_command,
    execute_code,
    new_snapshot,
    list_sandbox_snapshots,
    list_snapshots,
    get_snapshot,
    delete_snapshot,
    fork_sandbox,
)
RECORDS = (Exec, Execute, Executed, Fork, NewSandbox, NewSnapshot, PoolInfo, SandboxInfo, SnapshotInfo)
