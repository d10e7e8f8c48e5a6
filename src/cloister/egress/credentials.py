"""Credentials: their configuration, their values on the host, and the stand-ins that sandboxes see."""

import base64
import binascii
import html
import os
import re
import secrets
import string
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast
from urllib.parse import quote, quote_plus

import anyio
import msgspec

from cloister.core import limits
from cloister.core.addresses import normal_host
from cloister.core.errors import UserError
from cloister.core.requests import CREDENTIAL_NAME, CredentialEntry, placeholder
from cloister.core.text import one_line
from cloister.egress._spawn import Failed, output, words
from cloister.egress.http.head import Head, Headers
from cloister.egress.quota import Refused
from cloister.egress.rules import Gate, Visit
from cloister.policy.api import CredentialAction
from cloister.policy.pattern import RequestPattern, read_pattern, request_paths
from cloister.sandbox.local.spec import PROXY_PORT

NAME = re.compile(CREDENTIAL_NAME)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER = re.compile(
    r"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}): ((?:[\x20-\x7a\x7c-\x7e]|\{(?!\}))*+\{\}[\x20-\x7e]*)"
)
_KINDS = ("env", "file", "command", "keyring")
_HTTPS_PORT, POSTGRESQL_PORT = 443, 5_432
_NOT_TO_SET = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te"}
)

Kind = Literal["env", "file", "command", "keyring"]


class Source(msgspec.Struct, frozen=True):
    """The place of the value."""

    kind: Kind
    where: str


class Credential(msgspec.Struct, frozen=True):
    """One validated credential."""

    name: str
    source: Source
    host: str
    port: int
    scope: tuple[RequestPattern, ...]
    header: tuple[str, str] | None = None
    """Header name, and header value with `{}` for the secret."""
    basic: str | None = None
    env: str | None = None
    lines: bool = False
    """True if the value may have several lines, as a private key."""
    login: tuple[str, str] | None = None
    """User and database of a PostgreSQL server, for which the value is the password; no request gets it."""

    def covers(self, method: str, path: str) -> bool:
        """True if the credential applies to this request, for every way a server may read the path."""
        try:
            ways = request_paths(path)
        except ValueError:
            return False
        return any(all(one.matches_request(method, way) for way in ways) for one in self.scope)


def read_credentials(entries: tuple[CredentialEntry, ...], source: str) -> tuple[Credential, ...]:
    """Validate all credentials. Raises `UserError` (`bad_credential`) that names the entry."""
    found: dict[str, Credential] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            credential = _read(entry)
            if credential.name in found:
                raise ValueError("two credentials have this name")
        except ValueError as error:
            raise UserError(
                "bad_credential", f"{source}, credential {number} ({entry.name[:64]!r}): {error}."
            ) from None
        found[credential.name] = credential
    return tuple(found.values())


def _read(entry: CredentialEntry) -> Credential:
    if not NAME.fullmatch(entry.name):
        raise ValueError("a name consists of letters and digits, and . _ - after the first character")
    source = _source(entry.source)
    if entry.header is not None and entry.basic is not None:
        raise ValueError("give a header or a basic user, not both")
    if entry.env is not None and not _VARIABLE.fullmatch(entry.env):
        raise ValueError("env must be the name of a variable")
    if entry.basic is not None and (":" in entry.basic or not entry.basic.isprintable()):
        raise ValueError("basic must be a user name without a colon")
    if not entry.methods or not entry.paths or not 1 <= entry.port <= 65_535:
        raise ValueError("it needs a method, a path and a port from 1 to 65535")
    host = normal_host(entry.host)
    if entry.postgresql is not None:
        return _database(entry, source, host)
    return Credential(
        entry.name,
        source,
        host,
        entry.port,
        tuple(_pattern(m, host, entry.port, p) for m in entry.methods for p in entry.paths),
        _header(entry.header) if entry.header is not None else None,
        entry.basic,
        entry.env,
    )


def _database(entry: CredentialEntry, source: Source, host: str) -> Credential:
    user, slash, database = entry.postgresql.partition("/") if entry.postgresql else ("", "", "")
    if not slash or not user or not database or not f"{user}{database}".isprintable():
        raise ValueError("postgresql is written USER/DATABASE")
    if (
        entry.header is not None
        or entry.basic is not None
        or (entry.methods, entry.paths) != (("*",), ("/**",))
    ):
        raise ValueError("a database has no header, basic, methods and paths")
    port = POSTGRESQL_PORT if entry.port == _HTTPS_PORT else entry.port
    return Credential(entry.name, source, host, port, (), env=entry.env, login=(user, database))


def _source(text: str) -> Source:
    kind, colon, where = text.partition(":")
    if not colon or not where.strip() or kind not in _KINDS:
        raise ValueError("from is env:VARIABLE, file:PATH, command:PROGRAM ARGUMENT… or keyring:SERVICE/USER")
    if kind == "keyring" and "/" not in where:
        raise ValueError("write a keyring entry as keyring:SERVICE/USER")
    return Source(kind, where.strip())  # pyright: ignore[reportArgumentType] - one of _KINDS


def token_source(host: str, source: str, *, lines: bool = False) -> Credential:
    """The token or the private key of a forge, for a `Vault`; no request of a sandbox gets it. Raises `ValueError`."""
    return Credential(f"forge {host}", _source(source), host, 443, (), lines=lines)


def _pattern(method: str, host: str, port: int, path: str) -> RequestPattern:
    named = f"[{host}]" if ":" in host else host
    found = read_pattern(f"request:{method} {named}:{port}{path}")
    if not isinstance(found, RequestPattern):
        raise ValueError("a path begins with a slash")
    return found


def _header(text: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(text)
    if found is None or found[2].count("{}") != 1:
        raise ValueError('header is written "Name: value" with one {} for the secret')
    if found[1].lower() in _NOT_TO_SET:
        raise ValueError(f"the header {found[1]} is reserved for the proxy")
    return found[1], found[2]


# Stand-ins: as long as the secret and of the same kinds of characters, so that tools accept them.


MIN_CHARS = 8
"""A shorter secret cannot be replaced or found reliably."""

_PREFIXES = (
    *("github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "gldt-", "sk-ant-api03-"),
    *("sk-ant-", "sk-proj-", "sk_live_", "sk_test_", "rk_live_", "sk-", "xoxb-", "xoxp-", "xapp-"),
    *("npm_", "pypi-", "hf_", "dckr_pat_", "lin_api_", "glsa_", "dop_v1_", "AKIA", "ASIA", "AIza"),
    *("ya29.", "SG."),
)
"""Public prefixes by which programs tell kinds of tokens apart."""

_STAND_IN_KINDS = (string.ascii_lowercase, string.ascii_uppercase, string.digits)


def fake(secret: str) -> str:
    """A stand-in that shares only kind, length and punctuation with `secret`."""
    prefix = next((known for known in _PREFIXES if secret.startswith(known)), "")
    while True:
        made = prefix + "".join(map(_like, secret[len(prefix) :]))
        if made != secret:
            return made


def _like(char: str) -> str:
    for kind in _STAND_IN_KINDS:
        if char in kind:
            return secrets.choice(kind)
    return char


# The vault reads the values on the host, again when they change.


_BYTES = 8_192
_SECONDS = 10.0
_FRESH_SECONDS = 60.0
"""How long the value from a command or a keyring is cached."""
_DOUBT_SECONDS = 10.0
"""A command or a keyring that was rejected or failed is asked again at most this often."""
_KEPT = 4
"""Former values that are still redacted from replies."""


class Unreadable(Exception):
    """The value is not available. The message says why and contains nothing of the value."""


class _Value:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.text: str | None = None
        self.mark: object = None
        self.read_at = float("-inf")
        self.doubted_at = float("-inf")
        self.failed_at = float("-inf")
        self.failure = ""
        self.known: list[str] = []

    def keep(self, text: str, mark: object) -> None:
        self.text, self.mark, self.read_at = text, mark, anyio.current_time()
        if text not in self.known:
            self.known = [*self.known[1 - _KEPT :], text] if self.known else [text]


class Vault:
    """Values of credentials. `variables` is the environment at the time the settings were read."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._values: dict[str, _Value] = {}

    def __repr__(self) -> str:
        return "Vault()"

    async def value(self, credential: Credential) -> str:
        """Return the current value. Raises `Unreadable`."""
        value, lines = self._values.setdefault(credential.name, _Value()), credential.lines
        async with value.lock:
            match credential.source.kind:
                case "env":
                    text = self._variables.get(credential.source.where)
                    if text is None:
                        raise Unreadable(f"the variable {credential.source.where} was not set")
                    value.keep(_checked(text.encode("utf-8", errors="replace"), lines=lines), None)
                case "file":
                    await self._file(value, Path(credential.source.where), lines=lines)
                case "command":
                    await self._asked(value, words_of(credential.source.where), lines=lines)
                case "keyring":
                    service, _, user = credential.source.where.partition("/")
                    argv = ("secret-tool", "lookup", "service", service, "username", user)
                    await self._asked(value, argv, lines=lines)
            if value.text is None:
                raise Unreadable("it has no value")
            return value.text

    def doubt(self, name: str) -> None:
        """A server rejected the value: read it again next time, a command or a keyring not too often."""
        value, now = self._values.get(name), anyio.current_time()
        if value is not None:
            value.mark = None
            if now - value.doubted_at >= _DOUBT_SECONDS:
                value.doubted_at, value.read_at = now, float("-inf")

    def known(self, name: str) -> tuple[str, ...]:
        """Every recent value."""
        found = self._values.get(name)
        return tuple(found.known) if found else ()

    async def _file(self, value: _Value, path: Path, *, lines: bool) -> None:
        try:
            mark, data = await anyio.to_thread.run_sync(_read_file, path, value.mark)
        except OSError as error:
            raise Unreadable(f"its file cannot be read: {error.strerror}") from None
        if data is not None:
            value.keep(_checked(data, lines=lines), mark)

    async def _asked(self, value: _Value, argv: tuple[str, ...], *, lines: bool) -> None:
        if anyio.current_time() - value.read_at < _FRESH_SECONDS:
            return
        if anyio.current_time() - value.failed_at < _DOUBT_SECONDS:
            raise Unreadable(value.failure)
        try:
            text = _checked(await output(argv, seconds=_SECONDS, limit_bytes=_BYTES), lines=lines)
            value.keep(text, None)
        except (Failed, Unreadable) as error:
            value.failed_at, value.failure = anyio.current_time(), str(error)
            raise Unreadable(value.failure) from None


def words_of(line: str) -> tuple[str, ...]:
    """Raises `Unreadable`."""
    try:
        return words(line)
    except Failed as error:
        raise Unreadable(str(error)) from None


def _read_file(path: Path, mark: object) -> tuple[object, bytes | None]:
    with path.expanduser().open("rb") as file:
        status = os.fstat(file.fileno())
        now = (status.st_ino, status.st_mtime_ns, status.st_size)
        if now == mark:
            return now, None
        # A file may change twice within one clock tick: read a file that is this new again.
        settled = time.time_ns() - status.st_mtime_ns > limits.FILE_CLOCK_NANOSECONDS
        return now if settled else None, file.read(_BYTES + 1)


def _checked(data: bytes, *, lines: bool) -> str:
    if len(data) > _BYTES:
        raise Unreadable(f"it has more than {_BYTES:,} bytes")
    text = data.decode("latin-1").strip("\r\n")
    shown = "".join(text.split()) if lines else text
    if len(text) < MIN_CHARS or not text.isascii() or not shown.isprintable():
        many = "text" if lines else "one line"
        raise Unreadable(f"it is not {many} of at least {MIN_CHARS} printable ASCII characters")
    return text


# Credential injection: replace stand-ins by real values in allowed requests, and redact replies.


# Redaction: replace known secrets in a reply, across chunk borders, without changing its length.


_BASE64_MIN = 8
"""Shorter base64 fragments would match by chance."""
_BEGINNING = 32
"""The search for a long secret compares the rest only after this many bytes, more than a public prefix has."""
_ESCAPE = re.compile("%[0-9A-F]{2}")


@lru_cache(maxsize=64)
def spellings(secret: str) -> frozenset[bytes]:
    """Encodings in which a server may echo a secret: plain, URL, JSON, HTML, base64, hex."""
    raw = secret.encode("utf-8")
    in_json = secret.replace("\\", "\\\\").replace('"', '\\"')
    escaped = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    escaped |= {_ESCAPE.sub(lambda found: found[0].lower(), text) for text in escaped}
    escaped |= {in_json, in_json.replace("/", "\\/"), html.escape(secret), html.escape(secret, quote=False)}
    escaped |= {html.escape(secret).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")}
    escaped |= {re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", in_json)}
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


_SECRET_BYTES = bytes(range(0x20, 0x7F))
"""The bytes of which every spelling consists: a value is one line of printable ASCII characters."""
_LONGEST = 6 * _BYTES
"""No spelling is longer: an escape writes one character with at most six."""


class Redactor:
    """Redacts one stream. Every occurrence becomes asterisks of the same length.

    SAFETY: a program inside can have its guesses returned by a server, so nothing but a whole match may depend on a
    secret. The bytes held back follow from the stream alone, and the search takes one step for each byte (RE2).
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted(set(secrets), key=len, reverse=True)
        self._beginning = _search(frozenset(self._secrets))
        self._held = bytearray()

    def whole(self, data: bytes) -> bytes:
        """Redact a complete value, such as a header."""
        at = 0
        hidden: bytearray | None = None
        while self._beginning and (found := self._beginning.search(data, at)):
            at = found.start()
            size = next((len(secret) for secret in self._secrets if data.startswith(secret, at)), 0)
            if size:
                hidden = hidden or bytearray(data)
                hidden[at : at + size] = b"*" * size
            at += size or 1
        return data if hidden is None else bytes(hidden)

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are safe to pass on: all up to the last byte that no secret contains.

        A longer run without such a byte is cut so that any secret which began before its end is still complete.
        """
        clear = len(data.rstrip(_SECRET_BYTES))
        safe = b""
        if clear:
            safe = self.whole(self._take() + data[:clear])
            data = data[clear:]
        self._held += data
        if len(self._held) >= 2 * _LONGEST:
            run = self.whole(self._take())
            safe += run[: 1 - _LONGEST]
            self._held += run[1 - _LONGEST :]
        return safe

    def end(self) -> bytes:
        """Return the held-back bytes at the end of the stream."""
        return self.whole(self._take())

    def _take(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held


class _Found(Protocol):
    def start(self) -> int: ...


class _Pattern(Protocol):
    def search(self, text: bytes, pos: int) -> _Found | None: ...


@lru_cache(maxsize=64)
def _search(secrets: frozenset[bytes]) -> _Pattern | None:
    """One automaton that finds where a secret may begin. Raises `ValueError` for what `Redactor` could not find."""
    if any(not one or len(one) > _LONGEST or one.strip(_SECRET_BYTES) for one in secrets):
        raise ValueError("A secret is not one line of printable ASCII characters.")
    if not secrets:
        return None
    engine = cast(Any, import_module("re2"))  # imported only where a credential exists
    options = engine.Options()
    options.encoding = engine.Options.Encoding.LATIN1
    options.log_errors = False
    beginnings = {engine.escape(one[:_BEGINNING]) for one in secrets}
    return cast(_Pattern, engine.compile(b"|".join(sorted(beginnings)), options))


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
        self._credentials = tuple(one for one in credentials if one.login is None)
        self._databases = {one.name: one for one in credentials if one.login is not None}
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
        """Environment variables for the sandbox that hold stand-ins, and the addresses of databases."""
        fakes = await self.fakes()
        found = {one.env: fakes[one.name] for one in self._credentials if one.env is not None}
        return found | {one.env: address_of(one) for one in self._databases.values() if one.env is not None}

    def database(self, name: str) -> Credential | None:
        """The credential of a database, by its name."""
        return self._databases.get(name)

    async def password(self, gate: Gate, visit: Visit, one: Credential) -> str:
        """The password of a database. Raises `Refused`."""
        decision = gate.of(CredentialAction(one.name, visit.host, visit.port, "CONNECT", "/"))
        if decision.effect != "allow":
            await visit.decided("deny", decision.rule)
            why = one_line(decision.rule, 300)
            raise Refused(403, f"The credential {one.name} may not be used for {visit.host}: {why}.")
        visit.credentials[one.name] = None
        return await self._value(one)

    async def _value(self, one: Credential) -> str:
        try:
            return await self._vault.value(one)
        except Unreadable as error:
            raise Refused(502, f"The credential {one.name} cannot be read on the host: {error}.") from None

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
        value = (await self._value(one)).encode()
        for mark in marks:
            headers = [(key, _replaced(text, mark, value)) for key, text in headers]
        added = _added(one, value)
        if added is not None:
            headers = [header for header in headers if header[0].lower() != added[0].lower()] + [added]
        return headers, True


def address_of(one: Credential) -> str:
    """The address of a database for programs inside: at the proxy, by the name of the credential."""
    return (
        f"postgresql://{one.name}@127.0.0.1:{PROXY_PORT}/{quote(one.login[1], safe='') if one.login else ''}"
    )


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
