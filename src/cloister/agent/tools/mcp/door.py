"""HTTP to an MCP server through an egress proxy of this process: the policy decides and credentials are added there."""

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpcore2
import httpx2
from anyio.abc import ByteStream, SocketStream, TaskGroup
from anyio.streams.tls import TLSStream
from mcp.client.streamable_http import streamable_http_client

from cloister.agent.tools.mcp.connection import CALL_BYTES, MESSAGE_BYTES, Connect, Streams, Tail
from cloister.core.errors import HostError

_CONNECT_SECONDS = 30.0
_READ_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True)
class Way:
    """The way out of one server's client."""

    serve: Callable[[ByteStream], Coroutine[Any, Any, None]]
    """Serves one connection to the proxy."""
    authority: Callable[[], bytes]
    """The certificate of the proxy, which signs those of hosts whose requests it reads."""


def over_http(url: str, open_way: Callable[[], Awaitable[Way]]) -> Connect:
    """A server at an address, by streamable HTTP."""

    @asynccontextmanager
    async def connect(tail: Tail) -> AsyncGenerator[Streams]:
        way = await open_way()
        context = ssl.create_default_context()
        if url.startswith("https:"):
            context.load_verify_locations(cadata=way.authority().decode("ascii"))
        async with anyio.create_task_group() as tasks:
            transport = _Transport(way, tasks, context, tail)
            timeout = httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
            # `trust_env` would read proxies and passwords of this process's environment.
            async with (
                httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client,
                streamable_http_client(url, http_client=client, max_sse_event_size=MESSAGE_BYTES) as streams,
            ):
                yield streams
            tasks.cancel_scope.cancel()

    return connect


class _Transport(httpx2.AsyncBaseTransport):
    """Sends requests to the proxy, over pairs of sockets without an address."""

    def __init__(self, way: Way, tasks: TaskGroup, context: ssl.SSLContext, tail: Tail) -> None:
        self._tail = tail
        self._pool = httpcore2.AsyncHTTPProxy(
            proxy_url="http://proxy/",
            ssl_context=context,
            max_connections=8,
            network_backend=_Backend(way, tasks),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        sent = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=[
                (name, value) for name, value in request.headers.raw if name.lower() != b"accept-encoding"
            ],
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            reply = await self._pool.handle_async_request(sent)
        except (
            httpcore2.NetworkError,
            httpcore2.ProxyError,
            httpcore2.ProtocolError,
            httpcore2.TimeoutException,
        ) as error:
            self._tail.add(str(error).encode())
            raise httpx2.ConnectError(str(error), request=request) from None
        if any(name.lower() == b"content-encoding" for name, _ in reply.headers):
            await reply.aclose()
            raise httpx2.ReadError("The server compressed its reply unasked.", request=request)
        return httpx2.Response(reply.status, headers=reply.headers, stream=_Bounded(reply, self._tail))

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A reply with one message, or a stream of many, which are counted."""

    def __init__(self, reply: httpcore2.Response, tail: Tail) -> None:
        self._reply = reply
        self._tail = tail

    async def __aiter__(self) -> AsyncIterator[bytes]:
        kinds = (value for name, value in self._reply.headers if name.lower() == b"content-type")
        room = CALL_BYTES if any(b"event-stream" in kind for kind in kinds) else MESSAGE_BYTES
        async for part in self._reply.aiter_stream():
            room -= len(part)
            try:
                self._tail.took(len(part), part.count(b"data:"))
                if room < 0:
                    raise self._tail.refused(f"a message of more than {MESSAGE_BYTES:,} bytes")
            except HostError as error:
                raise httpx2.ReadError(error.message) from None
            yield part

    async def aclose(self) -> None:
        await self._reply.aclose()


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self, way: Way, tasks: TaskGroup) -> None:
        self._way = way
        self._tasks = tasks

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of the library)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        del host, port, timeout, local_address, socket_options  # there is only the proxy
        ours, theirs = socket.socketpair()
        client, server = await SocketStream.from_socket(ours), await SocketStream.from_socket(theirs)
        self._tasks.start_soon(partial(self._way.serve, server))
        return _Stream(client)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class _Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            with anyio.fail_after(timeout):
                return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except TimeoutError:
            raise httpcore2.ReadTimeout from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise httpcore2.ReadError from None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            with anyio.fail_after(timeout):
                if buffer:
                    await self._stream.send(buffer)
        except TimeoutError:
            raise httpcore2.WriteTimeout from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise httpcore2.WriteError from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with anyio.fail_after(timeout):
                secure = await TLSStream.wrap(
                    self._stream, hostname=server_hostname, ssl_context=ssl_context, standard_compatible=False
                )
        except (ssl.SSLError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            await self.aclose()
            raise httpcore2.ConnectError(str(error)) from None
        return _Stream(secure)
