"""A small internet for the tests of the door: names, addresses, listeners, certificates, and what was recorded."""

import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from cloister.core.events import ConnectionClosed, ConnectionDecided, RequestDecided
from cloister.core.ids import SandboxId
from cloister.core.requests import DoorBounds
from cloister.egress.authority import Authority
from cloister.egress.factory import Outfit
from cloister.egress.http.connection import Offer
from cloister.egress.proxy import Door
from cloister.egress.rules import DoorEvent, Outside
from cloister.policy.api import Action, Decision, Layer, Policy, Rule
from cloister.policy.decide import decide

SANDBOX = SandboxId("s-test0000")
PUBLIC = "93.184.216.34"
Serve = Callable[[SocketStream], Awaitable[None]]


class World:
    """Names, addresses and listeners of a small internet, and the log of the door."""

    def __init__(self, *allowed: str, may_widen: bool = True, denied: Sequence[str] = ()) -> None:
        """`allowed` are hosts, or whole actions."""
        actions = [
            host if host.startswith(("request:", "credential:", "push:", "raw:")) else f"connect:{host}"
            for host in allowed
        ]
        rules = (
            *(Rule(action, "allow", "test") for action in actions),
            *(Rule(action, "deny", "test") for action in denied),
        )
        self.policy: Policy = (Layer("host", rules, may_widen),)
        self.names: dict[str, list[str]] = {}
        self.listeners: dict[str, int] = {}
        self.resolved: list[str] = []
        self.dialled: list[str] = []
        self.log: list[DoorEvent] = []
        self.closed = anyio.Event()
        self.authority = Authority()
        """Whom everyone in this internet trusts."""

    @property
    def outside(self) -> Outside:
        trust = ssl.create_default_context(cadata=self.authority.pem.decode())
        return Outside(self.resolve, self.dial, trust)

    def has(self, name: str, port: int, address: str = PUBLIC) -> None:
        """From now on `name` is served at a public address, by what listens on a port here."""
        self.names[name] = [address]
        self.listeners[address] = port

    def decide(self, action: Action) -> Decision:
        return decide(self.policy, action)

    async def record(self, sandbox: SandboxId, body: DoorEvent) -> None:
        assert sandbox == body.sandbox == SANDBOX
        self.log.append(body)
        if isinstance(body, ConnectionClosed):
            self.closed.set()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    async def dial(self, address: str, port: int) -> ByteStream:
        self.dialled.append(address)
        if address not in self.listeners:
            raise OSError("refused")
        return await anyio.connect_tcp("127.0.0.1", self.listeners[address])

    @property
    def decisions(self) -> list[tuple[str, str]]:
        return [(body.effect, body.rule) for body in self.log if isinstance(body, ConnectionDecided)]

    @property
    def requests(self) -> list[tuple[str, str, str, str | None]]:
        found = [body for body in self.log if isinstance(body, RequestDecided)]
        return [(body.effect, body.method, body.path, body.credential) for body in found]

    @property
    def traffic(self) -> list[tuple[int, int]]:
        return [
            (body.sent_bytes, body.received_bytes) for body in self.log if isinstance(body, ConnectionClosed)
        ]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncGenerator[int]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def entering(door: Door | Outfit) -> AsyncGenerator[Callable[[], Awaitable[SocketStream]]]:
    """The door behind a port, as the relay is for a program inside."""

    async def serve(client: SocketStream) -> None:
        await door.serve(SANDBOX, client)

    async with listening(serve) as port:

        async def connect() -> SocketStream:
            return await anyio.connect_tcp("127.0.0.1", port)

        with anyio.fail_after(20):
            yield connect


@asynccontextmanager
async def going(
    world: World, bounds: DoorBounds | None = None, offer: Offer | None = None
) -> AsyncGenerator[Callable[[], Awaitable[SocketStream]]]:
    door = Door(world.decide, world.record, outside=world.outside, bounds=bounds, offer=offer)
    async with entering(door) as connect:
        yield connect


@asynccontextmanager
async def secure_going(
    world: World,
    bounds: DoorBounds | None = None,
    offer: Offer | None = None,
    alpn: Sequence[str] = (),
) -> AsyncGenerator[Callable[[str], Awaitable[TLSStream]]]:
    """As `going`; connects by CONNECT and TLS to a host, as a program inside that trusts the door's authority."""
    door = Door(world.decide, world.record, outside=world.outside, bounds=bounds, offer=offer)
    trust = ssl.create_default_context(cadata=door.authority.pem.decode())
    if alpn:
        trust.set_alpn_protocols(alpn)
    async with entering(door) as connect:

        async def secure(host: str) -> TLSStream:
            client = await connect()
            await client.send(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
            assert await read_until(client, b"\r\n\r\n") == ESTABLISHED
            try:
                return await TLSStream.wrap(
                    client, hostname=host, ssl_context=trust, standard_compatible=False
                )
            except ssl.SSLError:
                await client.aclose()
                raise

        yield secure


def over_tls(world: World, host: str, serve: Callable[[ByteStream], Awaitable[None]]) -> Serve:
    """Serve as `host`, with a certificate that this internet trusts."""

    async def secure(stream: SocketStream) -> None:
        try:
            async with await TLSStream.wrap(
                stream,
                server_side=True,
                ssl_context=world.authority.context(host),
                standard_compatible=False,
            ) as inner:
                await serve(inner)
        except (ssl.SSLError, EndOfStream, BrokenResourceError):
            await stream.aclose()

    return secure


def scripted(seen: list[bytes], *answers: bytes) -> Callable[[ByteStream], Awaitable[None]]:
    """Answers each request, which has no body or one with a Content-Length, with the next answer; then hangs up."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            with suppress(EndOfStream, BrokenResourceError):
                await talk(stream)

    async def talk(stream: ByteStream) -> None:
        data = b""
        for answer in answers:
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, data = data.partition(b"\r\n\r\n")
            found = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)", head)
            size = int(found[1]) if found else 0
            while len(data) < size:
                data += await stream.receive()
            seen.append(head + b"\r\n\r\n" + data[:size])
            data = data[size:]
            await stream.send(answer)

    return serve


async def read_all(stream: ByteStream) -> bytes:
    data = b""
    try:
        while True:
            data += await stream.receive()
    except (EndOfStream, BrokenResourceError):
        return data


async def read_until(stream: ByteStream, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += await stream.receive()
    return data


async def ask(connect: Callable[[], Awaitable[SocketStream]], data: bytes) -> bytes:
    async with await connect() as client:
        await client.send(data)
        return await read_all(client)


async def echo(stream: SocketStream) -> None:
    async with stream:
        try:
            while True:
                await stream.send(await stream.receive())
        except (EndOfStream, BrokenResourceError):
            await stream.send_eof()


def web(seen: list[bytes], body_bytes: int = 0) -> Serve:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            head = await read_until(stream, b"\r\n\r\n") if not body_bytes else b""
            while body_bytes and len(head.partition(b"\r\n\r\n")[2]) < body_bytes:
                head += await stream.receive()
            seen.append(head)
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    return serve


def hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


CONNECT = b"CONNECT example.com:%d HTTP/1.1\r\nHost: example.com:%d\r\n\r\n"
GET = b"GET http://example.com/x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
