"""Reaching servers inside, through a real guest."""

import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import ByteStream, Process, SocketStream

from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol.link import Link

pytestmark = pytest.mark.anyio

OpenGuest = Callable[..., AbstractAsyncContextManager[tuple[Link, Process]]]
SELF = "--no-user-switch"
CONNECTIONS = 32


async def echo(client: SocketStream) -> None:
    # Who hangs up with something unread is no error of ours.
    with suppress(anyio.BrokenResourceError):
        async with client:
            async for data in client:
                await client.send(data)


@asynccontextmanager
async def server(host: str = "127.0.0.1") -> AsyncGenerator[int]:
    listener = await anyio.create_tcp_listener(local_host=host)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def everything(stream: ByteStream) -> bytes:
    return b"".join([data async for data in stream])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_server_inside_is_reached_on_either_loopback_address(
    open_guest: OpenGuest, host: str
) -> None:
    data = os.urandom(2_000_000)
    try:
        async with server(host) as port, open_guest(SELF) as (link, _):
            with anyio.fail_after(20):
                async with await link.dial(port) as stream, anyio.create_task_group() as tasks:

                    async def send() -> None:
                        await stream.send(data)
                        await stream.send_eof()

                    tasks.start_soon(send)
                    assert await everything(stream) == data
    except OSError as error:
        pytest.skip(f"no {host} on this machine: {error}")


async def test_many_connections_are_kept_apart_and_one_too_many_is_refused(open_guest: OpenGuest) -> None:
    async with server() as port, open_guest(SELF) as (link, _):
        streams = [await link.dial(port) for _ in range(CONNECTIONS)]
        for number, stream in enumerate(streams):
            await stream.send(b"%d" % number)
        for number, stream in enumerate(streams):
            assert await stream.receive() == b"%d" % number
        with pytest.raises(UserError) as caught:
            await link.dial(port)
        assert caught.value.code == "too_many_connections"
        for stream in streams:
            await stream.aclose()
        with anyio.fail_after(20):
            async with await link.dial(port) as stream:
                await stream.send(b"again")
                assert await stream.receive() == b"again"


async def test_a_port_where_nothing_listens_is_said_so(open_guest: OpenGuest) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with open_guest(SELF) as (link, _):
            for port, code in ((taken.getsockname()[1], "no_such_port"), (0, "bad_port"), (3128, "bad_port")):
                with pytest.raises(UserError) as caught:
                    await link.dial(port)
                assert caught.value.code == code


async def test_who_gives_up_dialling_leaves_no_connection_behind(open_guest: OpenGuest) -> None:
    async with server() as port, open_guest(SELF) as (link, _):
        for _ in range(3 * CONNECTIONS):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await link.dial(port)
        async with await link.dial(port) as stream:
            await stream.send(b"x")
            assert await stream.receive() == b"x"


async def test_an_unread_connection_stops_at_the_window(open_guest: OpenGuest) -> None:
    async with server() as port, open_guest(SELF) as (link, _):
        async with await link.dial(port) as stream:
            with anyio.move_on_after(0.5) as patience:
                await stream.send(bytes(50_000_000))
            assert patience.cancelled_caught
        async with await link.dial(port) as stream:
            await stream.send(b"fine")
            assert await stream.receive() == b"fine"


async def test_the_loss_of_the_sandbox_ends_connections_and_those_who_wait(open_guest: OpenGuest) -> None:
    async with server() as port, open_guest(SELF) as (link, process):
        stream = await link.dial(port)
        process.kill()
        with anyio.fail_after(60):
            assert await everything(stream) == b""
            with pytest.raises(SandboxLost):
                await link.dial(port)
