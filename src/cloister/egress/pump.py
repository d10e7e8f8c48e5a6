"""Bytes both ways between two streams, counted, as fast as the slower side reads."""

from collections.abc import Awaitable, Callable

import anyio
from anyio import BrokenResourceError, CancelScope, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream

BROKEN = (BrokenResourceError, ClosedResourceError, OSError)
"""How a peer that is gone shows."""


class Traffic:
    """What went through."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0

    def sent(self, count: int) -> None:
        self.sent_bytes += count

    def received(self, count: int) -> None:
        self.received_bytes += count


class Flow:
    """Two directions that end together: when both sides are done, one breaks, or nothing moves for too long."""

    def __init__(self, client: ByteStream, server: ByteStream, traffic: Traffic, idle_seconds: float) -> None:
        self._client = client
        self._server = server
        self._traffic = traffic
        self._idle_seconds = idle_seconds
        self._scope = CancelScope()

    async def tunnel(self, first: bytes) -> None:
        """Carry anything; the end of one direction is passed on and the other goes on."""

        async def up() -> None:
            await self._send(self._server, first, self._traffic.sent)
            await self._copy(self._client, self._server, self._traffic.sent)
            await self._server.send_eof()

        async def down() -> None:
            await self._copy(self._server, self._client, self._traffic.received)
            await self._client.send_eof()

        await self._both(up, down)

    async def exchange(self, head: bytes, body: bytes, body_bytes: int) -> None:
        """Carry one request, `body` being what has come of it, and its response; nothing after it is read."""

        async def up() -> None:
            await self._send(self._server, head + body, self._traffic.sent)
            left = body_bytes - len(body)
            if await self._copy(self._client, self._server, self._traffic.sent, left):
                self._scope.cancel()

        async def down() -> None:
            await self._copy(self._server, self._client, self._traffic.received)
            self._scope.cancel()

        await self._both(up, down)

    async def _both(self, *directions: Callable[[], Awaitable[None]]) -> None:
        async def run(direction: Callable[[], Awaitable[None]]) -> None:
            try:
                await direction()
            except BROKEN:
                self._scope.cancel()

        with self._scope:
            self._moved()
            async with anyio.create_task_group() as tasks:
                for direction in directions:
                    tasks.start_soon(run, direction)

    def _moved(self) -> None:
        self._scope.deadline = anyio.current_time() + self._idle_seconds

    async def _send(self, to: ByteStream, data: bytes, count: Callable[[int], None]) -> None:
        if data:
            await to.send(data)
            count(len(data))
            self._moved()

    async def _copy(
        self, source: ByteStream, to: ByteStream, count: Callable[[int], None], left: int | None = None
    ) -> int | None:
        """Copy to the end of `source`, or `left` bytes; returns how many of those did not come."""
        while left is None or left > 0:
            try:
                data = await source.receive(65_536 if left is None else min(left, 65_536))
            except EndOfStream:
                break
            self._moved()
            await self._send(to, data, count)
            left = None if left is None else left - len(data)
        return left
