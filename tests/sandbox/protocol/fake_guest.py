"""A guest that is played by the test."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from tests.sandbox.protocol.guest_frames import decode_from_host

from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.frames import Decoder, encode
from cloister.sandbox.protocol.link import Link, link_over

HELLO = encode(frames.Hello(1)) + encode(frames.Ready())


class Sender(ByteSendStream):
    def __init__(self, stream: MemoryObjectSendStream[bytes]) -> None:
        self.stream = stream

    async def send(self, item: bytes) -> None:
        await self.stream.send(item)

    async def aclose(self) -> None:
        self.stream.close()


class Receiver(ByteReceiveStream):
    def __init__(self, stream: MemoryObjectReceiveStream[bytes]) -> None:
        self.stream = stream

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await self.stream.receive()

    async def aclose(self) -> None:
        self.stream.close()


class FakeGuest:
    """Says what the test tells it to, and understands what the host says."""

    def __init__(self) -> None:
        self.to_host, self.host_reads = anyio.create_memory_object_stream[bytes](1_000)
        self.host_writes, self.from_host = anyio.create_memory_object_stream[bytes](1_000)
        self._decoder = Decoder(decode_from_host)
        self._heard: list[frames.FromHost] = []

    async def say(self, *said: frames.Frame | bytes) -> None:
        for frame in said:
            await self.to_host.send(frame if isinstance(frame, bytes) else encode(frame))

    async def hear(self) -> frames.FromHost:
        with anyio.fail_after(60):
            while not self._heard:
                self._heard += self._decoder.feed(await self.from_host.receive())
        return self._heard.pop(0)

    async def hear_start(self) -> int:
        while not isinstance(frame := await self.hear(), frames.Start):
            pass
        return frame.channel

    def close(self) -> None:
        for stream in (self.to_host, self.host_reads, self.host_writes, self.from_host):
            stream.close()


@asynccontextmanager
async def linked(
    guest: FakeGuest,
    *first: frames.Frame | bytes,
    door: Callable[[ByteStream], Awaitable[None]] | None = None,
    late_seconds: float = 10,
) -> AsyncGenerator[Link]:
    try:
        await guest.say(*(first or (HELLO,)))
        setup = frames.Setup(60, 0, "test")
        async with link_over(
            Sender(guest.host_writes),
            Receiver(guest.host_reads),
            setup,
            env={},
            door=door,
            late_seconds=late_seconds,
        ) as link:
            yield link
    finally:
        guest.close()
