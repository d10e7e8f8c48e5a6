"""The world outside, as this machine reaches it: names resolved here, addresses dialled as they are."""

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, for a port. Raises `OSError` when there are none."""

Dial = Callable[[str, int], Awaitable[ByteStream]]
"""A connection to exactly this address. Raises `OSError`."""


async def resolve(host: str, port: int) -> Sequence[str]:
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(address[0] for *_, address in found))


async def dial(address: str, port: int) -> ByteStream:
    return await anyio.connect_tcp(address, port)


@dataclass(frozen=True, slots=True)
class Outside:
    """How to get there."""

    resolve: Resolve = resolve
    dial: Dial = dial
    trust: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    """Which servers are believed, where the door itself speaks TLS to them."""
