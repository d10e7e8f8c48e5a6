"""Databases by credential reference: the proxy logs in to PostgreSQL with the real password, and relays the rest.

A program inside connects to the proxy's port as if the server were there. Its user names the credential. The password is
never inside, and neither is the answer to the server's challenge.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import ssl
import struct
from typing import NamedTuple

import anyio
from anyio import EndOfStream, IncompleteRead
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from cloister.core.text import decode, one_line
from cloister.egress.quota import BROKEN
from cloister.egress.streams import Inlet

FIRST_BYTE = 0
"""A start-up message begins with its length, which is small: no other protocol of the proxy begins like this."""
_ENCRYPT = (80_877_103, 80_877_104)
"""Requests for TLS and GSSAPI."""
_START_BYTES = 10_000
_MESSAGE_BYTES = 65_536
_MESSAGES = 20
_SCRAM = b"SCRAM-SHA-256"
_ROUNDS = 1_000_000
"""Of a server's key derivation: more would keep a thread of the host busy."""
_NOT_PASSED_ON = frozenset({"user", "database", "replication"})


class StartUp(NamedTuple):
    """What a client asks for."""

    version: int
    parameters: dict[str, str]

    @property
    def user(self) -> str:
        return self.parameters.get("user", "")

    @property
    def database(self) -> str:
        """The user's name stands for it where a client gives none."""
        return self.parameters.get("database") or self.user


class Account(NamedTuple):
    """Whom the proxy logs in, and to what."""

    user: str
    database: str
    password: str


class Wrong(Exception):
    """The log-in failed. `reply` is the message for the client; the text of a server is its own."""

    def __init__(self, reply: bytes, *, rejected: bool = False) -> None:
        super().__init__()
        self.reply = reply
        self.rejected = rejected
        """True if the server refused the password."""


def failure(sentence: str, code: str = "28000") -> bytes:
    """An error that ends a session, as clients of PostgreSQL show it."""
    fields = (("S", "FATAL"), ("V", "FATAL"), ("C", code), ("M", one_line(sentence, 1_000)))
    body = b"".join(kind.encode() + text.encode() + b"\0" for kind, text in fields)
    return _message(b"E", body + b"\0")


async def start_up(client: Inlet) -> StartUp:
    """Read a client's start-up. Encryption is declined: the way to the proxy stays on this machine.

    Raises `EndOfStream` for anything else, also for the request to cancel a query, which names no server.
    """
    try:
        for _ in range(3):
            size, code = struct.unpack("!II", await client.receive_exactly(8))
            if size == 8 and code in _ENCRYPT:
                await client.send(b"N")
                continue
            if not 8 < size <= _START_BYTES or code >> 16 != 3:
                break
            words = (await client.receive_exactly(size - 8))[:-2].split(b"\0")
            names, values = words[::2], words[1::2]
            if len(names) != len(values):
                break
            return StartUp(code, dict(zip(map(decode, names), map(decode, values), strict=True)))
    except IncompleteRead:
        pass
    raise EndOfStream


async def log_in(
    server: ByteStream, host: str, trust: ssl.SSLContext, account: Account, asked: StartUp, *, raw: bool
) -> tuple[Inlet, bytes]:
    """Log in; return the stream to relay and what the client receives first. Raises `Wrong`, `EndOfStream`."""
    try:
        stream = await _secured(server, host, trust, raw=raw)
        link = _Link(stream)
        return link, await _Dialogue(link, account, secure=stream is not server).run(asked)
    except (EndOfStream, IncompleteRead, *BROKEN):
        raise Wrong(failure(f"{host} ended the connection.", "08006")) from None


class _Link(Inlet):
    """The stream to a server. The end of the client ends it: TLS has no half-close."""

    async def send_eof(self) -> None:
        await self.aclose()


async def _secured(server: ByteStream, host: str, trust: ssl.SSLContext, *, raw: bool) -> ByteStream:
    await server.send(struct.pack("!II", 8, _ENCRYPT[0]))
    # SAFETY: exactly one byte. What follows it in clear text must not be taken for the server's.
    answer = await server.receive(1)
    if answer == b"S":
        try:
            return await TLSStream.wrap(server, hostname=host, ssl_context=trust, standard_compatible=False)
        except ssl.SSLError as error:
            why = one_line(error.reason or "no TLS", 100)
            raise Wrong(failure(f"The certificate of {host} is not accepted: {why}.", "08001")) from None
    if answer == b"N" and raw:
        return server
    raise Wrong(failure(f"{host} offers no TLS; a rule `raw:{host}` with allow permits that.", "08001"))


class _Dialogue:
    """The log-in of one session."""

    def __init__(self, link: Inlet, account: Account, *, secure: bool) -> None:
        self._link = link
        self._account = account
        self._secure = secure
        self._scram: _Scram | None = None

    async def run(self, asked: StartUp) -> bytes:
        passed = {name: text for name, text in asked.parameters.items() if name not in _NOT_PASSED_ON}
        own = {"user": self._account.user, "database": self._account.database, **passed}
        words = b"".join(f"{name}\0{text}\0".encode() for name, text in own.items())
        await self._link.send(struct.pack("!II", len(words) + 9, asked.version) + words + b"\0")
        told = b""
        for _ in range(_MESSAGES):
            kind, body = await self._receive()
            if kind == b"E":
                raise Wrong(_message(kind, body), rejected=b"\0C28P01\0" in b"\0" + body)
            if kind == b"R" and len(body) >= 4:
                if body[:4] == bytes(4):
                    if self._scram is not None and not self._scram.proven:
                        raise Wrong(failure("The server did not prove that it knows the password."))
                    return told + _message(kind, body)
                await self._answer(int.from_bytes(body[:4], "big"), body[4:])
            elif kind in (b"N", b"v"):  # a notice; a version that the server does not speak
                told += _message(kind, body)
            else:
                break
        raise Wrong(failure("The server speaks another protocol than PostgreSQL.", "08P01"))

    async def _receive(self) -> tuple[bytes, bytes]:
        head = await self._link.receive_exactly(5)
        size = int.from_bytes(head[1:], "big")
        if not 4 <= size <= _MESSAGE_BYTES:
            raise Wrong(failure("The server speaks another protocol than PostgreSQL.", "08P01"))
        return head[:1], await self._link.receive_exactly(size - 4) if size > 4 else b""

    async def _answer(self, way: int, body: bytes) -> None:
        secret = self._account.password.encode()
        if way in (3, 5) and not self._secure:
            raise Wrong(failure("The server wants the password without TLS: use SCRAM-SHA-256."))
        match way:
            case 3:
                await self._send(secret + b"\0")
            case 5:
                inner = hashlib.md5(secret + self._account.user.encode()).hexdigest().encode()  # noqa: S324
                await self._send(b"md5" + hashlib.md5(inner + body[:4]).hexdigest().encode() + b"\0")  # noqa: S324
            case 10 if _SCRAM in body.split(b"\0"):
                self._scram = _Scram(secret)
                first = self._scram.first
                await self._send(_SCRAM + b"\0" + struct.pack("!I", len(first)) + first)
            case 11 if self._scram is not None:
                await self._send(await anyio.to_thread.run_sync(self._scram.second, body))
            case 12 if self._scram is not None:
                self._scram.check(body)
            case _:
                raise Wrong(failure("The server wants a log-in other than a password or SCRAM-SHA-256."))

    async def _send(self, body: bytes) -> None:
        await self._link.send(_message(b"p", body))


class _Scram:
    """The client's side of SCRAM-SHA-256 (RFC 5802, 7677), for passwords of printable ASCII characters."""

    def __init__(self, password: bytes) -> None:
        self._password = password
        self._bare = b"n=,r=" + base64.b64encode(secrets.token_bytes(18))
        self._signature = b""
        self.proven = False
        """True once the server has shown that it knows the password too."""

    @property
    def first(self) -> bytes:
        return b"n,," + self._bare

    def second(self, challenge: bytes) -> bytes:
        """Raises `Wrong` for a challenge that is not the answer to ours."""
        try:
            parts = {one[:1]: one[2:] for one in challenge.split(b",")}
            nonce, salt, rounds = parts[b"r"], base64.b64decode(parts[b"s"], validate=True), int(parts[b"i"])
        except (KeyError, ValueError, binascii.Error):
            raise Wrong(failure("The server's challenge cannot be read.", "08P01")) from None
        own = self._bare.partition(b"r=")[2]
        if not nonce.startswith(own) or nonce == own or not 1 <= rounds <= _ROUNDS:
            raise Wrong(failure("The server's challenge is not acceptable.", "08P01"))
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, rounds)
        key = _mac(salted, b"Client Key")
        final = b"c=biws,r=" + nonce
        whole = b",".join((self._bare, challenge, final))
        self._signature = _mac(_mac(salted, b"Server Key"), whole)
        mask = _mac(hashlib.sha256(key).digest(), whole)
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        return final + b",p=" + base64.b64encode(proof)

    def check(self, final: bytes) -> None:
        wanted = b"v=" + base64.b64encode(self._signature)
        self.proven = bool(self._signature) and hmac.compare_digest(final.split(b",")[0], wanted)


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body
