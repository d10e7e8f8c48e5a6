"""TLS as the proxy reads it: a strict reading of the ClientHello, its server name, and whether it hides another one."""

import ssl
from contextlib import suppress

from anyio.abc import ByteReceiveStream

from cloister.core import limits

_HANDSHAKE, _CLIENT_HELLO = 0x16, 0x01
_SERVER_NAME, _ENCRYPTED_CLIENT_HELLO = 0, 0xFE0D
_MAJOR_VERSION = b"\x03"
_RECORD_BYTES = 16_384
_RECORDS = 16
"""The most records that a ClientHello may span."""


class NotTls(Exception):
    """The bytes are not a ClientHello."""


class Greeting:
    """A ClientHello that arrives in pieces of any size. Each byte is read once."""

    def __init__(self) -> None:
        self.read = bytearray()
        self._message = bytearray()
        self._at = 0
        self._left = 0
        """Bytes that the current record still lacks."""
        self._records = 0

    @property
    def message(self) -> bytes | None:
        """The body of the ClientHello once it and its last record are complete."""
        if self._left or len(self._message) < 4 + self._length:
            return None
        return bytes(self._message[4 : 4 + self._length])

    @property
    def _length(self) -> int:
        return int.from_bytes(self._message[1:4].ljust(3, b"\0"), "big")

    def feed(self, data: bytes) -> bool:
        """Return True when the ClientHello is complete. Raises `NotTls` at the first byte that cannot be of one."""
        self.read += data
        while self._at < len(self.read) and self.message is None:
            if not self._left and not self._begin_record():
                break
            piece = self.read[self._at : self._at + self._left]
            self._message += piece
            self._at += len(piece)
            self._left -= len(piece)
            if (self._message and self._message[0] != _CLIENT_HELLO) or self._length > limits.DOOR_HEAD_BYTES:
                raise NotTls
        return self.message is not None

    def _begin_record(self) -> bool:
        """Read the header of the next record. Return False if it is incomplete."""
        header = bytes(self.read[self._at : self._at + 5])
        size = int.from_bytes(header[3:5], "big")
        if header[0] != _HANDSHAKE or header[1:2] not in (b"", _MAJOR_VERSION):
            raise NotTls
        if len(header) < 5:
            return False
        if not 0 < size <= _RECORD_BYTES or self._records == _RECORDS:
            raise NotTls
        self._records += 1
        self._at += 5
        self._left = size
        return True


async def receive_hello(stream: ByteReceiveStream) -> tuple[bytes, str | None]:
    """Read a complete ClientHello. Return all bytes read and the server name, or None without one.

    Raises `NotTls`, and `EndOfStream` if the client ends before its ClientHello does.
    """
    greeting = Greeting()
    while not greeting.feed(await stream.receive(limits.DOOR_HEAD_BYTES)):
        pass
    read = bytes(greeting.read)
    return read, _server_name(read, greeting.message or b"")


def _server_name(read: bytes, message: bytes) -> str | None:
    """The server name as OpenSSL reads it. The handshake goes no further: the callback refuses it."""
    names: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE

    try:
        # A name that is not text raises inside the callback, where it cannot be caught.
        if not _extensions(message).get(_SERVER_NAME, b"").isascii():
            raise NotTls
    except IndexError:
        raise NotTls from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(read)
    with suppress(ssl.SSLError):
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    if not names:
        raise NotTls
    return names[0]


def hides_a_name(hello: bytes) -> bool:
    """True if a complete ClientHello contains an encrypted one: the outer name is then not the destination.

    A real one cannot be distinguished from a decoy, so both count.
    """
    greeting = Greeting()
    try:
        greeting.feed(hello)
        return greeting.message is None or _ENCRYPTED_CLIENT_HELLO in _extensions(greeting.message)
    except (NotTls, IndexError):
        return True


def _extensions(hello: bytes) -> dict[int, bytes]:
    """The extensions of a ClientHello by number. Raises `IndexError` if malformed."""
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
