"""Credential injection: replace stand-ins by real values in allowed requests, and redact replies."""

import base64
import binascii
import html
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, quote_plus

import anyio
import msgspec

from cloister.core.text import one_line
from cloister.egress.credentials import Credential, Unreadable, Vault, fake, placeholder
from cloister.egress.http.head import Head, Headers
from cloister.egress.quota import Refused
from cloister.egress.rules import Gate, Visit
from cloister.policy.api import CredentialAction

# Redaction: replace known secrets in a reply, across chunk borders, without changing its length.


_BASE64_MIN = 8
"""Shorter base64 fragments would match by chance."""
_ESCAPE = re.compile("%[0-9A-F]{2}")


def spellings(secret: str) -> frozenset[bytes]:
    """Encodings in which a server may echo a secret: plain, URL, JSON, HTML, base64, hex."""
    raw = secret.encode("utf-8")
    in_json = secret.replace("\\", "\\\\").replace('"', '\\"')
    escaped = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    escaped |= {_ESCAPE.sub(lambda found: found[0].lower(), text) for text in escaped}
    escaped |= {in_json, in_json.replace("/", "\\/"), html.escape(secret), html.escape(secret, quote=False)}
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), *(text.encode() for text in escaped)}
    for coded in (base64.b64encode, base64.urlsafe_b64encode):
        for lead in range(3):
            # At an unknown base64 offset only the characters that encode the secret alone are certain.
            text = coded(b"\0" * lead + raw)
            first, tail = (lead * 8 + 5) // 6, -(len(raw) + lead) % 3
            sure = text.rstrip(b"=")[first : len(text.rstrip(b"=")) - (1 if tail else 0)]
            if len(sure) >= _BASE64_MIN:
                found.add(sure)
    return frozenset(found)


class Redactor:
    """Redacts one stream. Every occurrence becomes asterisks of the same length."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._starts = {secret[:1] for secret in self._secrets}
        self._longest = max(map(len, self._secrets), default=0)
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """Redact a complete value, such as a header."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        return data

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are safe to pass on. A possible prefix of a secret is held back."""
        data = self.whole(self._held + data)
        keep = self._unsure(data)
        self._held = data[len(data) - keep :] if keep else b""
        return data[: len(data) - keep] if keep else data

    def end(self) -> bytes:
        """Return the held-back bytes at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _unsure(self, data: bytes) -> int:
        """The number of trailing bytes that may begin a secret."""
        for count in range(min(self._longest - 1, len(data)), 0, -1):
            tail = data[-count:]
            if tail[:1] in self._starts and any(secret.startswith(tail) for secret in self._secrets):
                return count
        return 0


_BASIC = b"basic "
_NOT_ASKED = (b"accept-encoding", b"range", b"if-range")


class Dressed(msgspec.Struct, frozen=True):
    """The headers that the server receives."""

    headers: Headers
    names: tuple[str, ...] = ()
    """Names of the injected credentials."""
    redactor: Redactor | None = None
    """The redactor for the reply."""


class Keeper:
    """The credentials and stand-ins of one sandbox and its forks."""

    def __init__(self, credentials: Sequence[Credential] = (), vault: Vault | None = None) -> None:
        self._credentials = tuple(credentials)
        self._vault = vault or Vault({})
        self._fakes: dict[str, str] = {}
        self._lock = anyio.Lock()

    async def fakes(self) -> dict[str, str]:
        """The stand-in of each credential by name. Created once, modelled on the current value."""
        async with self._lock:
            for credential in self._credentials:
                if credential.name not in self._fakes:
                    try:
                        made = fake(await self._vault.value(credential))
                    except Unreadable:
                        made = placeholder(credential.name)
                    self._fakes[credential.name] = made
        return dict(self._fakes)

    async def env(self) -> dict[str, str]:
        """Environment variables for the sandbox that hold stand-ins."""
        fakes = await self.fakes()
        return {one.env: fakes[one.name] for one in self._credentials if one.env is not None}

    def holds(self, host: str, port: int) -> bool:
        """True if a credential applies to this host and port."""
        return any((one.host, one.port) == (host, port) for one in self._credentials)

    def doubt(self, names: Iterable[str]) -> None:
        """A server rejected a request that carried these credentials."""
        for name in names:
            self._vault.doubt(name)

    async def dress(self, gate: Gate, visit: Visit, head: Head) -> Dressed:
        """Return the headers with the allowed credentials. Raises `Refused`."""
        own = [one for one in self._credentials if (one.host, one.port) == (visit.host, visit.port)]
        if not own:
            return Dressed(head.headers)
        await self.fakes()
        # A compressed or partial reply could carry a secret past the redactor.
        headers = [(key, value) for key, value in head.headers if key.lower() not in _NOT_ASKED]
        headers.append((b"Accept-Encoding", b"identity"))
        names: list[str] = []
        path = head.target.partition(b"?")[0].decode("ascii")
        for one in own:
            if one.covers(head.method, path):
                headers, used = await self._put(gate, visit, head, one, headers)
                names += [one.name] if used else []
        secrets = [
            spelling for one in own for value in self._vault.known(one.name) for spelling in spellings(value)
        ]
        return Dressed(headers, tuple(names), Redactor(secrets))

    async def _put(
        self, gate: Gate, visit: Visit, head: Head, one: Credential, headers: list[tuple[bytes, bytes]]
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        marks = [mark.encode() for mark in {self._fakes[one.name], placeholder(one.name)}]
        asked = any(_mentions(value, mark) for _, value in headers for mark in marks)
        if not asked and one.header is None and one.basic is None:
            return headers, False
        path = head.target.partition(b"?")[0].decode("ascii")
        decision = gate.of(CredentialAction(one.name, visit.host, visit.port, head.method, path))
        if decision.effect != "allow":
            if not asked:
                return headers, False
            await visit.request(head, "deny", decision.rule, one.name)
            why = one_line(decision.rule, 300)
            raise Refused(403, f"The credential {one.name} may not be used for {visit.host}: {why}.")
        try:
            value = (await self._vault.value(one)).encode()
        except Unreadable as error:
            raise Refused(502, f"The credential {one.name} cannot be read on the host: {error}.") from None
        for mark in marks:
            headers = [(key, _replaced(text, mark, value)) for key, text in headers]
        added = _added(one, value)
        if added is not None:
            headers = [header for header in headers if header[0].lower() != added[0].lower()] + [added]
        return headers, True


def _added(one: Credential, value: bytes) -> tuple[bytes, bytes] | None:
    if one.header is not None:
        return one.header[0].encode(), one.header[1].encode().replace(b"{}", value)
    if one.basic is not None:
        return b"Authorization", b"Basic " + base64.b64encode(one.basic.encode() + b":" + value)
    return None


def _mentions(text: bytes, mark: bytes) -> bool:
    return mark in text or mark in (_basic(text) or b"")


def _replaced(text: bytes, mark: bytes, value: bytes) -> bytes:
    plain = _basic(text)
    if plain is not None and mark in plain:
        return text[: len(_BASIC)] + base64.b64encode(plain.replace(mark, value))
    return text.replace(mark, value)


def _basic(text: bytes) -> bytes | None:
    """The decoded value of `Basic` authentication."""
    if text[: len(_BASIC)].lower() != _BASIC:
        return None
    try:
        return base64.b64decode(text[len(_BASIC) :].strip(), validate=True)
    except binascii.Error:
        return None
