import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import anyio
import pytest
from anyio.abc import ByteStream, Process

from cloister.core import limits
from cloister.core.computer import Command
from cloister.sandbox.protocol.link import Link

pytestmark = pytest.mark.anyio

OpenGuest = Callable[..., AbstractAsyncContextManager[tuple[Link, Process]]]
SELF = "--no-user-switch"

ECHO = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    s.sendall(sys.stdin.buffer.read())
    s.shutdown(socket.SHUT_WR)
    while data := s.recv(65536):
        sys.stdout.buffer.write(data)
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else is given meanwhile: it is bound here, and the guest listens there."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def python(code: str, port: int) -> Command:
    return Command(("python3", "-c", code, str(port)), cwd="/", seconds=30)


async def test_a_program_reaches_the_door_through_the_proxy_port(open_guest: OpenGuest, port: int) -> None:
    data = os.urandom(3_000_000)

    async def door(stream: ByteStream) -> None:
        async for received in stream:
            await stream.send(received)
        await stream.send_eof()

    async with open_guest(SELF, door=door, proxy_port=port) as (link, _):
        with anyio.fail_after(30):
            done = await link.run(python(ECHO, port), data)
            assert done.ok, done.err
            assert done.out == data


async def test_many_connections_at_once_are_kept_apart(open_guest: OpenGuest, port: int) -> None:

    async def door(stream: ByteStream) -> None:
        async for received in stream:
            await stream.send(received)

    async with open_guest(SELF, door=door, proxy_port=port) as (link, _):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:

                async def one(number: int) -> None:
                    done = await link.run(python(ECHO, port), str(number).encode() * 50_000)
                    assert done.out == str(number).encode() * 50_000

                for number in range(12):
                    tasks.start_soon(one, number)


async def test_more_connections_than_there_is_room_for_wait_their_turn(
    open_guest: OpenGuest, port: int
) -> None:
    code = """
import socket, sys
all = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(40)]
for s in all:
    s.sendall(b"x")
    assert s.recv(10) == b"x"
    s.close()
print("all answered")
"""

    async def door(stream: ByteStream) -> None:
        async for received in stream:
            await stream.send(received)

    async with open_guest(SELF, door=door, proxy_port=port) as (link, _):
        with anyio.fail_after(30):
            done = await link.run(python(code, port))
            assert done.out == b"all answered\n", done.err
            assert (await link.run(Command(("true",), cwd="/"))).ok


async def test_without_a_door_a_connection_is_closed_at_once(open_guest: OpenGuest, port: int) -> None:
    async with open_guest(SELF, proxy_port=port) as (link, _):
        with anyio.fail_after(30):
            done = await link.run(python(ECHO, port))
            assert done.out == b""


async def test_the_last_words_of_the_door_arrive_before_the_close(open_guest: OpenGuest, port: int) -> None:
    size = limits.WINDOW_BYTES

    async def door(stream: ByteStream) -> None:
        await stream.send(bytes(size))

    async with open_guest(SELF, door=door, proxy_port=port) as (link, _):
        with anyio.fail_after(30):
            done = await link.run(python(ECHO, port))
            assert len(done.out) == size, done.err


DIGEST = """
import hashlib, socket, sys
seen, size = hashlib.sha256(), 1
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    while data := s.recv(size):
        seen.update(data)
        size = size * 7 % 300_007 + 1
print(seen.hexdigest())
"""


async def test_more_large_downloads_than_are_widened_arrive_whole(open_guest: OpenGuest, port: int) -> None:
    data = os.urandom(5_000_000)

    async def door(stream: ByteStream) -> None:
        await stream.send(data)
        await stream.send_eof()

    async with open_guest(SELF, door=door, proxy_port=port) as (link, _):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:

                async def one() -> None:
                    done = await link.run(python(DIGEST, port))
                    assert done.out.decode().strip() == hashlib.sha256(data).hexdigest(), done.err

                for _ in range(10):
                    tasks.start_soon(one)


async def test_a_program_that_does_not_read_makes_the_door_wait(open_guest: OpenGuest, port: int) -> None:
    blocked, done = anyio.Event(), anyio.Event()
    code = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
print("connected", flush=True)
sys.stdin.read()
"""

    async def door(stream: ByteStream) -> None:
        blocked.set()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(bytes(64_000_000))
        done.set()

    async with open_guest(SELF, door=door, proxy_port=port) as (link, process):
        with anyio.fail_after(30):
            async with link.start(python(code, port)):
                await blocked.wait()
                assert (await link.run(Command(("echo", "hi"), cwd="/"))).out == b"hi\n"
                assert not done.is_set()
            await done.wait()
            status = await anyio.Path(f"/proc/{process.pid}/status").read_text()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            assert resident < 20_000  # kB
