"""The host half against a guest that is played by the test, and lies."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream
from tests.sandbox.protocol.fake_guest import HELLO, FakeGuest, Receiver, Sender, linked

from cloister.core import limits
from cloister.core.computer import Command, Exited, Output
from cloister.core.errors import SandboxLost, UserError
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import encode
from cloister.sandbox.protocol.link import Link, link_over

pytestmark = pytest.mark.anyio

RELAY = frames.FIRST_RELAY
TRUE = Command(("true",), cwd="/")


@asynccontextmanager
async def waiting(link: Link, command: Command = TRUE) -> AsyncGenerator[None]:
    """Somebody waits for a command and must be told of the loss, whatever it waits for."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(SandboxLost):
                    await link.run(command)

            tasks.start_soon(wait)
            yield


async def test_the_host_sets_the_guest_up_first() -> None:
    guest = FakeGuest()
    async with linked(guest):
        assert await guest.hear() == frames.Setup(60, 0, "test")


@pytest.mark.parametrize(
    "first",
    [
        (encode(frames.Hello(2)), encode(frames.Ready())),
        (encode(frames.Ready()),),
        (HELLO, HELLO),
        (b"Segmentation fault\n",),
        (encode(frames.Hello(1)), encode(frames.Exit(1, False, 0, None, 1))),
        (encode(frames.Hello(1)), encode(frames.Open(RELAY))),
    ],
    ids=["other version", "no hello", "twice", "text", "exit before ready", "open before ready"],
)
async def test_a_wrong_greeting_loses_the_sandbox(first: tuple[bytes, ...]) -> None:
    guest = FakeGuest()
    with anyio.fail_after(60), pytest.raises(SandboxLost):
        async with linked(guest, *first) as link:
            await link.run(TRUE)


async def test_a_guest_that_is_gone_before_it_greets_loses_the_sandbox() -> None:
    guest = FakeGuest()
    guest.to_host.close()
    with anyio.fail_after(60), pytest.raises(SandboxLost):
        async with link_over(
            Sender(guest.host_writes), Receiver(guest.host_reads), frames.Setup(60, 0, ""), env={}
        ):
            pass
    guest.close()


@pytest.mark.parametrize(
    "lie",
    [
        b"\xff" * 100,
        (limits.FRAME_BYTES + 1).to_bytes(4, "little") + b"\x11\1\0\0\0",
        encode(frames.Output(99, "out", b"x")),
        encode(frames.Exit(99, False, 0, None, 0)),
        encode(frames.Credit(99, 1)),
        encode(frames.Credit(1, limits.WIDE_BYTES - limits.WINDOW_BYTES + 1)),
        encode(frames.Bytes(RELAY, b"x")),
        encode(frames.End(RELAY)),
        encode(frames.Close(RELAY)),
        encode(frames.Open(RELAY)) + encode(frames.Open(RELAY)),
        encode(frames.Ready()),
        encode(frames.Start(5, ("true",))),
        encode(frames.Output(1, "out", bytes(60_000))) * 5,
    ],
    ids=[
        "noise",
        "oversize",
        "output of nothing",
        "end of nothing",
        "credit for nothing",
        "credit never used",
        "bytes of no relay",
        "end of no relay",
        "close of no relay",
        "open twice",
        "ready twice",
        "a start",
        "beyond the credit",
    ],
)
async def test_a_lie_loses_the_sandbox_for_everyone_at_once(lie: bytes) -> None:
    guest = FakeGuest()
    # The output of the first is not read, so that no credit is given back.
    async with linked(guest) as link, link.start(TRUE), waiting(link), waiting(link):
        assert await guest.hear_start() == 1
        await guest.say(lie)
        with anyio.fail_after(60):
            await link.lost.wait()
    assert link.reason.startswith("The guest broke the protocol: ")


async def test_the_end_of_the_stream_loses_the_sandbox() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, waiting(link):
        await guest.hear_start()
        guest.to_host.close()


async def test_an_error_in_the_block_leaves_it_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with linked(FakeGuest()):
            raise KeyError("mine")


async def test_frames_for_a_command_that_ended_are_ignored() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, anyio.create_task_group() as tasks:
        tasks.start_soon(link.run, TRUE)
        channel = await guest.hear_start()
        end = frames.Exit(channel, False, 0, None, 1)
        await guest.say(end, end, frames.Output(channel, "out", b"late"), frames.Credit(channel, 5))
        tasks.start_soon(link.run, TRUE)
        await guest.say(frames.Exit(await guest.hear_start(), False, 0, None, 1))


async def test_output_keeps_its_order_and_its_streams() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, link.start(TRUE) as process:
        channel = await guest.hear_start()
        for stream in ("out", "out", "err", "out"):
            await guest.say(frames.Output(channel, stream, stream[:1].encode()))
        await guest.say(frames.Exit(channel, False, 3, None, 1500))
        await anyio.wait_all_tasks_blocked()
        items = [item async for item in process]
    assert items == [
        Output("out", b"oo"),
        Output("err", b"e"),
        Output("out", b"o"),
        Exited(3, None, None, 1.5),
    ]


async def test_credit_is_given_for_data_that_was_read_and_only_then() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, link.start(TRUE) as process:
        channel = await guest.hear_start()
        for _ in range(4):
            await guest.say(frames.Output(channel, "out", bytes(limits.FRAME_BYTES - 1)))
        await anyio.wait_all_tasks_blocked()
        assert guest.from_host.statistics().current_buffer_used == 0
        with anyio.fail_after(60):
            for _ in range(2):
                assert len((await anext(aiter(process))).data) == limits.FRAME_BYTES - 1  # type: ignore[union-attr]
        assert await guest.hear() == frames.Credit(channel, 2 * (limits.FRAME_BYTES - 1))
        await guest.say(frames.Exit(channel, False, 0, None, 1))


async def test_output_over_the_limit_is_cut_and_the_command_killed() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, link.start(Command(("yes",), cwd="/", limit_bytes=5)) as process:
        channel = await guest.hear_start()
        await guest.say(frames.Output(channel, "out", b"abc"), frames.Output(channel, "err", b"defg"))
        assert await guest.hear() == frames.Kill(channel)
        await guest.say(frames.Output(channel, "out", b"more"), frames.Exit(channel, True, 9, "asked", 1))
        items = [item async for item in process]
    assert items == [
        Output("out", b"abc"),
        Output("err", b"de"),
        Exited(None, 9, "output", 0.001),
    ]


async def test_input_stops_at_the_credit_and_goes_on_with_more() -> None:
    guest = FakeGuest()
    size = limits.WINDOW_BYTES
    async with linked(guest) as link, link.start(TRUE) as process, anyio.create_task_group() as tasks:
        channel = await guest.hear_start()
        tasks.start_soon(process.send, bytes(size + 10))
        for _ in range(size // limits.FRAME_BYTES):
            assert await guest.hear() == frames.Bytes(channel, bytes(limits.FRAME_BYTES))
        await anyio.wait_all_tasks_blocked()
        assert guest.from_host.statistics().current_buffer_used == 0
        await guest.say(frames.Credit(channel, 100))
        assert await guest.hear() == frames.Bytes(channel, bytes(10))
        await guest.say(frames.Exit(channel, False, 0, None, 1))


async def test_a_guest_that_does_not_end_a_command_is_given_up() -> None:
    guest = FakeGuest()
    command = Command(("true",), cwd="/", seconds=0.05, grace_seconds=0.05)
    async with linked(guest, late_seconds=0.1) as link, waiting(link, command):
        await guest.hear_start()
    assert link.reason == "The guest did not end a command in time."


async def test_a_guest_that_does_not_kill_a_command_is_given_up() -> None:
    guest = FakeGuest()
    with anyio.fail_after(60):
        async with linked(guest, late_seconds=0.1) as link:
            async with link.start(Command(("true",), cwd="/", grace_seconds=0.05)):
                pass
            assert link.lost.is_set()


async def test_unread_output_does_not_make_a_guest_late() -> None:
    guest = FakeGuest()
    command = Command(("true",), cwd="/", seconds=0.5, grace_seconds=0.01)
    async with linked(guest, late_seconds=0.05) as link, link.start(command) as process:
        channel = await guest.hear_start()
        await guest.say(frames.Output(channel, "out", b"x"))
        # The command reads nothing and we read nothing of it: only the sender waits, past the deadline.
        with anyio.move_on_after(1):
            await process.send(bytes(2 * limits.WINDOW_BYTES))
        assert not link.lost.is_set()
        await guest.say(frames.Exit(channel, False, 0, None, 1))


async def test_connections_are_closed_at_once_without_a_door() -> None:
    guest = FakeGuest()
    async with linked(guest):
        assert isinstance(await guest.hear(), frames.Setup)
        for number in range(200):
            await guest.say(frames.Open(RELAY + number), frames.Bytes(RELAY + number, b"x"))
            assert await guest.hear() == frames.Close(RELAY + number)


async def test_a_door_talks_with_the_program_inside() -> None:
    guest = FakeGuest()

    async def door(stream: ByteStream) -> None:
        async for data in stream:
            await stream.send(data.upper())
        await stream.send_eof()

    async with linked(guest, door=door):
        assert isinstance(await guest.hear(), frames.Setup)
        await guest.say(frames.Open(RELAY), frames.Bytes(RELAY, b"hello"))
        assert await guest.hear() == frames.Bytes(RELAY, b"HELLO")
        await guest.say(frames.End(RELAY))
        assert await guest.hear() == frames.End(RELAY)
        assert await guest.hear() == frames.Close(RELAY)
        await guest.say(frames.Close(RELAY), frames.Bytes(RELAY, b"late"))


async def test_a_door_that_fails_loses_one_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    guest = FakeGuest()

    async def door(stream: ByteStream) -> None:
        raise RuntimeError("broken")

    async with linked(guest, door=door) as link:
        assert isinstance(await guest.hear(), frames.Setup)
        await guest.say(frames.Open(RELAY))
        assert await guest.hear() == frames.Close(RELAY)
        assert not link.lost.is_set()
    assert "The door failed on one connection." in caplog.text


async def test_more_connections_than_the_limit_are_refused() -> None:
    guest = FakeGuest()

    async def door(stream: ByteStream) -> None:
        await anyio.sleep_forever()

    async with linked(guest, door=door):
        assert isinstance(await guest.hear(), frames.Setup)
        for number in range(limits.DOOR_CONNECTIONS):
            await guest.say(frames.Open(RELAY + number), frames.Close(RELAY + number))
        await guest.say(frames.Open(RELAY + 1_000))
        assert await guest.hear() == frames.Close(RELAY + 1_000)


async def test_the_loss_of_the_sandbox_ends_its_connections() -> None:
    guest = FakeGuest()
    ended: list[bytes | None] = []
    over = anyio.Event()

    async def door(stream: ByteStream) -> None:
        ended.extend([data async for data in stream])
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(b"x")
        over.set()

    async with linked(guest, door=door):
        await guest.say(frames.Open(RELAY), frames.Bytes(RELAY, b"last words"))
        guest.to_host.close()
        with anyio.fail_after(60):
            await over.wait()
    assert ended == [b"last words"]


async def test_a_listing_that_cannot_be_loses_the_sandbox() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, anyio.create_task_group() as tasks:

        async def list_files() -> None:
            with pytest.raises(SandboxLost):
                await link.list("/")

        tasks.start_soon(list_files)
        channel = await guest.hear_start()
        await guest.say(frames.Output(channel, "out", b"\xff" * 40), frames.Exit(channel, False, 0, None, 1))


async def test_a_relative_path_starts_in_the_work_directory() -> None:
    guest = FakeGuest()
    async with linked(guest) as link, anyio.create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(UserError) as caught:
                await link.read("a/../b")
            assert caught.value.code == "not_found"

        tasks.start_soon(read)
        assert isinstance(await guest.hear(), frames.Setup)
        start = await guest.hear()
        assert isinstance(start, frames.Start)
        assert start.argv == ("/work/a/../b", "0", str(limits.FILE_BYTES))
        await guest.say(frames.Fail(start.channel, "not_found", "no such file"))
