"""The name in a TLS ClientHello, as OpenSSL itself reads it, and whether another name is hidden in it."""

import ssl

from anyio import EndOfStream
from anyio.abc import ByteReceiveStream

from cloister.core import limits

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_ENCRYPTED_CLIENT_HELLO = 0xFE0D


class NotTls(Exception):
    """What came is not a whole ClientHello."""


async def receive_hello(stream: ByteReceiveStream, begun: bytes) -> tuple[bytes, str | None]:
    """Read until the ClientHello is whole; returns all bytes read and the server name, None when there is none.

    The handshake goes no further: the callback refuses it as soon as the name is known. Raises `NotTls`.
    """
    names: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    read = bytearray(begun)
    incoming.write(begun)
    while len(read) <= limits.DOOR_HEAD_BYTES:
        try:
            handshake.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            break
        if names:
            break
        try:
            more = await stream.receive(limits.DOOR_HEAD_BYTES)
        except EndOfStream:
            break
        read += more
        incoming.write(more)
    if not names:
        raise NotTls
    return bytes(read), names[0]


def hides_a_name(hello: bytes) -> bool:
    """Whether a whole ClientHello has an encrypted one within: the name outside is then not where it goes.

    Nobody in between can tell a real one from a decoy, so both count.
    """
    try:
        return _ENCRYPTED_CLIENT_HELLO in _extensions(_message(hello))
    except IndexError:
        return True


def _message(records: bytes) -> bytes:
    """The handshake message that the records carry. Raises `IndexError` when they end too early."""
    message = bytearray()
    at = 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        size = int.from_bytes(_cut(records, at + 3, 2), "big")
        if records[at] != _HANDSHAKE:
            raise IndexError
        message += _cut(records, at + 5, size)
        at += 5 + size
    if message[0] != _CLIENT_HELLO:
        raise IndexError
    return bytes(message[4 : 4 + int.from_bytes(message[1:4], "big")])


def _extensions(hello: bytes) -> set[int]:
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(_cut(hello, at, 2), "big")
    at += 1 + hello[at]
    if at == len(hello):
        return set()
    end = at + 2 + int.from_bytes(_cut(hello, at, 2), "big")
    at += 2
    found: set[int] = set()
    while at < end:
        found.add(int.from_bytes(_cut(hello, at, 2), "big"))
        at += 4 + int.from_bytes(_cut(hello, at + 2, 2), "big")
    return found


def _cut(data: bytes, at: int, count: int) -> bytes:
    if at + count > len(data):
        raise IndexError
    return data[at : at + count]
