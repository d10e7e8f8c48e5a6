"""The host half against guests that say anything at all: somebody waits for everything, and everybody is told at once."""

import time
import tracemalloc
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.sandbox.protocol.fake_guest import HELLO, FakeGuest, linked
from tests.sandbox.protocol.guest_frames import encode_change, encode_entry
from tests.sandbox.protocol.strategies import from_guest

from cloister.core import limits
from cloister.core.computer import Change, Command, Entry
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import encode
from cloister.sandbox.protocol.link import Link

TOLD_SECONDS = 1.0
"""How soon after a guest's last or wrong word everybody has been told."""

WAIT_SECONDS = 30.0
"""How long a test may take on a machine that is busy with other things."""

FLOOD_SECONDS = 4.0
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
    encode(frames.Output(4, "out", encode_change(None))),
    encode(frames.Output(4, "out", encode_change(Change("created", "x")))),
    encode(frames.Open(DIAL)),
    encode(frames.Bytes(DIAL, b"hello")),
    encode(frames.End(DIAL)),
    encode(frames.Close(DIAL)),
    encode(frames.Output(5, "out", encode_entry(Entry("a", "file", 1, 0o644, 1.0)))),
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


def kept_waiting() -> float:
    """Seconds for which the machine had no processor for this thread although it could have run."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def at_once() -> Generator[None]:
    """What is in the block is over soon; what others take of the machine does not count."""
    began, waited = time.monotonic(), kept_waiting()
    yield
    took = time.monotonic() - began - (kept_waiting() - waited)
    assert took < TOLD_SECONDS, f"it took {took:.2f} s"


async def everyone_is_told(pieces: list[bytes]) -> None:
    guest = FakeGuest()
    outcomes: list[str] = []
    told = anyio.Event()

    async def wait(what: Wait, link: Link) -> None:
        try:
            await what(link)
        except (SandboxLost, UserError) as error:
            outcomes.append(error.code)
        else:
            outcomes.append("done")
        if len(outcomes) == len(WAITS):
            told.set()

    with anyio.fail_after(WAIT_SECONDS):
        async with linked(guest) as link, anyio.create_task_group() as tasks:
            for what in WAITS:
                tasks.start_soon(wait, what, link)
            await anyio.wait_all_tasks_blocked()
            for piece in pieces:
                await guest.to_host.send(piece)
            with at_once():
                guest.to_host.close()
                await told.wait()
    assert link.lost.is_set()
    assert len(outcomes) == len(WAITS)


@given(streams(), st.integers(1, 300))
@settings(deadline=None, max_examples=60)
def test_whatever_a_guest_says_everyone_is_answered_or_told_of_the_loss(stream: bytes, step: int) -> None:
    anyio.run(everyone_is_told, [stream[at : at + step] for at in range(0, len(stream), step)])


# A lie that somebody else finds, and a connection that is answered before all know of it.
@example([encode(frames.Output(4, "out", encode_change(Change("created", "x")))), encode(frames.Open(DIAL))])
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
            over = anyio.Event()

            async def hang_up() -> None:
                await anyio.wait_all_tasks_blocked()
                with at_once():
                    guest.to_host.close()
                    await over.wait()

            tasks.start_soon(hang_up)
            try:
                async with linked(guest, stream) as link:
                    await link.lost.wait()
            except SandboxLost:
                pass
            finally:
                over.set()


LIES: tuple[tuple[str, bytes], ...] = (
    ("garbage", b"\x00\x01\x02" * 40),
    ("a frame that is too large", b"\xff\xff\xff\xff\x11\x01\x00\x00\x00"),
    ("a payload that is too short", b"\x01\x00\x00\x00\x17\x01\x00\x00\x00x"),
    ("an end of what never began", encode(frames.Exit(900, False, 0, None, 5))),
    ("an answer before its question", encode(frames.Open(DIAL + 50))),
    ("a greeting again", HELLO),
    ("an answer to no hold", encode(frames.Held())),
    ("more than the credit", encode(frames.Output(1, "out", bytes(60_000))) * 5),
    ("more credit than was used", encode(frames.Credit(4, 4_000_000_000))),
    ("a change that cannot be", encode(frames.Output(4, "out", b"\xff" * 64))),
    ("a connection opened twice", encode(frames.Open(frames.FIRST_RELAY)) * 2),
)


@pytest.mark.parametrize(("name", "lie"), LIES, ids=[name for name, _ in LIES])
def test_a_lie_loses_the_sandbox_within_a_second_although_the_guest_stays_on_the_line(
    name: str, lie: bytes
) -> None:
    async def told() -> None:
        guest = FakeGuest()
        codes: list[str] = []
        all_told = anyio.Event()

        async def wait(what: Wait, link: Link) -> None:
            with pytest.raises(SandboxLost) as lost:
                await what(link)
            codes.append(lost.value.code)
            if len(codes) == len(WAITS):
                all_told.set()

        async def unread(link: Link) -> None:
            async with link.start(Command(("true",), cwd="/")):
                await link.lost.wait()
                raise SandboxLost(link.reason)

        with anyio.fail_after(WAIT_SECONDS):
            async with linked(guest) as link, anyio.create_task_group() as tasks:
                for what in (unread, *WAITS[1:]):
                    tasks.start_soon(wait, what, link)
                await anyio.wait_all_tasks_blocked()
                with at_once():
                    await guest.to_host.send(lie)
                    await all_told.wait()
        assert codes == ["sandbox_lost"] * len(WAITS), name

    anyio.run(told)


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
        encode(frames.Output(4, "out", encode_change(Change("created", "x" * 4_000)) * 16)),
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
            with anyio.move_on_after(FLOOD_SECONDS):
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
