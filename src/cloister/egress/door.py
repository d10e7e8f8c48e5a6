"""The door: one relayed connection at a time is asked where it wants to go, judged, and carried there."""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import msgspec
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream, SocketAttribute

from cloister.core import limits
from cloister.core.events import ConnectionClosed, ConnectionDecided
from cloister.core.ids import SandboxId
from cloister.core.text import one_line
from cloister.egress import outside
from cloister.egress.addresses import NEIGHBOURS, forbidden
from cloister.egress.client_hello import NotTls, receive_hello
from cloister.egress.http_head import BadHead, Head, parse_head
from cloister.egress.pump import BROKEN, Flow, Traffic
from cloister.policy.api import ConnectAction, Decision
from cloister.policy.hosts import is_address, normal_host

Decide = Callable[[ConnectAction], Decision]
Record = Callable[[SandboxId, ConnectionDecided | ConnectionClosed], Awaitable[None]]

_TLS_PORT = 443
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 262_144
_RECORD_SECONDS = 5.0
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class Bounds(msgspec.Struct, frozen=True):
    """How long and how much; see `core/limits.py`."""

    connections: int = limits.DOOR_CONNECTIONS
    head_seconds: float = limits.DOOR_HEAD_SECONDS
    dial_seconds: float = limits.DOOR_DIAL_SECONDS
    idle_seconds: float = limits.DOOR_IDLE_SECONDS


class _Refused(Exception):
    """The client is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Door:
    """The only way out of every sandbox of this process.

    Policy is asked by name before the name is resolved, so a denied name is never looked up. Every address
    that the name resolves to is judged, and exactly a judged address is dialled. A connection is recorded
    before it is made; if that fails, so does the connection, with the same error.
    """

    def __init__(
        self,
        decide: Decide,
        record: Record,
        *,
        resolve: outside.Resolve = outside.resolve,
        dial: outside.Dial = outside.dial,
        bounds: Bounds | None = None,
    ) -> None:
        self._decide = decide
        self._record = record
        self._resolve = resolve
        self._dial = dial
        self._bounds = bounds or Bounds()
        self._live: Counter[SandboxId] = Counter()

    async def serve(self, sandbox: SandboxId, client: ByteStream) -> None:
        """Serve one connection from inside to its end, and close it."""
        async with client:
            try:
                async with self._place(sandbox):
                    await self._serve(sandbox, client)
            except _Refused as refused:
                await _answer(client, refused.status, refused.sentence)
            except (EndOfStream, BrokenResourceError, ClosedResourceError):
                return

    @asynccontextmanager
    async def _place(self, sandbox: SandboxId) -> AsyncGenerator[None]:
        if self._live[sandbox] >= self._bounds.connections:
            raise _Refused(503, f"A sandbox has at most {self._bounds.connections} connections at a time.")
        self._live[sandbox] += 1
        try:
            yield
        finally:
            self._live[sandbox] -= 1
            if not self._live[sandbox]:
                del self._live[sandbox]

    async def _serve(self, sandbox: SandboxId, client: ByteStream) -> None:
        head, rest = await self._head(client)
        visit = _Visit(sandbox, head.host, head.port, self._record)
        addresses, exact = await self._judge(visit)
        traffic = Traffic()
        start = anyio.current_time()
        try:
            async with await self._connect(visit, addresses, exact=exact) as server:
                flow = Flow(client, server, traffic, self._bounds.idle_seconds)
                if head.tunnel:
                    await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await flow.tunnel(await self._opening(visit, client, rest))
                else:
                    await flow.exchange(head.forward, rest[: head.body_bytes], head.body_bytes)
        finally:
            with anyio.move_on_after(_RECORD_SECONDS, shield=True):
                await visit.closed(traffic, anyio.current_time() - start)

    async def _head(self, client: ByteStream) -> tuple[Head, bytes]:
        try:
            with anyio.fail_after(self._bounds.head_seconds):
                data, rest = await _receive_head(client)
            return parse_head(data), rest
        except TimeoutError:
            raise _Refused(408, "The request head did not come in time.") from None
        except BadHead as error:
            raise _Refused(error.status, error.message) from None

    async def _judge(self, visit: "_Visit") -> tuple[Sequence[str], bool]:
        """The addresses that may be dialled, and whether the rule names this very host and port."""
        try:
            visit.host = normal_host(visit.host)
        except ValueError as error:
            raise await visit.denied(f"it is not a host: {error}") from None
        decision = self._decide(ConnectAction(visit.host, visit.port))
        if decision.effect == "ask":
            raise await visit.denied(f"{decision.rule}: a connection cannot wait for a person")
        if decision.effect != "allow":
            raise await visit.denied(decision.rule)
        literal = is_address(visit.host)
        addresses = [visit.host] if literal else await self._addresses(visit, decision)
        for address in addresses:
            kind = forbidden(address)
            if kind is None or (decision.exact and (literal or kind in NEIGHBOURS)):
                continue
            raise await visit.denied(f"its address {one_line(address, 50)} is {kind}; {visit.remedy}")
        await visit.decided("allow", decision.rule)
        return addresses, decision.exact

    async def _addresses(self, visit: "_Visit", decision: Decision) -> Sequence[str]:
        try:
            with anyio.fail_after(self._bounds.dial_seconds):
                addresses = await self._resolve(visit.host, visit.port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            await visit.decided("allow", decision.rule)
            await visit.closed(Traffic(), 0.0)
            raise _Refused(502, f"{visit.host} cannot be resolved.")
        return addresses

    async def _connect(self, visit: "_Visit", addresses: Sequence[str], *, exact: bool) -> ByteStream:
        found = None
        with anyio.move_on_after(self._bounds.dial_seconds):
            found = await self._dial_any(addresses, visit.port)
        if found is None:
            raise _Refused(502, f"{visit.host} does not answer on port {visit.port}.")
        server, address = found
        if not exact and _is_own(server, address):
            await server.aclose()
            raise await visit.denied(f"its address {address} is this machine's; {visit.remedy}")
        return server

    async def _dial_any(self, addresses: Sequence[str], port: int) -> tuple[ByteStream, str] | None:
        for address in addresses:
            with suppress(OSError):
                return await self._dial(address, port), address
        return None

    async def _opening(self, visit: "_Visit", client: ByteStream, rest: bytes) -> bytes:
        """The first bytes of a tunnel; on the TLS port they must ask for the host that was judged."""
        if visit.port != _TLS_PORT:
            return rest
        try:
            with anyio.fail_after(self._bounds.head_seconds):
                opening, name = await receive_hello(client, rest)
        except (NotTls, TimeoutError):
            await visit.decided("deny", "port 443 carries TLS, and this is not")
            raise EndOfStream from None
        asked = visit.host if name is None and is_address(visit.host) else (name or "").lower()
        if asked != visit.host:
            await visit.decided("deny", f"the TLS name {one_line(asked, 100)!r} is not the host")
            raise EndOfStream
        return opening


class _Visit:
    """One connection on record."""

    def __init__(self, sandbox: SandboxId, host: str, port: int, record: Record) -> None:
        self.sandbox = sandbox
        self.host = host
        self.port = port
        self._record = record

    @property
    def remedy(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"only a rule for connect:{host}:{self.port} may open it, if any"

    async def decided(self, effect: Literal["allow", "deny"], rule: str) -> None:
        await self._record(self.sandbox, ConnectionDecided(self.sandbox, self.host, self.port, effect, rule))

    async def denied(self, rule: str) -> _Refused:
        await self.decided("deny", rule)
        return _Refused(403, f"{self.host}:{self.port} is denied: {one_line(rule, 300)}.")

    async def closed(self, traffic: Traffic, seconds: float) -> None:
        await self._record(
            self.sandbox,
            ConnectionClosed(
                self.sandbox, self.host, self.port, traffic.sent_bytes, traffic.received_bytes, seconds
            ),
        )


def _is_own(server: ByteStream, address: str) -> bool:
    """Whether a public address is one of this machine's own: then the connection comes from it, too."""
    local = server.extra(SocketAttribute.local_address, None)  # noqa: S610
    return isinstance(local, tuple) and local[0] == address


async def _receive_head(client: ByteStream) -> tuple[bytes, bytes]:
    """Everything up to the empty line, and what came after it. Raises `BadHead`."""
    read = bytearray()
    while (end := read.find(b"\r\n\r\n")) < 0:
        if len(read) >= limits.DOOR_HEAD_BYTES:
            raise BadHead(f"A request head has at most {limits.DOOR_HEAD_BYTES:,} bytes.", 431)
        read += await client.receive(limits.DOOR_HEAD_BYTES - len(read))
        if not 0x41 <= read[0] <= 0x5A:
            raise BadHead("This is an HTTP proxy, and this is not HTTP.")
    return bytes(read[: end + 4]), bytes(read[end + 4 :])


async def _answer(client: ByteStream, status: int, sentence: str) -> None:
    """Send the refusal, and read a little of what is still coming so that it is not lost in a reset."""
    body = sentence.encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with anyio.move_on_after(_LINGER_SECONDS), suppress(EndOfStream, *BROKEN):
        await client.send(head.encode("ascii") + body)
        await client.send_eof()
        left = _LINGER_BYTES
        while left > 0:
            left -= len(await client.receive())
