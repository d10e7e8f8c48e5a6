"""The wire of Modbox: a sandbox by the name of a task, and an address of its own that runs code.

The address is a capability: the secret in it reaches the inside of this sandbox only, ends with it, and is in no log.
"""

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post, route
from litestar.datastructures import State
from litestar.params import PathParameter
from msgspec import Meta

from cloister.app.verbs.api import SandboxVerbs, TemplateVerbs, Verbs
from cloister.app.verbs.records import Execute, NewSandbox, RunCode
from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxInfo
from cloister.sandbox.templates.catalog import TemplateInfo
from cloister.server.auth import caller_of
from cloister.server.compat import BOX, MODBOX
from cloister.server.compat.connect import record, unary
from cloister.server.compat.e2b.control import opened, stamp, state
from cloister.server.routes import Given, Wait, of
from cloister.server.routes.templates import log_progress

_TASK = "modbox-"
"""Before the name of a task in our id of it."""
SECONDS = 600.0
_Asked = Request[Any, Any, State]
Name = Annotated[str, PathParameter(description="A sandbox's id, or the name of its task.")]
Secret = Annotated[str, PathParameter(description="The secret of the address.")]
Task = Annotated[str, Meta(min_length=1, max_length=190)]
_PYTHON = (None, "", "python", "python3", "py")


def at(path: str) -> str:
    return MODBOX + path


class _New(msgspec.Struct, frozen=True):
    task_id: Task | None = None
    image_id: str | None = None
    image: str | None = None
    ttl_seconds: float | None = None
    env_vars: dict[str, str] | None = None


class _Task(msgspec.Struct, frozen=True):
    task_id: Task


class _Code(msgspec.Struct, frozen=True):
    code: str
    language: str | None = None


async def _found(verbs: Verbs, name: str) -> SandboxInfo:
    """The sandbox with this id, or of this task. Raises `UserError` (`no_such_sandbox`)."""
    for info in await verbs.sandboxes.list():
        if name == info.id or info.task_id == _TASK + name:
            return info
    raise UserError("no_such_sandbox", f"There is no sandbox {name[:64]!r}, and none of that task.")


def _name(info: SandboxInfo) -> str:
    own = info.task_id is not None and info.task_id.startswith(_TASK)
    return (info.task_id or "").removeprefix(_TASK) if own else info.id


async def _shown(request: _Asked, verbs: Verbs, info: SandboxInfo) -> dict[str, object]:
    token = (await verbs.sandboxes.token(info.id)).token
    return {
        "id": info.id,
        "name": _name(info),
        "status": state(info),
        "image": info.template,
        "created_at": stamp(info.created_at),
        "updated_at": stamp(info.created_at),
        "expires_at": stamp(info.expires_at),
        "created_by": caller_of(request.scope).name,
        "sandbox_url": f"{str(request.base_url).rstrip('/')}{BOX}{token}",
        "capabilities": {"execute": "python,bash,sh"},
    }


@post([at("/sandboxes/provision"), at("/sandboxes")], **of(SandboxVerbs.create, status=201), **opened())
async def provision(request: _Asked, verbs: Given, wait: Wait) -> dict[str, object]:
    wish = await unary(_New, request)
    new = record(
        NewSandbox,
        template=wish.image_id or wish.image or "base",
        ttl_seconds=limits.TTL_SECONDS if wish.ttl_seconds is None else wish.ttl_seconds,
        env=wish.env_vars or {},
        task_id=None if wish.task_id is None else _TASK + wish.task_id,
    )
    info, _ = await wait(verbs.sandboxes.create(new, log_progress))
    found = await _shown(request, verbs, info)
    base = str(found["sandbox_url"])
    return {
        "success": True,
        "sandbox_id": info.id,
        "status": state(info),
        "sandbox_url": base,
        "endpoint": {"api_url": base, "base_url": base, "access_token": base.rpartition("/")[2]},
        "capabilities": found["capabilities"],
    }


@get(at("/sandboxes"), **of(SandboxVerbs.create), **opened())
async def listed(request: _Asked, verbs: Given) -> dict[str, object]:
    found: list[dict[str, object]] = []
    for info in await verbs.sandboxes.list():
        with suppress(UserError):  # it has ended meanwhile
            found.append(await _shown(request, verbs, info))
    return {"sandboxes": found, "total": len(found)}


@get(
    [at("/sandboxes/detail/{sandbox:str}"), at("/sandboxes/{sandbox:str}")],
    **of(SandboxVerbs.token),
    **opened(),
)
async def detail(sandbox: Name, request: _Asked, verbs: Given) -> dict[str, object]:
    return await _shown(request, verbs, await _found(verbs, sandbox))


@get(
    [at("/sandboxes/status/{sandbox:str}"), at("/sandboxes/{sandbox:str}/status")],
    **of(SandboxVerbs.list),
    **opened(),
)
async def status(sandbox: Name, verbs: Given) -> dict[str, object]:
    info = await _found(verbs, sandbox)
    return {"ready": not info.paused, "status": state(info), "name": _name(info)}


@post(
    [at("/sandboxes/wait"), at("/sandboxes/{sandbox:str}/wait")],
    **of(SandboxVerbs.list, status=200),
    **opened(),
)
async def ready(request: _Asked, verbs: Given) -> dict[str, object]:
    """A sandbox that is there is ready: provisioning answers when it is open."""
    named = request.path_params.get("sandbox") or (await unary(_Task, request)).task_id
    info = await _found(verbs, named)
    return {"ready": not info.paused, "status": state(info), "elapsed_seconds": 0.0}


@post(at("/sandboxes/destroy"), **of(SandboxVerbs.destroy, status=200), **opened())
async def destroy(request: _Asked, verbs: Given) -> dict[str, object]:
    info = await _found(verbs, (await unary(_Task, request)).task_id)
    await verbs.sandboxes.destroy(info.id)
    return {"success": True}


@delete(at("/sandboxes/{sandbox:str}"), **of(SandboxVerbs.destroy, status=200), **opened())
async def remove(sandbox: Name, verbs: Given) -> dict[str, object]:
    await verbs.sandboxes.destroy((await _found(verbs, sandbox)).id)
    return {"success": True}


@get(at("/sandbox-images"), **of(TemplateVerbs.list), **opened())
async def images(verbs: Given) -> dict[str, object]:
    found = [_image(info) for info in await verbs.templates.list()]
    return {"images": found, "total": len(found)}


@get(at("/sandbox-images/{image:str}"), **of(TemplateVerbs.get), **opened())
async def image(image: Name, verbs: Given) -> dict[str, object]:
    return _image(await verbs.templates.get(image))


@route(
    [at("/sandbox-images"), at("/sandbox-images/{image:str}")],
    http_method=["POST", "PUT", "PATCH", "DELETE"],
    **of(TemplateVerbs.describe, status=200),
    **opened(),
)
async def change_image() -> None:
    raise UserError(
        "bad_request", "Images are templates here: describe and build them with `cloister template`."
    )


def _image(info: TemplateInfo) -> dict[str, object]:
    made = stamp(0.0 if info.about is None else info.about.built_at)
    return {
        "id": info.name,
        "name": info.name,
        "image": info.name,
        "tag": "latest",
        "enabled": True,
        "is_default": info.name == "default",
        "memory_mb": Quota().memory_bytes // 1_048_576,
        "created_at": made,
        "updated_at": made,
    }


# The address of one sandbox. The guard has found the sandbox by the secret in the path.


@post(BOX + "{secret:str}/execute", **of(SandboxVerbs.run_code, status=200), **opened())
async def execute(secret: Secret, request: _Asked, verbs: Given, wait: Wait) -> Response[dict[str, object]]:
    wish = await unary(_Code, request)
    sandbox = caller_of(request.scope).sandbox
    if wish.language in _PYTHON:
        ran = await wait(verbs.sandboxes.run_code(sandbox, "default", RunCode(wish.code, seconds=SECONDS)))
        main = next((one.data.get("text/plain", "") for one in ran.results if one.main), None)
        return Response(
            {
                "success": ran.error is None,
                "stdout": ran.stdout,
                "stderr": ran.stderr if ran.error is None else ran.stderr + ran.error.traceback,
                "exit_code": 0 if ran.error is None else 1,
                "result": main,
                "results": [one.data for one in ran.results],
                "error": None if ran.error is None else f"{ran.error.name}: {ran.error.value}",
            }
        )
    program = msgspec.convert({"language": wish.language, "code": wish.code, "seconds": SECONDS}, Execute)
    done = await wait(verbs.sandboxes.execute(sandbox, program))
    return Response(
        {
            "success": done.ok,
            "stdout": done.stdout,
            "stderr": done.stderr,
            "exit_code": done.exit_code if done.exit_code is not None else 128 + (done.signal or 0),
            "result": None,
            "results": [],
            "error": None if done.ok else f"The program ended with status {done.exit_code}.",
        }
    )


@get(BOX + "{secret:str}/health", **of(SandboxVerbs.get), **opened())
async def health(secret: Secret, request: _Asked, verbs: Given) -> dict[str, object]:
    await verbs.sandboxes.get(caller_of(request.scope).sandbox)
    return {"status": "ok"}


ROUTES = (
    *(provision, listed, detail, status, ready, destroy, remove, images, image, change_image),
    *(execute, health),
)
