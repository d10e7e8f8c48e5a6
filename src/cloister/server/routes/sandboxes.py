"""Routes of sandboxes made by hand: create, look, run commands and code, destroy."""

import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from cloister.core import limits
from cloister.core.computer import WORK_DIR, Command, Finished, Killed, User
from cloister.core.errors import UserError
from cloister.core.requests import Quota, Tier
from cloister.core.text import decode
from cloister.sandbox.api import SNAPSHOT_PREFIX, Sandbox, SandboxInfo, SandboxSpec
from cloister.sandbox.pool import PoolInfo
from cloister.server.bodies import while_wanted
from cloister.server.routes.templates import log_progress
from cloister.server.ws import Sockets

if TYPE_CHECKING:
    from cloister.app.wiring import App

SECONDS_MAX = 3_600.0
"""Longest command that a request waits for."""

SandboxName = Annotated[str, PathParameter(description="A sandbox's id.")]
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]

INTERPRETERS: dict[str, tuple[str, str]] = {
    "python": ("python3", ".py"),
    "bash": ("/bin/bash", ".sh"),
    "sh": ("/bin/sh", ".sh"),
}
"""Language → interpreter in the template and the ending of the code's file."""


class NewSandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a sandbox."""

    template: str = "default"
    tier: Tier = "auto"
    quota: Quota | None = None
    """None is the configured quota."""
    ttl_seconds: Annotated[float, Meta(ge=1, le=limits.TTL_SECONDS_MAX)] = limits.TTL_SECONDS
    """The sandbox ends by itself after this."""
    env: dict[str, str] = {}
    task_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Chosen by the caller: the same one gives the same sandbox while it lives."""


class Exec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command: `argv`, or `command` for a line that bash runs; exactly one of them."""

    argv: tuple[str, ...] | None = None
    command: str | None = None
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    user: User = "agent"
    seconds: Seconds = limits.COMMAND_SECONDS
    stdin: str = ""


class Execute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program in one of the languages that the template can run."""

    language: Literal["python", "bash", "sh"]
    code: str
    cwd: str = WORK_DIR
    env: dict[str, str] = {}
    user: User = "agent"
    seconds: Seconds = limits.COMMAND_SECONDS
    stdin: str = ""


class Executed(msgspec.Struct, frozen=True):
    """A command that ended. What it printed is untrusted; invalid UTF-8 in it is replaced."""

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    killed: Killed | None
    """Why we ended it; None when it ended by itself."""
    stdout: str
    stderr: str
    seconds: float
    truncated: bool
    """Whether it was ended because it printed too much."""


@post(
    "/v1/sandboxes",
    summary="Open a sandbox",
    operation_id="newSandbox",
    status_code=201,
    responses={
        200: ResponseSpec(SandboxInfo, description="The same task_id: it lives.", generate_examples=False)
    },
)
async def new_sandbox(
    data: JSONBody[NewSandbox],
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Response[SandboxInfo]:
    spec = SandboxSpec(
        template=data.template,
        tier=data.tier,
        quota=data.quota or app.settings.file.quota,
        ttl_seconds=data.ttl_seconds,
        env=data.env,
    )

    async def work() -> tuple[SandboxInfo, bool]:
        if not spec.template.startswith(SNAPSHOT_PREFIX):
            await app.workshop.prepare(spec.template, log_progress)
        return await app.sandboxes.create(spec, data.task_id)

    info, made = await while_wanted(request, sockets.leaving, work)
    return Response(info, status_code=201 if made else 200)


@get("/v1/pool", summary="The sandboxes that are kept warm", operation_id="getPool")
async def get_pool(app: NamedDependency["App"]) -> tuple[PoolInfo, ...]:
    return app.pool.info()


@get("/v1/sandboxes", summary="The sandboxes that live, oldest first", operation_id="listSandboxes")
async def list_sandboxes(app: NamedDependency["App"]) -> tuple[SandboxInfo, ...]:
    return app.sandboxes.list()


@get("/v1/sandboxes/{sandbox:str}", summary="One sandbox", operation_id="getSandbox")
async def get_sandbox(sandbox: SandboxName, app: NamedDependency["App"]) -> SandboxInfo:
    return app.sandboxes.get(sandbox).info


@delete("/v1/sandboxes/{sandbox:str}", summary="Destroy a sandbox", operation_id="deleteSandbox")
async def delete_sandbox(sandbox: SandboxName, app: NamedDependency["App"]) -> None:
    await app.sandboxes.close(sandbox)


@post(
    "/v1/sandboxes/{sandbox:str}/exec",
    summary="Run a command to its end",
    operation_id="exec",
    status_code=200,
)
async def exec_command(
    sandbox: SandboxName,
    data: JSONBody[Exec],
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Executed:
    target = app.sandboxes.get(sandbox)
    command = _command(argv_of(data.argv, data.command), data)

    async def work() -> Finished:
        return await target.run(command, data.stdin.encode())

    return _executed(await while_wanted(request, sockets.leaving, work))


@post(
    "/v1/sandboxes/{sandbox:str}/execute",
    summary="Run code to its end",
    operation_id="execute",
    status_code=200,
)
async def execute_code(
    sandbox: SandboxName,
    data: JSONBody[Execute],
    app: NamedDependency["App"],
    sockets: NamedDependency[Sockets],
    request: Request[Any, Any, State],
) -> Executed:
    target = app.sandboxes.get(sandbox)

    async def work() -> Finished:
        return await _run_code(target, data)

    return _executed(await while_wanted(request, sockets.leaving, work))


async def _run_code(sandbox: Sandbox, request: Execute) -> Finished:
    """The code goes in as a file, so that it is never part of a command line and stdin stays free."""
    interpreter, ending = INTERPRETERS[request.language]
    path = f"/tmp/code-{secrets.token_hex(8)}{ending}"  # noqa: S108 (the guest's /tmp, not ours)
    await sandbox.write(path, request.code.encode())
    try:
        return await sandbox.run(_command((interpreter, path), request), request.stdin.encode())
    finally:
        with anyio.move_on_after(5, shield=True):
            await sandbox.run(Command(("rm", "-f", path), cwd="/"))


def argv_of(argv: tuple[str, ...] | None, line: str | None) -> tuple[str, ...]:
    """The one of both that is given. Raises `UserError` (`bad_command`)."""
    match argv, line:
        case None, str() if line.strip():
            return ("/bin/bash", "-c", line)
        case tuple(), None if argv:
            return argv
        case _:
            raise UserError("bad_command", "Give either argv, a list of words, or command, a line for bash.")


def _command(argv: tuple[str, ...], request: Exec | Execute) -> Command:
    return Command(argv, cwd=request.cwd, env=request.env, user=request.user, seconds=request.seconds)


def _executed(finished: Finished) -> Executed:
    exited = finished.exited
    return Executed(
        exit_code=exited.code,
        signal=exited.signal,
        killed=exited.killed,
        stdout=decode(finished.out),
        stderr=decode(finished.err),
        seconds=exited.seconds,
        truncated=exited.killed == "output",
    )


ROUTES = (
    get_pool,
    new_sandbox,
    list_sandboxes,
    get_sandbox,
    delete_sandbox,
    exec_command,
    execute_code,
)
