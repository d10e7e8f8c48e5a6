"""A guest that was taken over floods the host with frames and reads nothing: the host stays small, and serves others."""

import fcntl
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
import pytest
from anyio.abc import ByteStream
from tests.sandbox.protocol.fake_guest import HELLO, FakeGuest, linked

from cloister.core import limits
from cloister.core.computer import Command
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import encode
from cloister.sandbox.protocol.link import Link, link_over
from cloister.sandbox.protocol.mux import LinkDoor
from cloister.sandbox.protocol.outbox import FLOOD_BYTES, PipeReceiver, PipeSender, open_pipe

pytestmark = pytest.mark.anyio

RELAY, DIAL = frames.FIRST_RELAY, frames.FIRST_DIAL
CHUNK_FRAMES = 20_000
CHUNKS = 20
TRACED = 2
"""Chunks during which memory is measured, which is slow."""
PEAK_BYTES = 16_000_000
TRUE = Command(("true",), cwd="/", seconds=3_600)
Frames = Iterator[frames.FromGuest]


def opens() -> Frames:
    return (frames.Open(RELAY + number) for number in count())


def opens_and_closes() -> Frames:
    return (frame for n in count() for frame in (frames.Open(RELAY + n), frames.Close(RELAY + n)))


def opens_with_data() -> Frames:
    return (frame for n in count() for frame in (frames.Open(RELAY + n), frames.Bytes(RELAY + n, b"x")))


def every(frame: frames.FromGuest) -> Frames:
    return (frame for _ in count())


def alternating_output() -> Frames:
    return (frames.Output(1, "out" if n % 2 else "err", b"x") for n in count())


FLOODS = {
    "OPEN": opens,
    "OPEN and CLOSE": opens_and_closes,
    "OPEN and DATA": opens_with_data,
    "OPEN as an answer": lambda: every(frames.Open(DIAL)),
    "FAIL as an answer": lambda: every(frames.Fail(DIAL, "failed", "x" * 200)),
    "DATA of a command": lambda: every(frames.Output(1, "out", b"x")),
    "DATA of both streams": alternating_output,
    "DATA without data": lambda: every(frames.Output(1, "out", b"")),
    "DATA of a command that ended": lambda: every(frames.Output(2, "out", b"x")),
    "DATA of a connection that ended": lambda: every(frames.Bytes(RELAY, b"x")),
    "EOF": lambda: every(frames.End(RELAY)),
    "CREDIT of a command": lambda: every(frames.Credit(1, 1_000)),
    "CREDIT of nothing": lambda: every(frames.Credit(1, 0)),
    "CREDIT of a command that ended": lambda: every(frames.Credit(2, 1)),
    "EXIT": lambda: every(frames.Exit(2, False, 0, None, 1)),
    "FAIL": lambda: every(frames.Fail(2, "failed", "x" * 200)),
    "CLOSE": lambda: every(frames.Close(RELAY)),
    "HELLO": lambda: every(frames.Hello(1)),
    "READY": lambda: every(frames.Ready()),
    "HELD": lambda: every(frames.Held()),
}


async def endless_door(stream: ByteStream) -> None:
    await anyio.sleep_forever()


async def reading_door(stream: ByteStream) -> None:
    async for _ in stream:
        pass


DOORS = {"no door": None, "a door that is busy": endless_door, "a door that reads": reading_door}


@asynccontextmanager
async def piped(door: LinkDoor | None) -> AsyncGenerator[tuple[Link, PipeSender, PipeReceiver]]:
    """A link over real pipes, with a command that runs (1) and one that has ended (2)."""
    guest_in, host_out = open_pipe()
    fcntl.fcntl(host_out, fcntl.F_SETPIPE_SZ, 4_096)
    host_in, guest_out = open_pipe()
    async with PipeSender(guest_out) as say, PipeReceiver(guest_in) as hear:
        await say.send(HELLO)
        async with (
            link_over(
                PipeSender(host_out),
                PipeReceiver(host_in),
                frames.Setup(60, 0, "test"),
                env={},
                door=door,
                late_seconds=0.1,
            ) as link,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(unread, link)
            await anyio.wait_all_tasks_blocked()
            await say.send(encode(frames.Exit(2, False, 0, None, 1)))
            with suppress(SandboxLost):
                await link.run(TRUE)
            yield link, say, hear
            tasks.cancel_scope.cancel()


async def unread(link: Link) -> None:
    with suppress(SandboxLost):
        async with link.start(TRUE):
            await link.lost.wait()


def chunks(flood: Frames) -> Iterator[bytes]:
    for _ in range(CHUNKS):
        yield b"".join(encode(next(flood)) for _ in range(CHUNK_FRAMES))


async def send(say: PipeSender, chunk: bytes, link: Link) -> None:
    """Send `chunk`, or as much of it as is read before the link is lost."""
    async with anyio.create_task_group() as tasks:

        async def until_lost() -> None:
            await link.lost.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_lost)
        await say.send(chunk)
        tasks.cancel_scope.cancel()


async def echo(guest: FakeGuest, link: Link) -> None:
    """One command of another sandbox, from its start to its end."""
    async with anyio.create_task_group() as tasks:

        async def answer() -> None:
            channel = await guest.hear_start()
            await guest.say(frames.Output(channel, "out", b"hi"), frames.Exit(channel, False, 0, None, 1))

        tasks.start_soon(answer)
        assert (await link.run(TRUE)).out == b"hi"


OPENS = [(name, door) for name in ("OPEN", "OPEN and CLOSE", "OPEN and DATA") for door in DOORS]
CASES = [*OPENS, *((name, "a door that reads") for name in FLOODS if not name.startswith("OPEN and"))]


@pytest.mark.parametrize(("name", "door"), CASES, ids=[f"{name}, {door}" for name, door in CASES])
async def test_a_flood_that_reads_nothing_stays_small_and_costs_only_its_sandbox(
    name: str, door: str
) -> None:
    other = FakeGuest()
    async with piped(DOORS[door]) as (link, say, _), linked(other) as quiet:
        # A guest may open and close connections all the time while the door serves them.
        served = name == "OPEN and CLOSE" and door == "a door that reads"
        tracemalloc.start()
        for number, chunk in enumerate(chunks(FLOODS[name]()), 1):
            await send(say, chunk, link)
            await echo(other, quiet)
            assert link.mux.outbox.size <= FLOOD_BYTES
            if tracemalloc.is_tracing() and (link.lost.is_set() or number == TRACED):
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < PEAK_BYTES
            if link.lost.is_set() or (served and number == TRACED):
                break
        assert not quiet.lost.is_set()
        assert link.lost.is_set() is not served
        assert served or link.reason.startswith("The guest ")


@pytest.mark.parametrize(
    "name", ["CREDIT of a command that ended", "DATA of both streams", "OPEN and CLOSE", "EXIT"]
)
async def test_other_tasks_have_their_turn_while_a_flood_is_handled(name: str) -> None:
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with piped(reading_door) as (link, say, _), anyio.create_task_group() as tasks:
        chunk = next(chunks(FLOODS[name]()))
        over = anyio.Event()

        async def third() -> None:
            with suppress(SandboxLost, UserError):
                await link.run(TRUE)
            over.set()

        tasks.start_soon(third)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(tick)
        await send(say, chunk + encode(frames.Exit(3, False, 0, None, 1)), link)
        await over.wait()
        tasks.cancel_scope.cancel()
    assert turns > CHUNK_FRAMES / 1_000


async def test_output_in_tiny_pieces_does_not_keep_other_tasks_waiting() -> None:
    """The reader of a command gets many pieces that are there already."""
    pieces = 100_000
    turns = seen = 0

    async def tick() -> None:
        nonlocal turns
        while seen < pieces:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with (
        piped(None) as (link, say, _),
        link.start(TRUE) as process,
        anyio.create_task_group() as tasks,
    ):
        tiny = (encode(frames.Output(3, "out" if n % 2 else "err", b"x")) for n in range(pieces))
        await say.send(b"".join(tiny) + encode(frames.Exit(3, False, 0, None, 1)))
        while process.channel.end is None:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(tick)
        async for _ in process:
            seen += 1
        tasks.cancel_scope.cancel()
    assert turns > pieces / 1_000


async def test_a_guest_that_reads_may_open_and_close_connections_for_ever() -> None:
    async with piped(None) as (link, say, hear), anyio.create_task_group() as tasks:
        seen = bytearray()

        async def read() -> None:
            while True:
                seen.extend((await hear.receive())[-9:])

        tasks.start_soon(read)
        for number in range(20 * limits.DOOR_CONNECTIONS):
            await say.send(encode(frames.Open(RELAY + number)))
            if number % limits.DOOR_CONNECTIONS == 0:
                while not seen.endswith(encode(frames.Close(RELAY + number))):
                    await anyio.lowlevel.checkpoint()
        assert not link.lost.is_set()
        tasks.cancel_scope.cancel()
