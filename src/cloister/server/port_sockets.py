"""A WebSocket between a client and a server inside a sandbox, message by message, each side read strictly."""

from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream
from litestar.types import Receive, Send, WebSocketScope
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Event, State
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from cloister.server.auth import SUBPROTOCOL
from cloister.server.errors import Problem
from cloister.server.port_headers import Address, to_inside

MESSAGE_BYTES = 16_777_216
"""Largest message of a server inside."""

HANDSHAKE_SECONDS = 30.0
SEND_SECONDS = 600.0
BAD_REPLY = "What listens there does not answer as a web server should: look at its log."

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
                    self._early.append(event)  # it speaks in the same breath
                elif self._protocol.handshake_exc is not None:
                    raise _Refused(event.status_code if event.status_code >= 400 else 502)
            if self._protocol.state is State.OPEN:
                chosen = self._protocol.subprotocol
                return None if chosen is None else str(chosen)
            if self._protocol.state is State.CLOSED or self._protocol.handshake_exc is not None:
                raise _Refused(502)

    async def inwards(self, receive: Receive) -> None:
        """What the client says, until it goes."""
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
                return  # `outwards` tells the client

    async def outwards(self, send: Send) -> None:
        """What the server inside says, until it ends; then the client is told."""
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
                # An empty piece is the protocol's word for the end of the stream.
                await (self._stream.send(data) if data else self._stream.send_eof())
