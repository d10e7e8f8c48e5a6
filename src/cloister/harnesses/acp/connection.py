"""JSON-RPC 2.0 with a program in the sandbox, on the pipes of its command: one JSON object per line.

Messages are handled one after the other, in their order: while one is handled, no other is read, and the program waits.
The response of a request that Cloister made comes in the same order, so all that was sent before it is handled by then.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import msgspec

from cloister.core import limits
from cloister.core.computer import Command, Computer, Exited, Output, Process
from cloister.core.errors import UserError
from cloister.core.text import bounded, decode, one_line
from cloister.harnesses.acp.messages import Message, decoded

LINE_BYTES = 4_194_304
"""The longest message; a longer one ends the program."""
_TAIL_BYTES = 4_000

T = TypeVar("T")

Handle = Callable[[Message], Awaitable[None]]
"""Handles one request or notification of the program."""


class Died(Exception):
    """The program ended, or broke the protocol. The message says what is known, in one sentence."""


class Refusal(Exception):
    """The program answered a request with an error."""


class Waiting:
    """What the program will send: the response to a request, or the message that ends something."""

    def __init__(self) -> None:
        self.here = anyio.Event()
        self.response: Message | None = None

    def end(self, message: Message) -> None:
        self.response = message
        self.here.set()


class Connection:
    """The conversation with one running program."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name
        self._waiting: dict[int, Waiting] = {}
        self._count = 0
        self._sending = anyio.Lock()
        self._ended = ""
        self._tail = b""
        self.read_line: Callable[[bytes], Message | None] = _read
        self.write_request: Callable[[int, str, Mapping[str, Any]], Mapping[str, Any]] = _request

    async def request(self, method: str, params: Mapping[str, Any], kind: type[T]) -> T:
        """The response to a request. Raises `Died` and `Refusal`."""
        with self.expecting() as waiting:
            await self.send(self.write_request(self._count, method, params))
            response = await self.wait(waiting)
        if response.error is not None:
            raise Refusal(one_line(response.error.message or "no reason", 300) + self._detail(response))
        found = decoded(response.result, kind)
        if found is None:
            raise Died(f"The harness {self._name} answered {method} with something else than a result.")
        return found

    @contextmanager
    def expecting(self) -> Generator[Waiting]:
        """Something that the program will send; `wait` waits for it. Raises `Died`."""
        if self._ended:
            raise Died(self._ended)
        self._count += 1
        number, waiting = self._count, Waiting()
        self._waiting[number] = waiting
        try:
            yield waiting
        finally:
            del self._waiting[number]

    async def wait(self, waiting: Waiting) -> Message:
        """Raises `Died` if the program ends before."""
        await waiting.here.wait()
        if waiting.response is None:
            raise Died(self._ended)
        return waiting.response

    @staticmethod
    def _detail(response: Message) -> str:
        data = bytes(response.error.data) if response.error else b"null"
        return "" if data in (b"null", b"{}") else f" ({one_line(decode(data[:600]), 300)})"

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def answer(self, message: Message, result: Mapping[str, Any]) -> None:
        await self.send({"jsonrpc": "2.0", "id": message.id, "result": result})

    async def refuse(self, message: Message, why: str) -> None:
        """Say that a request cannot be served here."""
        error = {"code": -32601, "message": why}
        await self.send({"jsonrpc": "2.0", "id": message.id, "error": error})

    async def send(self, message: Mapping[str, Any]) -> None:
        async with self._sending:
            await self._process.send(msgspec.json.encode(message) + b"\n")

    async def serve(self, handle: Handle) -> None:
        """Read until the program ends; requests that wait then fail with `Died`."""
        rest = bytearray()
        try:
            async for item in self._process:
                match item:
                    case Output(stream="out", data=data):
                        *lines, last = (rest + data).split(b"\n") if b"\n" in data else (rest + data,)
                        rest = bytearray(last)
                        for line in lines:
                            await self._line(bytes(line), handle)
                        if len(rest) > LINE_BYTES:
                            self._ended = (
                                f"The harness {self._name} sent a message of more than {LINE_BYTES:,} bytes."
                            )
                            return
                    case Output(data=data):
                        self._tail = (self._tail + data)[-_TAIL_BYTES:]
                    case Exited() as exited:
                        self._ended = self._end(exited)
                        return
        finally:
            self._ended = self._ended or f"The harness {self._name} is not read any more."
            for waiting in self._waiting.values():
                waiting.here.set()

    def _end(self, exited: Exited) -> str:
        how = f"exit code {exited.code}" if exited.code is not None else f"signal {exited.signal}"
        said = one_line(bounded(decode(self._tail), 600), 400)
        return f"The harness {self._name} ended ({how})." + (f" It printed: {said}" if said else "")

    async def _line(self, line: bytes, handle: Handle) -> None:
        if not line.strip():
            return
        message = self.read_line(line)
        if message is None:
            self._tail = (self._tail + line + b"\n")[-_TAIL_BYTES:]  # some print a greeting
            return
        if message.method is not None:
            await handle(message)
        elif isinstance(message.id, int) and message.id in self._waiting:
            self._waiting[message.id].end(message)


def _read(line: bytes) -> Message | None:
    return decoded(msgspec.Raw(line), Message)


def _request(number: int, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@asynccontextmanager
async def started(
    computer: Computer, name: str, argv: tuple[str, ...], env: Mapping[str, str]
) -> AsyncGenerator[Connection]:
    """Start a program; leaving the block kills its whole tree. Raises `Died`."""
    command = Command(
        argv,
        env=dict(env),
        seconds=limits.TTL_SECONDS_MAX,
        limit_bytes=limits.ENDLESS_BYTES,
        grace_seconds=0.5,
    )
    async with AsyncExitStack() as stack:
        try:
            process = await stack.enter_async_context(computer.start(command))
        except UserError as error:
            raise Died(f"The harness {name} cannot be started: {error.message}") from None
        yield Connection(process, name)
