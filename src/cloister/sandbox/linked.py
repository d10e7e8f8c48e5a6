"""The part of a sandbox that is the same on every tier: all that goes through its guest."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.commands import Change, Command, Entry, Finished, Process, Sink
from cloister.sandbox.wire import Link


class Linked:
    """A `Computer`, and `Sandbox.dial`, by the link to a guest; a tier adds what it knows of the rest."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def start(self, command: Command) -> AbstractAsyncContextManager[Process]:
        return self._link.start(command)

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        return await self._link.run(command, stdin)

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        return await self._link.read(path, offset=offset, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._link.write(path, data, mode=mode)

    async def list(self, path: str) -> tuple[Entry, ...]:
        return await self._link.list(path)

    async def stat(self, path: str) -> Entry:
        return await self._link.stat(path)

    async def mark(self, path: str, *, without: str = "") -> int | None:
        return await self._link.mark(path, without=without)

    async def move(self, source: str, target: str) -> None:
        await self._link.move(source, target)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._link.remove(path, recursive=recursive)

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        await self._link.mkdir(path, mode=mode)

    def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._link.read_stream(path, offset=offset, limit_bytes=limit_bytes)

    def write_stream(self, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        return self._link.write_stream(path, mode=mode)

    def watch(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._link.watch(path)

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._link.download(path)

    def upload(self, path: str) -> AbstractAsyncContextManager[Sink]:
        return self._link.upload(path)

    async def dial(self, port: int) -> ByteStream:
        return await self._link.dial(port)
