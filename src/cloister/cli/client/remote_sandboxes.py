"""The verbs over HTTP: sandboxes, their commands, ports and files."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.abc import ByteStream
from websockets.exceptions import ConnectionClosed

from cloister.app.verbs import api
from cloister.app.verbs.declare import BUILD_SECONDS, END_SECONDS, no_report
from cloister.app.verbs.records import Executed
from cloister.app.workbench.commands import Skipped
from cloister.cli.client.http import Group, address, check_close, decoded
from cloister.core.computer import Change, Exited, Killed, Output, Pty
from cloister.core.errors import HostError, SandboxLost
from cloister.sandbox.api import SandboxInfo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from websockets.asyncio.client import ClientConnection

    from cloister.app.verbs.records import Exec, Execute, NewCommand, NewSandbox, RunCode
    from cloister.core.computer import Sink
    from cloister.sandbox.api import Report
    from cloister.sandbox.code.contexts import CodeResult, Told

STDIN_BYTES = 1_048_576
"""Input sent before the server confirms that some of it was taken."""


class _Ended(msgspec.Struct, frozen=True):
    exit_code: int | None
    signal: int | None = None
    killed: Killed | None = None
    seconds: float = 0.0


class _Message(msgspec.Struct, frozen=True):
    exited: _Ended | None = None
    taken: int = 0
    skipped: int = 0
    change: Change | None = None


class RemoteAttached:
    """A command on a WebSocket. Iterate it while sending, or sending blocks."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._may_send = STDIN_BYTES
        self._room = anyio.Event()
        self._over = False

    async def __aiter__(self) -> AsyncGenerator[Output | Skipped | Exited]:
        try:
            while True:
                message = await self._socket.recv()
                if isinstance(message, bytes):
                    yield Output("out" if message[:1] == b"\x01" else "err", message[1:])
                    continue
                said = decoded(_Message, message)
                self._may_send += said.taken
                self._room.set()
                if said.skipped:
                    yield Skipped(said.skipped)
                if said.exited is not None:
                    ended = said.exited
                    yield Exited(ended.exit_code, ended.signal, ended.killed, ended.seconds)
                    return
        except ConnectionClosed:
            raise _lost(self._socket) from None
        finally:
            self._over = True
            self._room.set()

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), STDIN_BYTES):
            piece = data[start : start + STDIN_BYTES]
            while self._may_send < len(piece) and not self._over:
                self._room = anyio.Event()
                await self._room.wait()
            self._may_send -= len(piece)
            await self._send(piece)

    async def send_eof(self) -> None:
        await self._send('{"eof": true}')

    async def signal(self, number: int) -> None:
        await self._record(signal=number)

    async def resize(self, size: Pty) -> None:
        await self._record(resize=size)

    async def kill(self) -> None:
        await self._record(kill=True)

    async def _record(self, **members: object) -> None:
        await self._send(msgspec.json.encode(members).decode())

    async def _send(self, message: bytes | str) -> None:
        # After the end there is nothing to send to; the iteration says how it ended.
        with suppress(ConnectionClosed):
            await self._socket.send(message)


class RemoteProcess(RemoteAttached):
    """A live command: all of its output is kept until it is read."""

    async def __aiter__(self) -> AsyncGenerator[Output | Exited]:
        async with aclosing(super().__aiter__()) as items:
            async for item in items:
                if not isinstance(item, Skipped):
                    yield item


def _lost(socket: ClientConnection) -> Exception:
    """The error of a connection that closed too early. Raises the server's refusal."""
    check_close(socket)
    if socket.close_code == 1001:
        return HostError("server_stopping", "The server stopped, and with it the sandbox.")
    return SandboxLost(socket.close_reason or "The connection to the sandbox was lost.")


class RemoteStream(ByteStream):
    """A connection to a port inside a sandbox."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._left = b""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while not self._left:
            try:
                message = await self._socket.recv()
            except ConnectionClosed:
                check_close(self._socket)
                raise anyio.EndOfStream from None
            self._left = message if isinstance(message, bytes) else b""
        data, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        try:
            await self._socket.send(item)
        except ConnectionClosed:
            raise anyio.BrokenResourceError from None

    async def send_eof(self) -> None:
        with suppress(ConnectionClosed):
            await self._socket.send('{"eof": true}')

    async def aclose(self) -> None:
        await self._socket.close()


async def _first(socket: ClientConnection) -> None:
    """Wait for the first message, which confirms. Raises the server's refusal."""
    try:
        await socket.recv()
    except ConnectionClosed:
        raise _lost(socket) from None


class RemoteSandboxes(Group, api.SandboxVerbs):
    """`SandboxVerbs` over HTTP."""

    async def create(self, wish: NewSandbox, report: Report = no_report) -> tuple[SandboxInfo, bool]:
        status, reply = await self.http.exchange("POST", address("sandboxes"), wish, BUILD_SECONDS)
        return decoded(SandboxInfo, reply), status == 201

    async def resolve(self, name: str) -> SandboxInfo:
        from cloister.app.verbs.local_sandboxes import resolved

        return await resolved(self, name)

    async def exec(self, sandbox: str, command: Exec) -> Executed:
        path = address("sandboxes", sandbox, "exec")
        return await self.http.post(Executed, path, command, command.seconds + END_SECONDS)

    async def execute(self, sandbox: str, program: Execute) -> Executed:
        path = address("sandboxes", sandbox, "execute")
        return await self.http.post(Executed, path, program, program.seconds + END_SECONDS)

    async def run_code(
        self, sandbox: str, context: str, code: RunCode, told: Told | None = None
    ) -> CodeResult:
        from cloister.sandbox.code.contexts import CodeResult

        path = address("sandboxes", sandbox, "contexts", context, "run")
        ran = await self.http.post(CodeResult, path, code, code.seconds + END_SECONDS)
        if told is not None:
            told("out", ran.stdout)
            told("err", ran.stderr)
        return ran

    @asynccontextmanager
    async def process(self, sandbox: str, command: NewCommand) -> AsyncGenerator[RemoteProcess]:
        await self.get(sandbox)  # a WebSocket that is refused has no error code
        async with self.http.dial(address("sandboxes", sandbox, "process"), patient=True) as socket:
            with suppress(ConnectionClosed):  # a refusal may come first; the iteration raises it
                await socket.send(msgspec.json.encode({"start": command}).decode())
            yield RemoteProcess(socket)

    @asynccontextmanager
    async def attach(self, sandbox: str, command: str, offset: int = 0) -> AsyncGenerator[RemoteAttached]:
        await self.output(sandbox, command, offset)  # a WebSocket that is refused has no error code
        path = address("sandboxes", sandbox, "commands", command, "attach", offset=offset)
        async with self.http.dial(path, patient=True) as socket:
            yield RemoteAttached(socket)

    @asynccontextmanager
    async def dial(self, sandbox: str, port: int) -> AsyncGenerator[ByteStream]:
        await self.get(sandbox)
        async with self.http.dial(address("sandboxes", sandbox, "dial", port), patient=True) as socket:
            await _first(socket)
            yield RemoteStream(socket)


class RemoteFiles(Group, api.FileVerbs):
    """`FileVerbs` over HTTP."""

    def read(
        self, sandbox: str, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self.http.receiving(
            address("sandboxes", sandbox, "files", path=path, offset=offset, limit=limit_bytes)
        )

    def write(self, sandbox: str, path: str, *, mode: int = 0o644) -> AbstractAsyncContextManager[Sink]:
        return self.http.sending(address("sandboxes", sandbox, "files", path=path, mode=f"{mode:03o}"))

    async def mkdir(self, sandbox: str, path: str, *, mode: int = 0o755) -> None:
        body = {"path": path, "mode": f"{mode:03o}"}
        await self.http.ask("POST", address("sandboxes", sandbox, "files", "mkdir"), body)

    def download(self, sandbox: str, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self.http.receiving(address("sandboxes", sandbox, "tree", path=path))

    def upload(self, sandbox: str, path: str) -> AbstractAsyncContextManager[Sink]:
        return self.http.sending(address("sandboxes", sandbox, "tree", path=path))

    @asynccontextmanager
    async def watch(self, sandbox: str, path: str = ".") -> AsyncGenerator[AsyncIterator[Change]]:
        await self.stat(sandbox, path)
        route = address("sandboxes", sandbox, "files", "watch", path=path)
        async with self.http.dial(route, patient=True) as socket:
            await _first(socket)
            async with aclosing(_changes(socket)) as changes:
                yield changes


async def _changes(socket: ClientConnection) -> AsyncGenerator[Change]:
    try:
        while True:
            if change := decoded(_Message, await socket.recv()).change:
                yield change
    except ConnectionClosed:
        if socket.close_code != 1000:
            raise _lost(socket) from None
