"""The name in a TLS ClientHello, as OpenSSL itself reads it, and whether another name is hidden in it."""

import ssl

from anyio import EndOfStream
from anyio.abc import ByteReceiveStream

from cloister.core import limits

_HANDSHAKE, _CLIENT_HELLO = b"\x16", b"\x01"
_SERVER_NAME, _ENCRYPTED_CLIENT_HELLO = 0, 0xFE0D
_RECORDS = 16
"""Into so many pieces a ClientHello may be cut."""


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
            message = _message(bytes(read))
            # A name that is not text would make the callback fail where nobody can catch it.
            if message is not None and not _extensions(message).get(_SERVER_NAME, b"").isascii():
                break
            handshake.do_handshake()
        except IndexError:
            break
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
        message = _message(hello)
        return message is None or _ENCRYPTED_CLIENT_HELLO in _extensions(message)
    except IndexError:
        return True


def _message(records: bytes) -> bytes | None:
    """The handshake message that the records carry; None when more must come. Raises `IndexError` if none can."""
    message = bytearray()
    at = 0
    for _ in range(_RECORDS):
        if len(records) < at + 5:
            return None if records[at : at + 1] in (b"", _HANDSHAKE) else _no_hello()
        size = int.from_bytes(records[at + 3 : at + 5], "big")
        if records[at : at + 1] != _HANDSHAKE or not size:
            return _no_hello()
        message += records[at + 5 : at + 5 + size]
        if bytes(message[:1]) not in (b"", _CLIENT_HELLO):
            return _no_hello()
        length = 4 + int.from_bytes(message[1:4], "big")
        if len(message) >= 4 and len(message) >= length:
            return bytes(message[4:length])
        at += 5 + size
        if len(records) < at:
            return None
    return _no_hello()


def _no_hello() -> bytes:
    raise IndexError


def _extensions(hello: bytes) -> dict[int, bytes]:
    """The extensions of a ClientHello by number. Raises `IndexError` when it is malformed."""
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(_cut(hello, at, 2), "big")
    at += 1 + hello[at]
    if at == len(hello):
        return {}
    end = at + 2 + int.from_bytes(_cut(hello, at, 2), "big")
    at += 2
    found: dict[int, bytes] = {}
    while at < end:
        size = int.from_bytes(_cut(hello, at + 2, 2), "big")
        kind = int.from_bytes(_cut(hello, at, 2), "big")
        found[kind] = found.get(kind, b"") + _cut(hello, at + 4, size)
        at += 4 + size
    return found


def _cut(data: bytes, at: int, count: int) -> bytes:
    if at + count > len(data):
        raise IndexError
    return data[at : at + count]
