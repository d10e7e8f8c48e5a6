"""Servers inside a sandbox: `/v1/sandboxes/{id}/ports/{port}/…` and `{port}-{id}.localhost`, HTTP and WebSocket.

One connection inside per request. What comes back is read by a strict parser and passed on piece by piece.
"""

import logging
from typing import TYPE_CHECKING, cast

import anyio
import h11
import msgspec
from anyio.abc import ByteStream
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send, WebSocketScope

from cloister.core.errors import OutsideError
from cloister.server.errors import problem
from cloister.server.port_headers import Address, address, to_client, to_inside
from cloister.server.port_sockets import BAD_REPLY, converse_inside

if TYPE_CHECKING:
    from cloister.app import App

IDLE_SECONDS = 600.0
"""How long a server inside may be silent, and a client may not read."""

HEAD_BYTES = 65_536
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)

logger = logging.getLogger(__name__)


def with_ports(inner: ASGIApp, app: "App") -> ASGIApp:
    """`inner`, and before it the ports of the sandboxes of `app`."""

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await inner(scope, receive, send)
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").lower()
        raw = scope["raw_path"] or scope["path"].encode()
        where = address(host, scope["path"], raw, scope["query_string"])
        if where is None:
            await inner(scope, receive, send)
        elif scope["type"] == "websocket":
            await _socket(app, where, cast(WebSocketScope, scope), receive, send)
        else:
            await _http(app, where, cast(HTTPScope, scope), receive, send)

    return choose


async def _socket(app: "App", where: Address, scope: WebSocketScope, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    try:
        stream = await app.sandboxes.get(where.sandbox).dial(where.port)
    except Exception as error:  # the conversation ends here, whatever it was
        status, body = problem(error)
        await _deny(send, status, msgspec.json.encode(body))
        return
    async with stream:
        await converse_inside(stream, where, scope, receive, send)


async def _deny(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})  # type: ignore[typeddict-item]
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})  # type: ignore[typeddict-item]


async def _http(app: "App", where: Address, scope: HTTPScope, receive: Receive, send: Send) -> None:
    exchange = _Exchange(where, scope, receive, send)
    try:
        async with await app.sandboxes.get(where.sandbox).dial(where.port) as stream:
            await exchange.run(stream)
    except Exception as error:  # the request ends here, whatever it was
        status, body = problem(error)
        if exchange.answered:
            # Without its end: that is how the client learns that it has not got all of it.
            logger.info("An answer from port %d of %s broke off.", where.port, where.sandbox)
            return
        data = msgspec.json.encode(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": False})


class _Exchange:
    """One request to a server inside and its answer."""

    def __init__(self, where: Address, scope: HTTPScope, receive: Receive, send: Send) -> None:
        self.answered = False
        self._where = where
        self._scope = scope
        self._receive = receive
        self._send = send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    async def run(self, stream: ByteStream) -> None:
        """Raises what `problem` knows, or ends early when the client has gone."""
        failures: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                if not await self._ask(stream):
                    tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            try:
                await self._answer(stream)
            except (h11.RemoteProtocolError, TimeoutError, *_GONE) as error:
                failures.append(OutsideError("bad_reply", BAD_REPLY))
                logger.debug("port %d: %s", self._where.port, error)
            tasks.cancel_scope.cancel()
        if failures:
            raise failures[0]

    async def _ask(self, stream: ByteStream) -> bool:
        """Send the request with its body, then wait for the client to hang up; False when it did."""
        request, has_body = self._request()
        try:
            await stream.send(self._http.send(request) or b"")
            while True:
                event = await self._receive()
                if event["type"] == "http.disconnect":
                    return False
                if event["type"] != "http.request" or self._http.our_state is not h11.SEND_BODY:
                    continue
                if has_body and event["body"]:
                    with anyio.fail_after(IDLE_SECONDS):
                        await stream.send(self._http.send(h11.Data(data=event["body"])) or b"")
                if not event["more_body"]:
                    await stream.send(self._http.send(h11.EndOfMessage()) or b"")
        except _GONE:
            # It need not read all of a request to answer it. The answer decides, or the lack of one.
            return True

    def _request(self) -> tuple[h11.Request, bool]:
        headers = to_inside(self._scope["headers"], self._where)
        length = next((value for name, value in self._scope["headers"] if name == b"content-length"), None)
        chunked = any(name == b"transfer-encoding" for name, _ in self._scope["headers"])
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        elif length is not None:
            headers.append((b"content-length", length))
        headers.append((b"connection", b"close"))
        request = h11.Request(method=self._scope["method"], headers=headers, target=self._where.target)
        return request, chunked or length is not None

    async def _answer(self, stream: ByteStream) -> None:
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    with anyio.fail_after(IDLE_SECONDS):
                        self._http.receive_data(await _some(stream))
                case h11.Response():
                    self.answered = True
                    headers = to_client(event.headers, self._where)
                    await self._send(
                        {"type": "http.response.start", "status": event.status_code, "headers": headers}
                    )
                case h11.Data():
                    await self._send(
                        {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
                    )
                case h11.EndOfMessage():
                    await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                case h11.InformationalResponse() if event.status_code != 101:
                    continue
                case _:
                    raise h11.RemoteProtocolError("it answered what was not asked")


async def _some(stream: ByteStream) -> bytes:
    """What comes next; empty at the end."""
    try:
        return await stream.receive()
    except anyio.EndOfStream:
        return b""
