"""A computer that is still being made: what an attempt asks of it waits until it is there."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio

from cloister.core import limits
from cloister.core.computer import Change, Command, Computer, Entry, Finished, Process, Sink

T = TypeVar("T")


class ArrivingComputer:
    """`Computer` whose methods wait for `arrive`."""

    def __init__(self) -> None:
        self._computer: Computer | None = None
        self._here = anyio.Event()

    def arrive(self, computer: Computer) -> None:
        """Let everything that waits go on with `computer`."""
        self._computer = computer
        self._here.set()

    async def _there(self) -> Computer:
        await self._here.wait()
        assert self._computer is not None  # noqa: S101  (set before the event)
        return self._computer

    def start(self, command: Command) -> AbstractAsyncContextManager[Process]:
        return self._within(lambda computer: computer.start(command))

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        return await (await self._there()).run(command, stdin)

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        return await (await self._there()).read(path, offset=offset, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await (await self._there()).write(path, data, mode=mode)

    async def list(self, path: str) -> tuple[Entry, ...]:
        return await (await self._there()).list(path)

    async def stat(self, path: str) -> Entry:
        return await (await self._there()).stat(path)

    async def mark(self, path: str, *, without: str = "") -> int | None:
        return await (await self._there()).mark(path, without=without)

    async def move(self, source: str, target: str) -> None:
        await (await self._there()).move(source, target)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await (await self._there()).remove(path, recursive=recursive)

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        await (await self._there()).mkdir(path, mode=mode)

    def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._within(lambda there: there.read_stream(path, offset=offset, limit_bytes=limit_bytes))

    def write_stream(self, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        return self._within(lambda computer: computer.write_stream(path, mode=mode))

    def watch(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._within(lambda computer: computer.watch(path))

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._within(lambda computer: computer.download(path))

    def upload(self, path: str) -> AbstractAsyncContextManager[Sink]:
        return self._within(lambda computer: computer.upload(path))

    @asynccontextmanager
    async def _within(
        self, opened: Callable[[Computer], AbstractAsyncContextManager[T]]
    ) -> AsyncGenerator[T]:
        async with opened(await self._there()) as value:
            yield value
