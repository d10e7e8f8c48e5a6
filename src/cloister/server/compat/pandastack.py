"""The wire of PandaStack: sandboxes, commands, files, code contexts, forks and snapshots."""

import codecs
import json
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.datastructures import State
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from cloister.app.verbs.api import FileVerbs, SandboxVerbs, SnapshotVerbs, TemplateVerbs, Verbs
from cloister.app.verbs.records import Exec, NewCommand, NewContext, NewSandbox, RunCode, SandboxChange
from cloister.core import limits
from cloister.core.computer import Entry, Exited, Output
from cloister.core.errors import CloisterError, UserError
from cloister.sandbox.api import SNAPSHOT_PREFIX, SandboxInfo, SnapshotInfo
from cloister.server.bodies import Streamed, body_of, read_on_after_errors
from cloister.server.compat import PANDASTACK
from cloister.server.compat.connect import record, unary
from cloister.server.compat.e2b.control import opened, stamp, state
from cloister.server.compat.live import Live, Tell
from cloister.server.errors import problem
from cloister.server.routes import Given, Wait, of
from cloister.server.routes.templates import log_progress

WORKSPACE = "/workspace"
"""Where code for PandaStack works."""
SECONDS = 900.0
_MIB = 1_048_576
_Asked = Request[Any, Any, State]
Name = Annotated[str, PathParameter(description="A sandbox's id.")]
Path = Annotated[str, QueryParameter(min_length=1, max_length=4_096)]
Seconds = Annotated[float, Meta(gt=0, le=3_600)]
Metadata = dict[str, str]


def at(path: str) -> str:
    return f"{PANDASTACK}/v1{path}"


class _New(msgspec.Struct, frozen=True):
    template: str = "code-interpreter"
    ttl_seconds: float | None = None
    persistent: bool = False
    metadata: Metadata = {}
    from_snapshot: str | None = None
    volumes: list[object] = []


class _Command(msgspec.Struct, frozen=True):
    cmd: str
    timeout_seconds: Seconds | None = None


class _Fork(msgspec.Struct, frozen=True):
    count: Annotated[int, Meta(ge=1, le=16)] = 1
    metadata: Metadata | None = None


class _Promote(msgspec.Struct, frozen=True):
    cleanup_siblings: bool = False
    tree_id: str | None = None


class _Lifecycle(msgspec.Struct, frozen=True):
    ttl_seconds: float | None = None
    persistent: bool | None = None


class _Session(msgspec.Struct, frozen=True):
    language: str = "python"


class _Run(msgspec.Struct, frozen=True):
    code: str
    timeout_ms: Annotated[float, Meta(gt=0, le=3_600_000)] | None = None


def shown(info: SandboxInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "template": info.template,
        "cpu": max(1, round(info.quota.cpus)),
        "memory_mb": info.quota.memory_bytes // _MIB,
        "status": state(info),
        "created_at": stamp(info.created_at),
        "metadata": info.metadata,
    }


@post(at("/sandboxes"), **of(SandboxVerbs.create, status=201), **opened())
async def create(request: _Asked, verbs: Given, wait: Wait) -> dict[str, object]:
    wish = await unary(_New, request)
    if wish.volumes:
        raise UserError("bad_request", "There are no volumes here: keep files in a snapshot.")
    kept = wish.from_snapshot
    new = record(
        NewSandbox,
        template=wish.template if kept is None else f"{SNAPSHOT_PREFIX}{kept}",
        ttl_seconds=wish.ttl_seconds or (limits.TTL_SECONDS_MAX if wish.persistent else limits.TTL_SECONDS),
        metadata=wish.metadata,
    )
    return await wait(_create(verbs, new)) | {"persistent": wish.persistent, "from_snapshot": kept}


async def _create(verbs: Verbs, new: NewSandbox) -> dict[str, object]:
    info, _ = await verbs.sandboxes.create(new, log_progress)
    line = f"[ -e {WORKSPACE} ] || ln -s /work {WORKSPACE}"
    await verbs.sandboxes.exec(info.id, Exec(("/bin/sh", "-c", line), user="root", cwd="/"))
    return shown(info)


@get(at("/sandboxes"), **of(SandboxVerbs.list), **opened())
async def listed(verbs: Given) -> dict[str, object]:
    return {"items": [shown(info) for info in await verbs.sandboxes.list()]}


@get(at("/sandboxes/{sandbox:str}"), **of(SandboxVerbs.get), **opened())
async def detail(sandbox: Name, verbs: Given) -> dict[str, object]:
    return shown(await verbs.sandboxes.get(sandbox))


@delete(at("/sandboxes/{sandbox:str}"), **of(SandboxVerbs.destroy), **opened())
async def kill(sandbox: Name, verbs: Given) -> None:
    await verbs.sandboxes.destroy(sandbox)


@post(at("/sandboxes/{sandbox:str}/exec"), **of(SandboxVerbs.exec, status=200), **opened())
async def execute(sandbox: Name, request: _Asked, verbs: Given, wait: Wait) -> Response[dict[str, object]]:
    wish = await unary(_Command, request)
    command = Exec(command=wish.cmd, seconds=wish.timeout_seconds or SECONDS)
    done = await wait(verbs.sandboxes.exec(sandbox, command))
    if done.killed == "time":
        # Its client knows a timeout by this word.
        return Response({"error": "command timeout", "code": "timeout"}, status_code=500)
    return Response(
        {
            "stdout": done.stdout,
            "stderr": done.stderr,
            "exit_code": _status(done.exit_code, done.signal),
            "duration_ms": int(done.seconds * 1000),
        }
    )


def _status(code: int | None, signal: int | None) -> int:
    return 128 + (signal or 0) if code is None else code


@post(at("/sandboxes/{sandbox:str}/exec/stream"), **of(SandboxVerbs.process, status=200), **opened())
async def stream(sandbox: Name, request: _Asked, verbs: Given) -> Live:
    wish = await unary(_Command, request)
    command = NewCommand(command=wish.cmd, seconds=wish.timeout_seconds)
    running = verbs.sandboxes.process(sandbox, command)

    async def produce(tell: Tell) -> None:
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("out", "err")}
        async with running as process:
            await process.send_eof()
            async for item in process:
                match item:
                    case Output():
                        if text := decoders[item.stream].decode(item.data):
                            await tell(event(f"std{item.stream}", {"chunk": text}))
                    case Exited() if item.killed == "time":
                        await tell(event("error", {"error": "command timeout"}))
                    case Exited():
                        await tell(event("exit", {"exit_code": _status(item.code, item.signal)}))

    return Live(produce, "text/event-stream; charset=utf-8", last_event, b": beat\n\n")


def event(name: str, data: dict[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def last_event(failure: Exception | None) -> bytes:
    return b"" if failure is None else event("error", {"error": problem(failure)[1].message})


# Files.


@get(at("/sandboxes/{sandbox:str}/fs"), **of(FileVerbs.read), **opened(media_type="application/octet-stream"))
async def read_file(sandbox: Name, path: Path, verbs: Given) -> Response[bytes]:
    file = verbs.files.read(sandbox, path)
    return Streamed(lambda: file)


@put(
    at("/sandboxes/{sandbox:str}/fs"),
    **of(FileVerbs.write, status=200),
    **opened(request_max_body_size=None),
)
async def write_file(sandbox: Name, path: Path, request: _Asked, verbs: Given) -> dict[str, object]:
    file = verbs.files.write(sandbox, path)
    size = 0
    async with read_on_after_errors(request), file as sink:
        async for data in body_of(request):
            size += len(data)
            await sink.send(data)
    return {"path": path, "bytes": size}


@get(at("/sandboxes/{sandbox:str}/fs/dir"), **of(FileVerbs.list), **opened())
async def list_dir(sandbox: Name, verbs: Given, path: Path = "/") -> dict[str, object]:
    return {"entries": [_entry(entry) for entry in await verbs.files.list(sandbox, path)]}


@get(at("/sandboxes/{sandbox:str}/fs/stat"), **of(FileVerbs.stat), **opened())
async def stat_file(sandbox: Name, path: Path, verbs: Given) -> dict[str, object]:
    return _entry(await verbs.files.stat(sandbox, path))


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "is_dir": entry.kind == "dir",
        "size": entry.size,
        "mode": f"{entry.mode & 0o7777:04o}",
        "mtime": int(entry.modified),
    }


# Forks and snapshots.


@post(
    [at("/sandboxes/{sandbox:str}/fork"), at("/sandboxes/{sandbox:str}/fork-tree")],
    **of(SandboxVerbs.fork, status=201),
    **opened(),
)
async def fork(sandbox: Name, request: _Asked, verbs: Given, wait: Wait) -> dict[str, object]:
    wish = await unary(_Fork, request)
    made = await wait(verbs.sandboxes.fork(sandbox, wish.count))
    if wish.metadata is not None:
        made = [
            await verbs.sandboxes.change(
                info.id, record(SandboxChange, metadata=info.metadata | wish.metadata)
            )
            for info in made
        ]
    if not request.url.path.endswith("fork-tree"):
        return shown(made[0])
    return {"tree_id": sandbox, "children": [shown(info) for info in made]}


@post(at("/sandboxes/{sandbox:str}/promote"), **of(SandboxVerbs.destroy, status=200), **opened())
async def promote(sandbox: Name, request: _Asked, verbs: Given) -> dict[str, object]:
    wish = await unary(_Promote, request)
    own = await verbs.sandboxes.get(sandbox)
    tree = wish.tree_id or own.parent
    deleted: list[str] = []
    failures: list[str] = []
    if wish.cleanup_siblings and tree is not None and tree == own.parent:
        for info in await verbs.sandboxes.list():
            if info.parent == tree and info.id != own.id:
                try:
                    await verbs.sandboxes.destroy(info.id)
                    deleted.append(info.id)
                except CloisterError:
                    failures.append(info.id)
    return {"winner": own.id, "tree_id": tree, "deleted": deleted, "failures": failures}


@post(at("/sandboxes/{sandbox:str}/snapshots"), **of(SnapshotVerbs.take, status=201), **opened())
async def take_snapshot(sandbox: Name, verbs: Given, wait: Wait) -> dict[str, object]:
    return _snapshot(await wait(verbs.snapshots.take(sandbox)))


@get(at("/snapshots"), **of(SnapshotVerbs.list), **opened())
async def snapshots(
    verbs: Given, sandbox_id: Annotated[str | None, QueryParameter()] = None
) -> dict[str, object]:
    return {"snapshots": [_snapshot(info) for info in reversed(await verbs.snapshots.list(sandbox_id))]}


@get(at("/snapshots/{snapshot:str}"), **of(SnapshotVerbs.get), **opened())
async def snapshot(snapshot: Name, verbs: Given) -> dict[str, object]:
    return _snapshot(await verbs.snapshots.get(snapshot))


@delete(at("/snapshots/{snapshot:str}"), **of(SnapshotVerbs.remove), **opened())
async def remove_snapshot(snapshot: Name, verbs: Given) -> None:
    await verbs.snapshots.remove(snapshot)


def _snapshot(info: SnapshotInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "sandbox_id": info.sandbox,
        "template": info.template,
        "size_bytes": info.size_bytes,
        "created_at": stamp(info.created_at),
    }


# Code contexts, time to live, ports, templates.


@post(at("/sandboxes/{sandbox:str}/repl/sessions"), **of(SandboxVerbs.new_context, status=201), **opened())
async def new_session(sandbox: Name, request: _Asked, verbs: Given) -> dict[str, object]:
    wish = await unary(_Session, request)
    made = await verbs.sandboxes.new_context(
        sandbox, msgspec.convert({"language": wish.language}, NewContext)
    )
    return {"id": made.id, "language": made.language}


@post(
    at("/sandboxes/{sandbox:str}/repl/sessions/{session:str}/run"),
    **of(SandboxVerbs.run_code, status=200),
    **opened(),
)
async def run_session(
    sandbox: Name, session: Name, request: _Asked, verbs: Given, wait: Wait
) -> Response[dict[str, object]]:
    wish = await unary(_Run, request)
    code = RunCode(wish.code, seconds=(wish.timeout_ms or SECONDS * 1000) / 1000)
    ran = await wait(verbs.sandboxes.run_code(sandbox, session, code))
    if ran.timed_out:
        return Response({"error": "code timeout", "code": "timeout"}, status_code=500)
    return Response(
        {
            "results": [one.data for one in ran.results],
            "stdout": ran.stdout,
            "stderr": ran.stderr,
            "error": None if ran.error is None else ran.error.traceback,
            "exit": 0 if ran.error is None else 1,
            "duration_ms": int(ran.seconds * 1000),
        }
    )


@delete(
    at("/sandboxes/{sandbox:str}/repl/sessions/{session:str}"), **of(SandboxVerbs.remove_context), **opened()
)
async def end_session(sandbox: Name, session: Name, verbs: Given) -> None:
    await verbs.sandboxes.remove_context(sandbox, session)


@patch(at("/sandboxes/{sandbox:str}/lifecycle"), **of(SandboxVerbs.change), **opened())
async def set_lifecycle(sandbox: Name, request: _Asked, verbs: Given) -> dict[str, object]:
    wish = await unary(_Lifecycle, request)
    seconds = limits.TTL_SECONDS_MAX if wish.persistent else wish.ttl_seconds
    if wish.persistent is False:
        seconds = seconds or limits.TTL_SECONDS
    return _lifecycle(await verbs.sandboxes.change(sandbox, SandboxChange(ttl_seconds=seconds)))


@post(
    [at("/sandboxes/{sandbox:str}/pause"), at("/sandboxes/{sandbox:str}/hibernate")],
    **of(SandboxVerbs.change, status=200),
    **opened(),
)
async def pause(sandbox: Name, verbs: Given) -> dict[str, object]:
    return shown(await verbs.sandboxes.change(sandbox, SandboxChange(paused=True)))


@post(
    [at("/sandboxes/{sandbox:str}/resume"), at("/sandboxes/{sandbox:str}/wake")],
    **of(SandboxVerbs.change, status=200),
    **opened(),
)
async def resume(sandbox: Name, verbs: Given) -> dict[str, object]:
    return shown(await verbs.sandboxes.change(sandbox, SandboxChange(paused=False)))


@get(at("/sandboxes/{sandbox:str}/lifecycle"), **of(SandboxVerbs.get), **opened())
async def lifecycle(sandbox: Name, verbs: Given) -> dict[str, object]:
    return _lifecycle(await verbs.sandboxes.get(sandbox))


def _lifecycle(info: SandboxInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "ttl_seconds": int(info.expires_at - info.created_at),
        "expires_at": stamp(info.expires_at),
    }


@get(at("/sandboxes/{sandbox:str}/ports"), **of(SandboxVerbs.metrics), **opened())
async def ports(sandbox: Name, verbs: Given) -> dict[str, object]:
    return {"ports": [{"port": port} for port in (await verbs.sandboxes.metrics(sandbox)).ports]}


@get(at("/templates"), **of(TemplateVerbs.list), **opened())
async def templates(verbs: Given) -> dict[str, object]:
    return {"items": [{"name": info.name} for info in await verbs.templates.list()]}


@get(at("/templates/{template:str}"), **of(TemplateVerbs.get), **opened())
async def template(template: Annotated[str, PathParameter()], verbs: Given) -> dict[str, object]:
    return {"name": (await verbs.templates.get(template)).name}


@delete(at("/templates/{template:str}"), **of(TemplateVerbs.remove), **opened())
async def remove_template(template: Annotated[str, PathParameter()], verbs: Given) -> None:
    await verbs.templates.remove(template)


@post(at("/templates/build"), **of(TemplateVerbs.build, status=201), **opened())
async def build_template() -> None:
    raise UserError("bad_request", "Templates are described and built with `cloister template`.")


@get(at("/templates/builds"), **of(TemplateVerbs.list), **opened())
async def builds() -> dict[str, object]:
    return {"items": []}


@get(
    [at("/templates/builds/{build:str}"), at("/templates/builds/{build:str}/logs")],
    **of(TemplateVerbs.list),
    **opened(),
)
async def build(build: Annotated[str, PathParameter()]) -> None:
    raise UserError("no_such_build", f"There is no build {build[:64]}: none begins over this wire.")


ROUTES = tuple(
    route
    for route in (
        *(create, listed, detail, kill, execute, stream, read_file, write_file, list_dir, stat_file, fork),
        *(promote, take_snapshot, snapshots, snapshot, remove_snapshot, new_session, run_session),
        *(end_session, set_lifecycle, lifecycle, pause, resume, ports, templates),
        *(template, remove_template, build_template, builds, build),
    )
)
