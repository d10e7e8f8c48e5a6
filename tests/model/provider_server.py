"""A small HTTP server on loopback that answers like a model provider, one prepared answer per request.

It is for tests of providers: real sockets, real HTTP, the providers' documented streaming formats, no network.
"""

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketStream

HEAD_BYTES = 65_536
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pieces: tuple[bytes, ...] = ()
    """The body; each piece is sent separately."""
    end: bool = True
    """False drops the connection where the body would end."""
    hold: bool = False
    """Wait for the client to disconnect before that."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict[str, object])


class ModelServer:
    """Sends queued answers and records the requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[ReceivedRequest] = []
        self.left = anyio.Event()
        """Set when a client disconnected during an answer with `hold`."""
        self._answers: deque[Answer] = deque()

    def say(self, *answers: Answer) -> None:
        """Queue answers, one for each request to come. A request without one gets status 500."""
        self._answers.extend(answers)

    async def serve(self, stream: SocketStream) -> None:
        """One connection, one request."""
        async with stream:
            try:
                with anyio.fail_after(REQUEST_SECONDS):
                    self.asked.append(await _request(stream))
                    answer = self._answers.popleft() if self._answers else Answer(500)
                    await self._answer(stream, answer)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                self.left.set()
            except TimeoutError:
                return

    async def _answer(self, stream: SocketStream, answer: Answer) -> None:
        headers = {"connection": "close", "transfer-encoding": "chunked", **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in headers.items())]
        await stream.send("\r\n".join([*lines, "", ""]).encode())
        for piece in answer.pieces:
            await stream.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if answer.hold:
            await stream.receive()
        if answer.end:
            await stream.send(b"0\r\n\r\n")


@asynccontextmanager
async def open_model_server() -> AsyncGenerator[ModelServer]:
    """A server on a free loopback port for as long as the block lasts."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        server = ModelServer(f"http://127.0.0.1:{port}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server.serve)
            yield server
            tasks.cancel_scope.cancel()


async def _request(stream: SocketStream) -> ReceivedRequest:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
        if len(data) > HEAD_BYTES:
            raise anyio.BrokenResourceError
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive()
    return ReceivedRequest(method, path, headers, body)
