"""Puts credentials into requests: stand-ins inside become the real values outside, for what they are for alone."""

import base64
import binascii
from collections.abc import Iterable, Sequence

import anyio
import msgspec

from cloister.core.text import one_line
from cloister.egress.credentials import Credential
from cloister.egress.fakes import fake, placeholder
from cloister.egress.gate import Gate, Visit
from cloister.egress.http_head import Head, Headers
from cloister.egress.redact import Redactor, spellings
from cloister.egress.refusal import Refused
from cloister.egress.vault import Unreadable, Vault
from cloister.policy.api import CredentialAction

_BASIC = b"basic "
_NOT_ASKED = (b"accept-encoding", b"range", b"if-range")


class Dressed(msgspec.Struct, frozen=True):
    """A request's headers as the server gets them."""

    headers: Headers
    names: tuple[str, ...] = ()
    """Of the credentials in them."""
    redactor: Redactor | None = None
    """For the answer."""


class Keeper:
    """The credentials of one sandbox and its forks, with their stand-ins."""

    def __init__(self, credentials: Sequence[Credential] = (), vault: Vault | None = None) -> None:
        self._credentials = tuple(credentials)
        self._vault = vault or Vault({})
        self._fakes: dict[str, str] = {}
        self._lock = anyio.Lock()

    async def fakes(self) -> dict[str, str]:
        """The stand-in of each credential by its name; made once, after the value as it is then."""
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
        """The variables inside that hold stand-ins."""
        fakes = await self.fakes()
        return {one.env: fakes[one.name] for one in self._credentials if one.env is not None}

    def holds(self, host: str, port: int) -> bool:
        """Whether any credential is for this host and port."""
        return any((one.host, one.port) == (host, port) for one in self._credentials)

    def doubt(self, names: Iterable[str]) -> None:
        """A server refused a request that had these."""
        for name in names:
            self._vault.doubt(name)

    async def dress(self, gate: Gate, visit: Visit, head: Head) -> Dressed:
        """The request with what it is allowed to carry. Raises `Refused`."""
        own = [one for one in self._credentials if (one.host, one.port) == (visit.host, visit.port)]
        if not own:
            return Dressed(head.headers)
        await self.fakes()
        # A compressed answer could carry a secret past the reader, and so could one in pieces.
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
    """What `Basic` authentication says, decoded."""
    if text[: len(_BASIC)].lower() != _BASIC:
        return None
    try:
        return base64.b64decode(text[len(_BASIC) :].strip(), validate=True)
    except binascii.Error:
        return None
