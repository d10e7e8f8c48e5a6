"""A plain connection to a port inside a sandbox: `WS /v1/sandboxes/{sandbox}/dial/{port}`, bytes both ways."""

from typing import Annotated

import anyio
from anyio.abc import ByteStream
from litestar import websocket
from litestar.di import NamedDependency
from litestar.params import PathParameter

from cloister.app.verbs.api import SandboxVerbs
from cloister.server.routes import Given, of
from cloister.server.routes.sandboxes import SandboxName
from cloister.server.ws import NORMAL, TRY_LATER, Ending, Part, Socket, Sockets, Wire, converse

STALLED_SECONDS = 600.0
"""How long a server inside may leave what it was sent unread."""

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)

Port = Annotated[int, PathParameter(description="A port of the loopback inside.")]


@websocket("/v1/sandboxes/{sandbox:str}/dial/{port:int}", **of(SandboxVerbs.dial))
async def dial(
    socket: Socket,
    verbs: Given,
    sockets: NamedDependency[Sockets],
    sandbox: SandboxName,
    port: Port,
) -> None:
    async def parts(wire: Wire) -> tuple[Part, ...]:
        connection = verbs.sandboxes.dial(sandbox, port)

        async def run() -> Ending:
            async with connection as stream:
                await wire.send_record(connected=port)
                return await _both(wire, stream)

        return (run,)

    await converse(socket, sockets, parts)


async def _both(wire: Wire, stream: ByteStream) -> Ending:
    endings: list[Ending] = []
    async with anyio.create_task_group() as tasks:

        async def inwards() -> None:
            try:
                await _inwards(wire, stream)
            except TimeoutError:
                endings.append(Ending(TRY_LATER, "The server inside does not read."))
                tasks.cancel_scope.cancel()

        tasks.start_soon(inwards)
        async for data in stream:
            await wire.send_patiently(data)
        endings.append(Ending(NORMAL, "The server inside closed the connection."))
        tasks.cancel_scope.cancel()
    return endings[0]


async def _inwards(wire: Wire, stream: ByteStream) -> None:
    """What the client sends; a text message is its end. Goes on listening, to notice that the client left."""
    while True:
        message = await wire.receive()
        try:
            with anyio.fail_after(STALLED_SECONDS):
                await (stream.send_eof() if isinstance(message, str) else stream.send(message))
        except _GONE:
            continue  # it is closed inside; what it said before is still being passed on
