"""Logs as other services' clients read them: what the background commands of a sandbox have printed, line by line."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from litestar import Request, Response, get
from litestar.datastructures import State
from litestar.params import PathParameter

from cloister.app.verbs.api import SandboxVerbs, Verbs
from cloister.core.errors import UserError
from cloister.server.compat.e2b import at as at_e2b
from cloister.server.compat.e2b.control import opened, stamp
from cloister.server.compat.live import Live, Tell
from cloister.server.compat.pandastack import at, event, last_event
from cloister.server.routes import Given, of

COMMANDS = 16
"""Of so many commands, the newest ones."""
LOG_BYTES = 1_048_576
_LOOK_SECONDS = 0.5
_STREAMS = {"stdout": ("out",), "stderr": ("err",)}
Name = Annotated[str, PathParameter(description="A sandbox's id.")]


async def _printed(verbs: Verbs, sandbox: str, streams: tuple[str, ...], seen: dict[str, int]) -> list[str]:
    """The lines that were printed after `seen`, which remembers how far each command was read."""
    lines: list[str] = []
    left = LOG_BYTES
    for command in (await verbs.sandboxes.commands(sandbox))[-COMMANDS:]:
        if left <= 0:
            break
        after = seen.get(command.id, 0)
        page = await verbs.sandboxes.output(sandbox, command.id, after)
        data = b"".join(piece.data for piece in page.output if piece.stream in streams)
        seen[command.id] = page.next_offset
        left -= len(data)
        lines += data.decode("utf-8", errors="replace").splitlines()
    return lines


async def _living(verbs: Verbs, sandbox: str) -> AsyncIterator[None]:
    """Look again and again while the sandbox lives."""
    while True:
        try:
            await verbs.sandboxes.get(sandbox)
        except UserError:
            return
        yield
        await anyio.sleep(_LOOK_SECONDS)


@get(at("/sandboxes/{sandbox:str}/logs"), **of(SandboxVerbs.output), **opened())
async def pandastack_logs(
    sandbox: Name, request: Request[Any, Any, State], verbs: Given
) -> Live | Response[str]:
    query = request.query_params
    streams, seen = _STREAMS.get(query.get("stream", ""), ("out", "err")), dict[str, int]()
    if query.get("follow") not in ("true", "1"):
        return Response("\n".join(await _printed(verbs, sandbox, streams, seen)), media_type="text/plain")

    async def produce(tell: Tell) -> None:
        async for _ in _living(verbs, sandbox):
            for line in await _printed(verbs, sandbox, streams, seen):
                await tell(event("log", {"line": line}))

    await verbs.sandboxes.get(sandbox)
    return Live(produce, "text/event-stream; charset=utf-8", last_event, b": beat\n\n")


@get(at_e2b("/v2/sandboxes/{sandbox:str}/logs"), **of(SandboxVerbs.output), **opened())
async def e2b_logs(sandbox: Name, verbs: Given) -> dict[str, object]:
    now = stamp(time.time())
    lines = await _printed(verbs, sandbox, ("out", "err"), {})
    return {"logs": [{"timestamp": now, "level": "info", "message": line, "fields": {}} for line in lines]}


ROUTES = (pandastack_logs, e2b_logs)
