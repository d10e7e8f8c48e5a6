"""SOCKS5, as much of it as the door needs: no authentication, CONNECT, a name or an address."""

from ipaddress import IPv4Address, IPv6Address

from anyio import EndOfStream, IncompleteRead
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteStream

VERSION = 5
_CONNECT, _NO_AUTHENTICATION, _NONE_ACCEPTABLE = 1, 0, 0xFF
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

GENERAL, DENIED, UNREACHABLE, NO_COMMAND, NO_ADDRESS = 1, 2, 4, 7, 8
"""Why a request failed."""


class BadSocks(Exception):
    """The request is refused; `reply` is the number that says why."""

    def __init__(self, message: str, reply: int | None = None) -> None:
        super().__init__(message)
        self.reply = reply


async def asked(stream: BufferedByteStream) -> tuple[str, int]:
    """Take the greeting and the request; returns host and port, not yet known to be a name at all.

    Raises `BadSocks`; nothing is answered to a request but by `answer`.
    """
    try:
        version, count = await stream.receive_exactly(2)
        methods = await stream.receive_exactly(count) if count else b""
        if version != VERSION or _NO_AUTHENTICATION not in methods:
            await stream.send(bytes((VERSION, _NONE_ACCEPTABLE)))
            raise BadSocks("The door takes SOCKS5 without authentication.")
        await stream.send(bytes((VERSION, _NO_AUTHENTICATION)))
        version, command, reserved, kind = await stream.receive_exactly(4)
        if version != VERSION or reserved != 0:
            raise BadSocks("The SOCKS request is malformed.", GENERAL)
        host = await _host(stream, kind)
        port = int.from_bytes(await stream.receive_exactly(2), "big")
    except IncompleteRead:
        raise EndOfStream from None
    if command != _CONNECT:
        raise BadSocks("The door does nothing but CONNECT.", NO_COMMAND)
    if port == 0:
        raise BadSocks("A port is a number from 1 to 65535.", GENERAL)
    return host, port


async def _host(stream: BufferedByteStream, kind: int) -> str:
    match kind:
        case 1:
            return str(IPv4Address(await stream.receive_exactly(4)))
        case 4:
            return f"[{IPv6Address(await stream.receive_exactly(16))}]"
        case 3:
            name = await stream.receive_exactly((await stream.receive_exactly(1))[0] or 1)
            # SAFETY: a NUL or any other byte that is in no name may end the name for one reader and not for another.
            if not _NAME_BYTES.issuperset(name):
                raise BadSocks("The name has characters that are in no name.", GENERAL)
            return name.decode("ascii").lower().removesuffix(".")
        case _:
            raise BadSocks("The address is of an unknown kind.", NO_ADDRESS)


async def answer(stream: ByteStream, reply: int) -> None:
    """0 is yes."""
    await stream.send(bytes((VERSION, reply, 0, 1, 0, 0, 0, 0, 0, 0)))
