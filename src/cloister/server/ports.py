"""Servers inside a sandbox: `/v1/sandboxes/{id}/ports/{port}/…` and `{port}-{id}.localhost`, HTTP and WebSocket.

One connection inside per request. A strict parser reads the answer, which is passed on piece by piece.
"""

import logging
from typing import TYPE_CHECKING, Any, cast

import anyio
import h11
import msgspec
from anyio.abc import ByteStream
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send, WebSocketScope
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Event, State
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from cloister.core.errors import OutsideError
from cloister.server.auth import SUBPROTOCOL, caller_of
from cloister.server.errors import Problem, problem
from cloister.server.port_headers import Address, address, to_client, to_inside

if TYPE_CHECKING:
    from cloister.app.wiring import App


# A WebSocket between a client and a server inside a sandbox: message by message, with a strict parser on each side.


MESSAGE_BYTES = 16_777_216
"""Largest message from a server inside."""

HANDSHAKE_SECONDS = 30.0
SEND_SECONDS = 600.0
BAD_REPLY = "The program on that port does not answer as a web server: look at its log."

_OURS = (b"sec-websocket-", b"origin")
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class _Refused(Exception):
    """The server inside does not want a WebSocket."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


async def converse_inside(
    stream: ByteStream, where: Address, scope: WebSocketScope, receive: Receive, send: Send
) -> None:
    """Open a WebSocket inside and pass everything on until one side ends. Accepts or refuses the client's."""
    inner = _Inner(stream, where, scope)
    try:
        with anyio.fail_after(HANDSHAKE_SECONDS):
            chosen = await inner.open()
    except (_Refused, TimeoutError, *_GONE) as error:
        status = error.status if isinstance(error, _Refused) else 502
        body = msgspec.json.encode(Problem("bad_reply", BAD_REPLY))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})  # type: ignore[typeddict-item]
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})  # type: ignore[typeddict-item]
        return
    offered = [str(name) for name in scope["subprotocols"]]
    answer = chosen or (SUBPROTOCOL if offered[:1] == [SUBPROTOCOL] else None)
    await send({"type": "websocket.accept", "subprotocol": answer, "headers": []})
    async with anyio.create_task_group() as tasks:

        async def outwards() -> None:
            await inner.outwards(send)
            tasks.cancel_scope.cancel()

        tasks.start_soon(outwards)
        await inner.inwards(receive)
        tasks.cancel_scope.cancel()


class _Inner:
    """The WebSocket on the inner side."""

    def __init__(self, stream: ByteStream, where: Address, scope: WebSocketScope) -> None:
        self._stream = stream
        self._where = where
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        offered = [str(name) for name in scope["subprotocols"]]
        # The first two may be ours: the word and the token.
        wanted = offered[2:] if offered[:1] == [SUBPROTOCOL] else offered
        origin = next((value for name, value in to_inside(self._headers, where) if name == b"origin"), None)
        self._protocol = ClientProtocol(
            parse_uri(f"ws://localhost:{where.port}/"),
            origin=None if origin is None else Origin(origin.decode("latin-1")),
            subprotocols=[Subprotocol(name) for name in wanted] or None,
            max_size=MESSAGE_BYTES,
        )
        self._sending = anyio.Lock()
        self._parts: list[bytes] = []
        self._kind = Opcode.BINARY
        self._early: list[Event] = []

    async def open(self) -> str | None:
        """Shake hands; the subprotocol that was chosen. Raises `_Refused`."""
        request: Request = self._protocol.connect()
        request.path = self._where.target.decode("ascii", errors="strict")
        del request.headers["Host"]
        for name, value in to_inside(self._headers, self._where):
            if not name.startswith(_OURS):
                request.headers[name.decode("ascii")] = value.decode("latin-1")
        self._protocol.send_request(request)
        await self._flush()
        while True:
            self._protocol.receive_data(await self._stream.receive())
            for event in self._protocol.events_received():
                if not isinstance(event, Response):
                    self._early.append(event)  # it came in the same packet
                elif self._protocol.handshake_exc is not None:
                    raise _Refused(event.status_code if event.status_code >= 400 else 502)
            if self._protocol.state is State.OPEN:
                chosen = self._protocol.subprotocol
                return None if chosen is None else str(chosen)
            if self._protocol.state is State.CLOSED or self._protocol.handshake_exc is not None:
                raise _Refused(502)

    async def inwards(self, receive: Receive) -> None:
        """Pass on the client's messages until it leaves."""
        while True:
            event: dict[str, Any] = dict(await receive())
            try:
                if event["type"] == "websocket.disconnect":
                    code = event.get("code") or 1000
                    self._protocol.send_close(code if code != 1005 and code != 1006 else 1000)
                    with anyio.move_on_after(1):
                        await self._flush()
                    return
                if event.get("text") is not None:
                    self._protocol.send_text(event["text"].encode())
                else:
                    self._protocol.send_binary(event.get("bytes") or b"")
                with anyio.fail_after(SEND_SECONDS):
                    await self._flush()
            except (*_GONE, TimeoutError):
                return  # `outwards` closes the client's side

    async def outwards(self, send: Send) -> None:
        """Pass on the messages of the server inside until it ends; then close the client's side."""
        code, reason = 1011, "The server inside is gone."
        try:
            while self._protocol.state is not State.CLOSED:
                for event in [*self._early, *self._protocol.events_received()]:
                    if isinstance(event, Frame):
                        await self._pass_on(event, send)
                self._early.clear()
                await self._flush()
                if self._protocol.close_expected():
                    break
                self._protocol.receive_data(await self._stream.receive())
        except _GONE:
            pass
        if self._protocol.close_rcvd is not None:
            code, reason = self._protocol.close_rcvd.code, self._protocol.close_rcvd.reason
        elif self._protocol.close_sent is not None:
            code, reason = 1011, "The server inside broke the rules of WebSockets."
        await send({"type": "websocket.close", "code": 1000 if code == 1005 else code, "reason": reason})

    async def _pass_on(self, frame: Frame, send: Send) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._kind = frame.opcode
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        if self._kind is Opcode.BINARY:
            await send({"type": "websocket.send", "bytes": data, "text": None})
            return
        text = data.decode("utf-8", errors="replace")
        await send({"type": "websocket.send", "bytes": None, "text": text})

    async def _flush(self) -> None:
        async with self._sending:
            for data in self._protocol.data_to_send():
                # An empty piece marks the end of the stream.
                await (self._stream.send(data) if data else self._stream.send_eof())


IDLE_SECONDS = 600.0
"""How long a server inside may stay silent, or a client may not read."""

HEAD_BYTES = 65_536
_PORTS_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)

logger = logging.getLogger(__name__)


def with_ports(inner: ASGIApp, app: "App") -> ASGIApp:
    """`inner`, and in front of it the ports of the sandboxes of `app`."""

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
        sandbox = await app.previewed(where.sandbox, caller_of(scope).name, where.port)
        stream = await sandbox.dial(where.port)
    except Exception as error:  # every error ends the conversation
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
        sandbox = await app.previewed(where.sandbox, caller_of(scope).name, where.port)
        async with await sandbox.dial(where.port) as stream:
            await exchange.run(stream)
    except Exception as error:  # every error ends the request
        status, body = problem(error)
        if exchange.answered:
            # The answer has no end, which is how the client notices that it is incomplete.
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
        """Raises an error for `problem`, or returns early when the client has left."""
        failures: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                if not await self._ask(stream):
                    tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            try:
                await self._answer(stream)
            except (h11.RemoteProtocolError, TimeoutError, *_PORTS_GONE) as error:
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
        except _PORTS_GONE:
            # A server may answer before it has read the whole request: the answer decides.
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
                    raise h11.RemoteProtocolError("unexpected event")


async def _some(stream: ByteStream) -> bytes:
    """The next bytes; empty at the end."""
    try:
        return await stream.receive()
    except anyio.EndOfStream:
        return b""
