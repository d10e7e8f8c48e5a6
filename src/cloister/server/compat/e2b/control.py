"""The control plane of e2b: sandboxes, their time and metadata, forks, snapshots, metrics."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.params import PathParameter
from msgspec import Meta

from cloister.app.verbs.api import SandboxVerbs, SnapshotVerbs, Verbs
from cloister.app.verbs.records import Exec, NewSandbox, SandboxChange
from cloister.core.errors import CloisterError, UserError
from cloister.sandbox.api import SNAPSHOT_PREFIX, SandboxInfo, SnapshotInfo
from cloister.server.compat.connect import record, unary
from cloister.server.compat.e2b import HOME, at
from cloister.server.errors import problem
from cloister.server.routes import Given, Wait, of
from cloister.server.routes.templates import log_progress

ENVD_VERSION = "0.6.4"
"""Decides which dialect its clients speak to the inside."""
TIMEOUT_SECONDS = 300
_PAGE = 100
_NUMBER = re.compile(r"[0-9]{1,9}")
_MIB = 1_048_576

Name = Annotated[str, PathParameter(description="A sandbox's id.")]
Any_ = Request[Any, Any, State]
Timeout = Annotated[int, Meta(ge=0, le=2**31)]


class NewE2bSandbox(msgspec.Struct, frozen=True, rename="camel"):
    """A request for a sandbox. What concerns its network and volumes is decided by our policy and ignored."""

    template_id: str = msgspec.field(default="base", name="templateID")
    timeout: Timeout = TIMEOUT_SECONDS
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None


class _Timeout(msgspec.Struct, frozen=True):
    timeout: Timeout | None = None
    count: Annotated[int, Meta(ge=1, le=64)] | None = None


class _Snapshot(msgspec.Struct, frozen=True):
    name: str | None = None


def opened(**more: Any) -> dict[str, Any]:
    """Arguments of routes whose bodies are read by hand, as the record of e2b."""
    return {"include_in_schema": False, **more}


@post(
    [at("/sandboxes"), at("/v2/sandboxes")],
    **of(SandboxVerbs.create, status=201),
    **opened(),
)
async def create(request: Any_, verbs: Given, wait: Wait) -> Response[dict[str, object]]:
    wish = await unary(NewE2bSandbox, request)
    key = request.headers.get("idempotency-key")
    new = record(
        NewSandbox,
        template=wish.template_id,
        ttl_seconds=max(1, wish.timeout),
        env=wish.env_vars or {},
        metadata=wish.metadata or {},
        task_id=None if key is None else f"e2b-{key[:190]}",
    )
    return Response(await wait(_create(verbs, new, domain_of(request))), status_code=201)


async def _create(verbs: Verbs, new: NewSandbox, domain: str) -> dict[str, object]:
    try:
        info, made = await verbs.sandboxes.create(new, log_progress)
    except UserError as error:
        if error.code != "unknown_template":
            raise
        # A snapshot's id is a template there.
        kept = msgspec.structs.replace(new, template=f"{SNAPSHOT_PREFIX}{new.template}")
        info, made = await verbs.sandboxes.create(kept, log_progress)
    if made:
        await furnish(verbs, info)
    return await reached(verbs, info, domain)


async def furnish(verbs: Verbs, info: SandboxInfo) -> None:
    """Give it the home directory under the name that code for e2b has in it."""
    # No program but `ln`: every sandbox waits for this.
    line = f'[ -e {HOME} ] || {{ home=~agent; [ "$home" != "~agent" ] || home=/home/agent; ln -s "$home" {HOME}; }}'
    await verbs.sandboxes.exec(info.id, Exec(("/bin/sh", "-c", line), user="root", cwd="/"))


def domain_of(request: Any_) -> str:
    """The domain whose names `PORT-SANDBOX.DOMAIN` lead to ports inside, with the port of this server."""
    _, colon, port = request.headers.get("host", "").rpartition(":")
    return f"localhost:{port}" if colon and port.isdigit() else "localhost"


async def reached(verbs: Verbs, info: SandboxInfo, domain: str) -> dict[str, object]:
    """What a client needs to reach the inside."""
    token = (await verbs.sandboxes.token(info.id)).token
    return {
        "templateID": info.template,
        "sandboxID": info.id,
        "clientID": "cloister",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": token,
        "trafficAccessToken": token,
        "domain": domain,
    }


def shown(info: SandboxInfo) -> dict[str, object]:
    return {
        "templateID": info.template,
        "sandboxID": info.id,
        "clientID": "cloister",
        "envdVersion": ENVD_VERSION,
        "startedAt": stamp(info.created_at),
        "endAt": stamp(info.expires_at),
        "cpuCount": max(1, round(info.quota.cpus)),
        "memoryMB": info.quota.memory_bytes // _MIB,
        "diskSizeMB": info.quota.disk_bytes // _MIB,
        "state": state(info),
        "metadata": info.metadata,
    }


def state(info: SandboxInfo) -> str:
    return "paused" if info.paused else "running"


def stamp(seconds: float) -> str:
    """A time as text; a guest may give a file one that no calendar has."""
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        at = datetime.fromtimestamp(0, UTC)
    return at.isoformat().replace("+00:00", "Z")


@get([at("/sandboxes"), at("/v2/sandboxes")], **of(SandboxVerbs.list), **opened())
async def listed(request: Any_, verbs: Given) -> Response[list[dict[str, object]]]:
    query = request.query_params
    # Keys and values are encoded once more than the query.
    try:
        pairs = parse_qsl(query.get("metadata", ""), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise UserError(
            "bad_metadata", "Metadata is asked for as KEY=VALUE, joined by &, at most 64."
        ) from None
    wanted = urlencode([(unquote(key), unquote(value)) for key, value in pairs])
    found = list(await verbs.sandboxes.list(wanted or None))
    if query.get("order") == "desc":
        found.reverse()
    if states := ",".join(query.getall("state", [])).split(",") if "state" in query else []:
        found = [info for info in found if state(info) in states]
    asked = query.get("limit", "")
    limit = int(asked) if _NUMBER.fullmatch(asked) else _PAGE
    ids = [str(info.id) for info in found]
    token = query.get("nextToken", "")
    start = ids.index(token) + 1 if token in ids else 0
    page = found[start : start + max(1, min(limit, _PAGE))]
    more = {"x-next-token": page[-1].id} if start + len(page) < len(found) else {}
    return Response([shown(info) for info in page], headers=more)


@get(at("/sandboxes/{sandbox:str}"), **of(SandboxVerbs.get), **opened())
async def detail(sandbox: Name, verbs: Given) -> dict[str, object]:
    return shown(await verbs.sandboxes.get(sandbox))


@delete(at("/sandboxes/{sandbox:str}"), **of(SandboxVerbs.destroy), **opened())
async def kill(sandbox: Name, verbs: Given) -> None:
    await verbs.sandboxes.destroy(sandbox)


@post(
    [at("/sandboxes/{sandbox:str}/timeout"), at("/sandboxes/{sandbox:str}/refreshes")],
    **of(SandboxVerbs.change, status=204),
    **opened(),
)
async def set_timeout(sandbox: Name, request: Any_, verbs: Given) -> None:
    wish = await unary(_Timeout, request)
    seconds = TIMEOUT_SECONDS if wish.timeout is None else wish.timeout
    await verbs.sandboxes.change(sandbox, SandboxChange(ttl_seconds=max(1, seconds)))


@post(
    [
        at("/sandboxes/{sandbox:str}/connect"),
        at("/v2/sandboxes/{sandbox:str}/connect"),
        at("/sandboxes/{sandbox:str}/resume"),
    ],
    **of(SandboxVerbs.change, status=200),
    **opened(),
)
async def connect(sandbox: Name, request: Any_, verbs: Given) -> dict[str, object]:
    wish = await unary(_Timeout, request)
    info = await verbs.sandboxes.get(sandbox)
    if info.paused:
        seconds = None if wish.timeout is None else max(1, wish.timeout)
        going_on = SandboxChange(ttl_seconds=seconds or TIMEOUT_SECONDS, paused=False)
        return await reached(verbs, await verbs.sandboxes.change(sandbox, going_on), domain_of(request))
    left = (wish.timeout or TIMEOUT_SECONDS) + info.created_at - info.expires_at
    if left > 0 or wish.timeout is not None:
        info = await verbs.sandboxes.change(
            sandbox, SandboxChange(ttl_seconds=max(1, wish.timeout or TIMEOUT_SECONDS))
        )
    return await reached(verbs, info, domain_of(request))


@post(at("/sandboxes/{sandbox:str}/pause"), **of(SandboxVerbs.change, status=204), **opened())
async def pause(sandbox: Name, verbs: Given) -> None:
    if (await verbs.sandboxes.get(sandbox)).paused:
        # Its client answers False then.
        raise UserError("sandbox_paused", "The sandbox is paused already.")
    await verbs.sandboxes.change(sandbox, SandboxChange(paused=True))


@post(at("/sandboxes/{sandbox:str}/fork"), **of(SandboxVerbs.fork, status=201), **opened())
async def fork(sandbox: Name, request: Any_, verbs: Given, wait: Wait) -> list[dict[str, object]]:
    wish = await unary(_Timeout, request)
    made: list[dict[str, object]] = []
    for info in await wait(verbs.sandboxes.fork(sandbox, wish.count or 1)):
        try:
            if wish.timeout is not None:
                await verbs.sandboxes.change(info.id, SandboxChange(ttl_seconds=max(1, wish.timeout)))
            made.append({"sandbox": await reached(verbs, info, domain_of(request))})
        except CloisterError as error:
            status, body = problem(error)
            made.append({"error": {"code": status, "message": body.message}})
    return made


@get(at("/sandboxes/{sandbox:str}/metrics"), **of(SandboxVerbs.metrics), **opened())
async def metrics(sandbox: Name, verbs: Given) -> list[dict[str, object]]:
    info, found = await verbs.sandboxes.get(sandbox), await verbs.sandboxes.metrics(sandbox)
    lived = max(0.001, found.at - info.created_at)
    return [
        {
            "timestamp": stamp(found.at),
            "timestampUnix": int(found.at),
            "cpuCount": max(1, round(found.cpus)),
            "cpuUsedPct": round(100 * found.cpu_seconds / lived, 2),
            "memUsed": found.memory_bytes,
            "memTotal": found.memory_limit_bytes,
            "memCache": 0,
            "diskUsed": found.disk_bytes or 0,
            "diskTotal": found.disk_limit_bytes,
        }
    ]


# Snapshots, which are templates to its clients.


@post(at("/sandboxes/{sandbox:str}/snapshots"), **of(SnapshotVerbs.take, status=201), **opened())
async def take_snapshot(sandbox: Name, request: Any_, verbs: Given, wait: Wait) -> dict[str, object]:
    wish = await unary(_Snapshot, request)
    return _snapshot(await wait(verbs.snapshots.take(sandbox, wish.name)))


@get(at("/snapshots"), **of(SnapshotVerbs.list), **opened())
async def snapshots(request: Any_, verbs: Given) -> list[dict[str, object]]:
    query = request.query_params
    found = await verbs.snapshots.list(query.get("sandboxID"))
    name = query.get("name")
    return [_snapshot(info) for info in found if name is None or name in (info.id, info.name)]


def _snapshot(info: SnapshotInfo) -> dict[str, object]:
    return {"snapshotID": info.id, "names": [info.name] if info.name else []}


@delete(at("/templates/{snapshot:str}"), **of(SnapshotVerbs.remove), **opened())
async def remove_snapshot(snapshot: Name, verbs: Given) -> None:
    await verbs.snapshots.remove(snapshot)


ROUTES = (
    create,
    listed,
    detail,
    kill,
    set_timeout,
    connect,
    pause,
    fork,
    metrics,
    take_snapshot,
    snapshots,
    remove_snapshot,
)
