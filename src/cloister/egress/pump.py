"""Bytes both ways between two streams, counted, as fast as the slower side reads."""

from collections.abc import Awaitable, Callable

import anyio
from anyio import CancelScope, EndOfStream
from anyio.abc import ByteStream

from cloister.egress.bounds import Spent
from cloister.egress.refusal import BROKEN

_READ_BYTES = 262_144


class Traffic:
    """What went through; `moved` hears of it and may raise."""

    def __init__(self, moved: Callable[[int], None] | None = None) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self._moved = moved

    def sent(self, count: int) -> None:
        self.sent_bytes += count
        if self._moved:
            self._moved(count)

    def received(self, count: int) -> None:
        self.received_bytes += count
        if self._moved:
            self._moved(count)


class Pace:
    """A scope that ends when nothing moves for too long, or when all of it has lasted too long."""

    def __init__(self, idle_seconds: float, ends: float) -> None:
        self.scope = CancelScope()
        self._idle_seconds = idle_seconds
        self._ends = ends
        self.moved()

    def moved(self) -> None:
        self.scope.deadline = min(anyio.current_time() + self._idle_seconds, self._ends)


class Flow:
    """Two directions that end together: when both sides are done, one breaks, or nothing moves for too long."""

    def __init__(self, client: ByteStream, server: ByteStream, traffic: Traffic, pace: Pace) -> None:
        self._client = client
        self._server = server
        self._traffic = traffic
        self._pace = pace

    async def tunnel(self, first: bytes) -> None:
        """Carry anything; the end of one direction is passed on and the other goes on."""

        async def up() -> None:
            await self._send(self._server, first, self._traffic.sent)
            await self._copy(self._client, self._server, self._traffic.sent)
            await self._server.send_eof()

        async def down() -> None:
            await self._copy(self._server, self._client, self._traffic.received)
            await self._client.send_eof()

        async def run(direction: Callable[[], Awaitable[None]]) -> None:
            try:
                await direction()
            except (*BROKEN, Spent):
                self._pace.scope.cancel()

        with self._pace.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, up)
                tasks.start_soon(run, down)

    async def _send(self, to: ByteStream, data: bytes, count: Callable[[int], None]) -> None:
        if data:
            await to.send(data)
            count(len(data))
            self._pace.moved()

    async def _copy(self, source: ByteStream, to: ByteStream, count: Callable[[int], None]) -> None:
        while True:
            try:
                data = await source.receive(_READ_BYTES)
            except EndOfStream:
                return
            self._pace.moved()
            await self._send(to, data, count)
