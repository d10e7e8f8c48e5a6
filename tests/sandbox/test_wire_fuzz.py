"""The host half against guests that say anything at all: somebody waits for everything, and everybody is told."""

import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sandbox.fake_guest import HELLO, FakeGuest, linked
from tests.sandbox.strategies import from_guest

from cloister.core import limits
from cloister.core.commands import Change, Command, Entry
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox import frames
from cloister.sandbox.frames import encode
from cloister.sandbox.wire import Link

WAIT_SECONDS = 10.0
DIAL = frames.FIRST_DIAL

Wait = Callable[[Link], Awaitable[object]]


async def run(link: Link) -> None:
    await link.run(Command(("true",), cwd="/"), bytes(2 * limits.WINDOW_BYTES))


async def read_stream(link: Link) -> None:
    async with link.read_stream("file") as pieces:
        async for _ in pieces:
            pass


async def write_stream(link: Link) -> None:
    async with link.write_stream("file") as sink:
        for _ in range(8):
            await sink.send(bytes(65_536))


async def watch(link: Link) -> None:
    async with link.watch("dir") as changes:
        async for _ in changes:
            pass


async def dial(link: Link) -> None:
    # A connection that is closed inside is broken, as any other is.
    with suppress(anyio.BrokenResourceError):
        async with await link.dial(80) as stream:
            await stream.send(b"hello")
            async for _ in stream:
                pass


WAITS: tuple[Wait, ...] = (
    run,
    read_stream,
    write_stream,
    watch,
    dial,
    lambda link: link.list("dir"),
    lambda link: link.stat("file"),
    lambda link: link.read("file"),
)
"""In the order of their channels: 1 to 4, the first dialled, 5 to 7."""

TRUE_WORDS = (
    encode(frames.Output(1, "out", b"x" * 100)),
    encode(frames.Credit(1, 65_536)),
    encode(frames.Exit(1, False, 0, None, 5)),
    encode(frames.Output(2, "out", b"data")),
    encode(frames.Exit(2, False, 0, None, 5)),
    encode(frames.Fail(3, "denied", "no")),
    encode(frames.Output(4, "out", frames.encode_change(None))),
    encode(frames.Output(4, "out", frames.encode_change(Change("created", "x")))),
    encode(frames.Open(DIAL)),
    encode(frames.Bytes(DIAL, b"hello")),
    encode(frames.End(DIAL)),
    encode(frames.Close(DIAL)),
    encode(frames.Output(5, "out", frames.encode_entry(Entry("a", "file", 1, 0o644, 1.0)))),
    encode(frames.Exit(5, False, 0, None, 5)),
    encode(frames.Open(frames.FIRST_RELAY)),
    encode(frames.Fail(DIAL, "failed", "")),
    HELLO,
)
"""What a guest could say here. Said twice, out of order or cut off, it is a lie."""


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    words = st.sampled_from(TRUE_WORDS) | from_guest.map(encode) | st.binary(max_size=40)
    stream = bytearray(b"".join(draw(st.lists(words, max_size=14))))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)):
        if at < len(stream):
            stream[at] = byte
    return bytes(stream[: draw(st.integers(0, 2_000))])


async def everyone_is_told(pieces: list[bytes]) -> None:
    guest = FakeGuest()
    outcomes: list[str] = []

    async def wait(what: Wait, link: Link) -> None:
        try:
            await what(link)
        except (SandboxLost, UserError) as error:
            outcomes.append(error.code)
        else:
            outcomes.append("done")

    with anyio.fail_after(WAIT_SECONDS):
        async with linked(guest) as link, anyio.create_task_group() as tasks:
            for what in WAITS:
                tasks.start_soon(wait, what, link)
            await anyio.wait_all_tasks_blocked()
            for piece in pieces:
                await guest.to_host.send(piece)
            guest.to_host.close()
    assert link.lost.is_set()
    assert len(outcomes) == len(WAITS)


@given(streams(), st.integers(1, 300))
@settings(deadline=None, max_examples=60)
def test_whatever_a_guest_says_everyone_is_answered_or_told_of_the_loss(stream: bytes, step: int) -> None:
    anyio.run(everyone_is_told, [stream[at : at + step] for at in range(0, len(stream), step)])


@given(st.lists(st.sampled_from(TRUE_WORDS), max_size=30))
@settings(deadline=None, max_examples=50)
def test_true_words_in_any_order_and_number_are_answers_or_a_loss(words: list[bytes]) -> None:
    anyio.run(everyone_is_told, words)


@given(streams())
@settings(deadline=None, max_examples=50)
def test_a_greeting_that_is_anything_is_a_greeting_or_a_loss(stream: bytes) -> None:
    anyio.run(greeted, stream)


async def greeted(stream: bytes) -> None:
    guest = FakeGuest()
    with anyio.fail_after(WAIT_SECONDS):
        async with anyio.create_task_group() as tasks:

            async def hang_up() -> None:
                await anyio.wait_all_tasks_blocked()
                guest.to_host.close()

            tasks.start_soon(hang_up)
            try:
                async with linked(guest, stream) as link:
                    await link.lost.wait()
            except SandboxLost:
                pass


def floods() -> Iterator[tuple[str, bytes]]:
    yield "output nobody reads", encode(frames.Output(1, "out", bytes(60_000)))
    yield "small pieces", encode(frames.Output(1, "out", b"x")) * 5_000
    yield (
        "changing streams",
        (encode(frames.Output(1, "out", b"x")) + encode(frames.Output(1, "err", b"y"))) * 2_500,
    )
    yield "empty pieces", encode(frames.Output(1, "out", b"")) * 5_000
    yield "a frame that never ends", b"\xff" * 60_000
    yield (
        "changes",
        encode(frames.Output(4, "out", frames.encode_change(Change("created", "x" * 4_000)) * 16)),
    )
    yield "bytes of a connection", encode(frames.Open(DIAL)) + encode(frames.Bytes(DIAL, bytes(60_000)))


@pytest.mark.parametrize(("name", "flood"), list(floods()), ids=[name for name, _ in floods()])
def test_no_flood_makes_the_host_grow(name: str, flood: bytes) -> None:
    async def drown() -> None:
        guest = FakeGuest()
        async with linked(guest) as link, anyio.create_task_group() as tasks:

            async def hold(what: Wait) -> None:
                with anyio.CancelScope(), pytest.raises((SandboxLost, UserError)):
                    await what(link)

            async def idle(_: Link) -> None:
                async with link.start(Command(("true",), cwd="/")):
                    await link.lost.wait()
                    raise SandboxLost(link.reason)

            async def unread(_: Link) -> None:
                async with await link.dial(80):
                    await link.lost.wait()
                    raise SandboxLost(link.reason)

            for what in (idle, read_stream, write_stream, watch, unread):
                tasks.start_soon(hold, what)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(WAIT_SECONDS):
                for _ in range(60):
                    if link.lost.is_set():
                        break
                    await guest.to_host.send(flood)
                    await anyio.wait_all_tasks_blocked()
            guest.to_host.close()

    tracemalloc.start()
    try:
        anyio.run(drown)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16_000_000, name
