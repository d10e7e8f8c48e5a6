"""Routes of sandboxes made by hand: create, list, run commands and code, fork, destroy; and of snapshots."""

from typing import Annotated

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from cloister.app.verbs.api import SandboxVerbs, SnapshotVerbs
from cloister.app.verbs.records import (
    Exec,
    Execute,
    Executed,
    NewSandbox,
    PortAddress,
    SandboxChange,
    SandboxToken,
)
from cloister.app.workbench.metrics import SandboxMetrics
from cloister.core import limits
from cloister.sandbox.api import SandboxInfo, SnapshotInfo
from cloister.sandbox.pool import PoolInfo
from cloister.server.routes import Given, Wait, of
from cloister.server.routes.templates import log_progress

SandboxName = Annotated[str, PathParameter(description="A sandbox's id.")]
Wanted = Annotated[
    str | None,
    QueryParameter(
        max_length=8_192, description="Only those with this metadata: `key=value`, joined by `&`."
    ),
]
Reference = Annotated[str, PathParameter(description="A snapshot's name or id.")]


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to keep the files of a sandbox as they are now."""

    name: str | None = None
    """Unique; a snapshot without one is removed when it is old."""


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for copies of a living sandbox."""

    n: Annotated[int, Meta(ge=1, le=limits.FORKS)] = 1


class NewAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the address of a port inside."""

    port: Annotated[int, Meta(ge=1, le=65_535)]


_SANDBOX, _SNAPSHOT, _FORK = NewSandbox(), NewSnapshot(), Fork()
"""The bodies of requests without one."""


@post(
    "/v1/sandboxes",
    **of(SandboxVerbs.create, "Open a sandbox", "newSandbox", 201),
    responses={
        200: ResponseSpec(SandboxInfo, description="The same task_id: it lives.", generate_examples=False)
    },
)
async def new_sandbox(
    verbs: Given, wait: Wait, data: JSONBody[NewSandbox] = _SANDBOX
) -> Response[SandboxInfo]:
    info, made = await wait(verbs.sandboxes.create(data, log_progress))
    return Response(info, status_code=201 if made else 200)


@get("/v1/pool", **of(SandboxVerbs.pool, "The sandboxes that are kept warm", "getPool"))
async def get_pool(verbs: Given) -> tuple[PoolInfo, ...]:
    return await verbs.sandboxes.pool()


@get("/v1/sandboxes", **of(SandboxVerbs.list, "The sandboxes that live, oldest first", "listSandboxes"))
async def list_sandboxes(verbs: Given, metadata: Wanted = None) -> tuple[SandboxInfo, ...]:
    return await verbs.sandboxes.list(metadata)


@get(
    "/v1/runs/{run:str}/sandboxes",
    **of(SandboxVerbs.of_run, "The sandboxes that a run works in now", "listRunSandboxes"),
)
async def list_run_sandboxes(
    run: Annotated[str, PathParameter(description="A run's id, or the start of one.")], verbs: Given
) -> tuple[SandboxInfo, ...]:
    return await verbs.sandboxes.of_run(run)


@get("/v1/sandboxes/{sandbox:str}", **of(SandboxVerbs.get, "One sandbox", "getSandbox"))
async def get_sandbox(sandbox: SandboxName, verbs: Given) -> SandboxInfo:
    return await verbs.sandboxes.get(sandbox)


@patch("/v1/sandboxes/{sandbox:str}", **of(SandboxVerbs.change, "Change a sandbox", "changeSandbox"))
async def change_sandbox(sandbox: SandboxName, data: JSONBody[SandboxChange], verbs: Given) -> SandboxInfo:
    return await verbs.sandboxes.change(sandbox, data)


@get("/v1/sandboxes/{sandbox:str}/metrics", **of(SandboxVerbs.metrics, "What it uses", "getMetrics"))
async def get_metrics(sandbox: SandboxName, verbs: Given) -> SandboxMetrics:
    return await verbs.sandboxes.metrics(sandbox)


@post(
    "/v1/sandboxes/{sandbox:str}/token",
    **of(SandboxVerbs.token, "A token for the inside of this sandbox", "newSandboxToken", 201),
)
async def new_sandbox_token(sandbox: SandboxName, verbs: Given) -> SandboxToken:
    return await verbs.sandboxes.token(sandbox)


@post(
    "/v1/sandboxes/{sandbox:str}/addresses",
    **of(SandboxVerbs.address, "An address of a port that needs no token", "newPortAddress", 201),
)
async def new_port_address(sandbox: SandboxName, data: JSONBody[NewAddress], verbs: Given) -> PortAddress:
    return await verbs.sandboxes.address(sandbox, data.port)


@delete("/v1/sandboxes/{sandbox:str}", **of(SandboxVerbs.destroy, "Destroy a sandbox", "deleteSandbox"))
async def delete_sandbox(sandbox: SandboxName, verbs: Given) -> None:
    await verbs.sandboxes.destroy(sandbox)


@post("/v1/sandboxes/{sandbox:str}/exec", **of(SandboxVerbs.exec, "Run a command to its end", "exec", 200))
async def exec_command(sandbox: SandboxName, data: JSONBody[Exec], verbs: Given, wait: Wait) -> Executed:
    return await wait(verbs.sandboxes.exec(sandbox, data))


@post(
    "/v1/sandboxes/{sandbox:str}/execute", **of(SandboxVerbs.execute, "Run code to its end", "execute", 200)
)
async def execute_code(sandbox: SandboxName, data: JSONBody[Execute], verbs: Given, wait: Wait) -> Executed:
    return await wait(verbs.sandboxes.execute(sandbox, data))


@post(
    "/v1/sandboxes/{sandbox:str}/fork",
    **of(SandboxVerbs.fork, "Fork a sandbox that lives", "forkSandbox", 201),
)
async def fork_sandbox(
    sandbox: SandboxName, verbs: Given, wait: Wait, data: JSONBody[Fork] = _FORK
) -> tuple[SandboxInfo, ...]:
    return await wait(verbs.sandboxes.fork(sandbox, data.n))


@post(
    "/v1/sandboxes/{sandbox:str}/snapshots",
    **of(SnapshotVerbs.take, "Keep the files of a sandbox", "newSnapshot", 201),
)
async def new_snapshot(
    sandbox: SandboxName, verbs: Given, wait: Wait, data: JSONBody[NewSnapshot] = _SNAPSHOT
) -> SnapshotInfo:
    return await wait(verbs.snapshots.take(sandbox, data.name))


@get(
    "/v1/sandboxes/{sandbox:str}/snapshots",
    **of(SnapshotVerbs.list, "The snapshots of a sandbox, also of one that is gone", "listSandboxSnapshots"),
)
async def list_sandbox_snapshots(sandbox: SandboxName, verbs: Given) -> tuple[SnapshotInfo, ...]:
    return await verbs.snapshots.list(sandbox)


@get("/v1/snapshots", **of(SnapshotVerbs.list, "The snapshots there are, oldest first", "listSnapshots"))
async def list_snapshots(verbs: Given) -> tuple[SnapshotInfo, ...]:
    return await verbs.snapshots.list()


@get("/v1/snapshots/{snapshot:str}", **of(SnapshotVerbs.get, "One snapshot", "getSnapshot"))
async def get_snapshot(snapshot: Reference, verbs: Given) -> SnapshotInfo:
    return await verbs.snapshots.get(snapshot)


@delete("/v1/snapshots/{snapshot:str}", **of(SnapshotVerbs.remove, "Delete a snapshot", "deleteSnapshot"))
async def delete_snapshot(snapshot: Reference, verbs: Given) -> None:
    await verbs.snapshots.remove(snapshot)
