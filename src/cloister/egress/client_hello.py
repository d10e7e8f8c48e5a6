"""The name in a TLS ClientHello, as OpenSSL itself reads it."""

import ssl

from anyio import EndOfStream
from anyio.abc import ByteReceiveStream

from cloister.core import limits


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
