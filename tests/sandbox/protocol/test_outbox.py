import anyio
import pytest

from cloister.core import limits
from cloister.sandbox.protocol.mux import CommandChannel, RelayStream, Stillness
from cloister.sandbox.protocol.outbox import OUTBOX_BYTES, Outbox, PipeReceiver, PipeSender, open_pipe

pytestmark = pytest.mark.anyio


async def test_the_queue_for_a_guest_that_reads_nothing_is_bounded_over_all_channels() -> None:
    outbox = Outbox(lambda: pytest.fail("bounded by its senders"))
    commands = [
        CommandChannel(
            n,
            outbox,
            limit_bytes=1,
            deadline=anyio.current_time() + 60,
            late_seconds=60,
            stillness=Stillness(),
        )
        for n in range(1, 65)
    ]
    relays = [RelayStream(1 << 31 | n, outbox, lambda _: None) for n in range(256)]
    async with anyio.create_task_group() as tasks:
        for channel in (*commands, *relays):
            tasks.start_soon(channel.send, bytes(limits.WINDOW_BYTES))
        await anyio.wait_all_tasks_blocked()
        assert OUTBOX_BYTES < outbox.size <= OUTBOX_BYTES + limits.FRAME_BYTES + 4_096
        tasks.cancel_scope.cancel()


async def test_pieces_larger_than_a_pipe_arrive_in_order_and_then_its_end() -> None:
    to_read, to_write = open_pipe()
    pieces = [bytes([n % 256]) * (n * 97 % 100_000) for n in range(300)]
    seen = bytearray()

    async def send() -> None:
        async with PipeSender(to_write) as sender:
            await sender.send_all(pieces)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, PipeReceiver(to_read) as receiver:
            tasks.start_soon(send)
            async for piece in receiver:
                seen += piece
    assert seen == b"".join(pieces)


async def test_a_pipe_without_a_reader_is_broken_and_a_closed_one_is_closed() -> None:
    to_read, to_write = open_pipe()
    sender, receiver = PipeSender(to_write), PipeReceiver(to_read)
    await receiver.aclose()
    with pytest.raises(anyio.BrokenResourceError):
        await sender.send(b"x")
    await sender.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await sender.send(b"x")
