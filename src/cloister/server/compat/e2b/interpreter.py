"""The code interpreter of e2b: code in contexts, told as lines of JSON."""

import math
import time
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream
from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.params import PathParameter

from cloister.app.verbs.api import SandboxVerbs
from cloister.app.verbs.records import SECONDS_MAX, Execute, NewContext, RunCode
from cloister.core.computer import Stream
from cloister.core.errors import UserError, sole
from cloister.sandbox.code.contexts import DEFAULT, CodeContext, CodeResult
from cloister.server.compat.connect import unary
from cloister.server.compat.e2b import HOME, at, placed, sandbox_of
from cloister.server.compat.e2b.control import opened
from cloister.server.compat.live import Live, Tell
from cloister.server.errors import problem
from cloister.server.routes import Given, of

_Asked = Request[Any, Any, State]
Name = Annotated[str, PathParameter(description="A context's id.")]
_PYTHON = (None, "", "python", "python3")
_LINE_CHARS = 8_192
"""A longer line goes out in pieces."""
_BEAT = b'{"type":"keepalive"}\n'
_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/javascript": "javascript",
}


class _Run(msgspec.Struct, frozen=True):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class _New(msgspec.Struct, frozen=True):
    language: str | None = None
    cwd: str | None = None


@post(at("/execute"), **of(SandboxVerbs.run_code, status=200), **opened())
async def execute(request: _Asked, verbs: Given) -> Live:
    sandbox, wish = sandbox_of(request), await unary(_Run, request)
    context, env = wish.context_id or DEFAULT, wish.env_vars or {}

    async def python(tell: Tell) -> None:
        code = RunCode(wish.code, seconds=SECONDS_MAX, env=env)
        # Without a limit here: what one cell may print has one.
        send, receive = anyio.create_memory_object_stream[dict[str, object]](math.inf)
        try:
            async with receive, anyio.create_task_group() as tasks, send:
                tasks.start_soon(_forward, receive, tell)
                lines = _Lines(send.send_nowait)
                ran = await verbs.sandboxes.run_code(sandbox, context, code, lines.take)
                lines.end()
                for record in _records(ran):
                    send.send_nowait(record)
        except BaseExceptionGroup as group:
            raise sole(group) from None

    async def shell(tell: Tell) -> None:
        done = await verbs.sandboxes.execute(
            sandbox, Execute("bash", wish.code, cwd=HOME, env=env, seconds=SECONDS_MAX)
        )
        for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            if text:
                await tell(_line({"type": name, "text": text, "timestamp": time.time_ns()}))
        if not done.ok:
            status = f"exit status {done.exit_code}"
            await tell(
                _line({"type": "error", "name": "ExitError", "value": status, "traceback": done.stderr})
            )

    if wish.language in _PYTHON or wish.context_id is not None:
        return Live(python, "application/json", _last, _BEAT)
    if wish.language != "bash":
        raise UserError(
            "bad_request", "The language must be python or bash: there is no other interpreter here."
        )
    return Live(shell, "application/json", _last, _BEAT)


async def _forward(records: MemoryObjectReceiveStream[dict[str, object]], tell: Tell) -> None:
    async for record in records:
        await tell(_line(record))


class _Lines:
    """Output as whole lines: a program may write one in pieces."""

    def __init__(self, told: Callable[[dict[str, object]], None]) -> None:
        self._told = told
        self._rest: dict[str, str] = {"out": "", "err": ""}

    def take(self, stream: Stream, text: str) -> None:
        whole, end, rest = (self._rest[stream] + text).rpartition("\n")
        if len(rest) > _LINE_CHARS:
            whole, end, rest = whole + end, rest, ""
        self._rest[stream] = rest
        self._tell(stream, whole + end)

    def end(self) -> None:
        for stream, rest in self._rest.items():
            self._tell(stream, rest)

    def _tell(self, stream: str, text: str) -> None:
        if text:
            self._told({"type": f"std{stream}", "text": text, "timestamp": time.time_ns()})


def _records(ran: CodeResult) -> list[dict[str, object]]:
    """What is left to tell of code that has ended: its output went out as it came."""
    found: list[dict[str, object]] = []
    for one in ran.results:
        data: dict[str, object] = {_NAMES[mime]: text for mime, text in one.data.items() if mime in _NAMES}
        if raw := one.data.get("application/json"):
            data["json"] = _plain(raw)
        found.append({"type": "result", "is_main_result": one.main, **data})
    if ran.error is not None:
        error = {"name": ran.error.name, "value": ran.error.value, "traceback": ran.error.traceback}
        found.append({"type": "error", **error})
    return [*found, {"type": "number_of_executions", "execution_count": ran.count}]


def _plain(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text


def _line(record: dict[str, object]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _last(failure: Exception | None) -> bytes:
    if failure is None:
        return b""
    said = problem(failure)[1]
    return _line({"type": "error", "name": said.code, "value": said.message, "traceback": said.message})


@post(at("/contexts"), **of(SandboxVerbs.new_context, status=201), **opened())
async def new_context(request: _Asked, verbs: Given) -> dict[str, object]:
    wish = await unary(_New, request)
    if wish.language not in _PYTHON:
        raise UserError("bad_request", "A context is for python: there is no other interpreter here.")
    cwd = placed(wish.cwd or HOME)
    return _shown(await verbs.sandboxes.new_context(sandbox_of(request), NewContext(cwd=cwd)))


def _shown(context: CodeContext) -> dict[str, object]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}


@get(at("/contexts"), **of(SandboxVerbs.contexts), **opened())
async def list_contexts(request: _Asked, verbs: Given) -> list[dict[str, object]]:
    return [_shown(context) for context in await verbs.sandboxes.contexts(sandbox_of(request))]


@post(at("/contexts/{context:str}/restart"), **of(SandboxVerbs.restart_context, status=200), **opened())
async def restart_context(context: Name, request: _Asked, verbs: Given) -> dict[str, object]:
    return _shown(await verbs.sandboxes.restart_context(sandbox_of(request), context))


@delete(at("/contexts/{context:str}"), **of(SandboxVerbs.remove_context), **opened())
async def remove_context(context: Name, request: _Asked, verbs: Given) -> None:
    await verbs.sandboxes.remove_context(sandbox_of(request), context)


ROUTES = (execute, new_context, list_contexts, restart_context, remove_context)
