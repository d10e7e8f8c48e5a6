"""`cloister sandbox port`: forward a local port to a port in a sandbox."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.client.open import perform
from cloister.cli.options import SandboxName, put
from cloister.core.errors import CloisterError, HostError, sole
from cloister.core.text import one_line

if TYPE_CHECKING:
    from anyio.abc import ByteStream, SocketStream

    from cloister.app.verbs.api import Verbs


def port(
    ctx: typer.Context,
    sandbox: SandboxName,
    inside: Annotated[
        int, typer.Argument(metavar="PORT", min=1, max=65_535, help="The port in the sandbox.")
    ],
    listen: Annotated[
        int | None,
        typer.Option(
            "--listen",
            metavar="N",
            min=0,
            max=65_535,
            help="The local port; 0 takes any free port. Default: the same number.",
        ),
    ] = None,
) -> None:
    """Forward a port of this machine's loopback to a port in a sandbox until Ctrl-C."""

    async def work(verbs: "Verbs") -> None:
        found = (await verbs.sandboxes.resolve(sandbox)).id
        await _forward(verbs, found, inside, inside if listen is None else listen)

    perform(ctx, work)


async def _forward(verbs: "Verbs", sandbox: str, inside: int, number: int) -> None:
    import anyio
    from anyio.abc import SocketAttribute

    try:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=number)
    except OSError as error:
        raise HostError(
            "port_taken", f"Port {number} is not available here ({error.strerror}): choose one with --listen."
        ) from None
    real: int = listener.extra(SocketAttribute.local_port)  # noqa: S610 (not Django's)
    put(f"127.0.0.1:{real}", flush=True)
    put("Forwarding until Ctrl-C.", file=sys.stderr)

    async def serve(client: "SocketStream") -> None:
        await _serve(verbs, sandbox, inside, client)

    async with listener:
        await listener.serve(serve)


async def _serve(verbs: "Verbs", sandbox: str, inside: int, client: "SocketStream") -> None:
    """Serve one connection to its end. An error ends only this connection."""
    import anyio

    try:
        async with (
            client,
            verbs.sandboxes.dial(sandbox, inside) as stream,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_inwards, client, stream)
            async for data in stream:
                await client.send(data)
            tasks.cancel_scope.cancel()
    except* CloisterError as group:
        put(f"cloister: {one_line(str(sole(group)), 400)}", file=sys.stderr)
    except* (OSError, anyio.BrokenResourceError):
        pass


async def _inwards(client: "SocketStream", stream: "ByteStream") -> None:
    async for data in client:
        await stream.send(data)
    await stream.send_eof()
