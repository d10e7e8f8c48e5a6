"""`cloister sandbox port`: a port inside a sandbox as a port of this machine."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import SandboxName, settings_of

if TYPE_CHECKING:
    from anyio.abc import SocketStream
    from websockets.asyncio.client import ClientConnection

    from cloister.cli.client.discover import Place


def port(
    ctx: typer.Context,
    sandbox: SandboxName,
    inside: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65_535, help="The port inside.")],
    listen: Annotated[
        int | None,
        typer.Option(
            "--listen", metavar="N", min=0, max=65_535, help="Port here; 0 is any. Default: the same."
        ),
    ] = None,
) -> None:
    """Forward a port of this machine's loopback to one inside, until Ctrl-C."""
    import anyio

    from cloister.cli.client.discover import living
    from cloister.cli.client.http import Client, no_such_sandbox

    place = living(settings_of(ctx).data_dir)
    if place is None:
        raise no_such_sandbox(sandbox)
    path = f"/v1/sandboxes/{Client(place).find_sandbox(sandbox).id}/dial/{inside}"
    anyio.run(_forward, place, path, inside if listen is None else listen)


async def _forward(place: "Place", path: str, number: int) -> None:
    import anyio
    from anyio.abc import SocketAttribute

    from cloister.core.errors import HostError

    try:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=number)
    except OSError as error:
        raise HostError(
            "port_taken", f"Port {number} cannot be used here ({error.strerror}): choose one with --listen."
        ) from None
    real: int = listener.extra(SocketAttribute.local_port)  # noqa: S610 (not Django's)
    print(f"127.0.0.1:{real}", flush=True)
    print("Forwarding until Ctrl-C.", file=sys.stderr)

    async def serve(client: "SocketStream") -> None:
        await _serve(place, path, client)

    async with listener:
        await listener.serve(serve)


async def _serve(place: "Place", path: str, client: "SocketStream") -> None:
    """One connection, to its end. What goes wrong ends it and nothing else."""
    import anyio

    from cloister.cli.client.stream import check_close, dial
    from cloister.core.errors import CloisterError, sole
    from cloister.core.text import one_line

    try:
        async with client, dial(place, path, patient=True) as socket, anyio.create_task_group() as tasks:
            tasks.start_soon(_inwards, client, socket)
            await _outwards(socket, client)
            tasks.cancel_scope.cancel()
            check_close(socket.close_code, socket.close_reason or "")
    except* CloisterError as group:
        print(f"cloister: {one_line(str(sole(group)), 400)}", file=sys.stderr)
    except* (OSError, anyio.BrokenResourceError):
        pass


async def _inwards(client: "SocketStream", socket: "ClientConnection") -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        async for data in client:
            await socket.send(data)
        await socket.send('{"eof": true}')
    except ConnectionClosed:
        return


async def _outwards(socket: "ClientConnection", client: "SocketStream") -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                await client.send(message)
    except ConnectionClosed:
        return
