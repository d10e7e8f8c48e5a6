"""Credentials: their configuration, their values on the host, and the stand-ins that sandboxes see."""

import os
import re
import secrets
import string
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import anyio
import msgspec

from cloister.core import limits
from cloister.core.errors import UserError
from cloister.core.requests import CredentialEntry
from cloister.egress._spawn import Failed, output, words
from cloister.policy.pattern import RequestPattern, normal_host, read_pattern
from cloister.policy.probe import request_paths

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}): ([\x20-\x7e]*\{\}[\x20-\x7e]*)")
_KINDS = ("env", "file", "command", "keyring")
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
    kind, colon, where = entry.source.partition(":")
    if not colon or not where.strip() or kind not in _KINDS:
        raise ValueError("from is env:VARIABLE, file:PATH, command:PROGRAM ARGUMENT… or keyring:SERVICE/USER")
    if kind == "keyring" and "/" not in where:
        raise ValueError("write a keyring entry as keyring:SERVICE/USER")
    if entry.header is not None and entry.basic is not None:
        raise ValueError("give a header or a basic user, not both")
    if entry.env is not None and not _VARIABLE.fullmatch(entry.env):
        raise ValueError("env must be the name of a variable")
    if entry.basic is not None and (":" in entry.basic or not entry.basic.isprintable()):
        raise ValueError("basic must be a user name without a colon")
    if not entry.methods or not entry.paths or not 1 <= entry.port <= 65_535:
        raise ValueError("it needs a method, a path and a port from 1 to 65535")
    host = normal_host(entry.host)
    return Credential(
        entry.name,
        Source(kind, where.strip()),  # pyright: ignore[reportArgumentType] - one of _KINDS
        host,
        entry.port,
        tuple(_pattern(m, host, entry.port, p) for m in entry.methods for p in entry.paths),
        _header(entry.header) if entry.header is not None else None,
        entry.basic,
        entry.env,
    )


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
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "gldt-",
    "sk-ant-api03-",
    "sk-ant-",
    "sk-proj-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "sk-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "npm_",
    "pypi-",
    "hf_",
    "dckr_pat_",
    "lin_api_",
    "glsa_",
    "dop_v1_",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "SG.",
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


def placeholder(name: str) -> str:
    """The forms in which a stand-in may be written."""
    return f"{{{{secret:{name}}}}}"


# The vault reads the values on the host, again when they change.


_BYTES = 16_384
_SECONDS = 10.0
_FRESH_SECONDS = 60.0
"""How long the value from a command or a keyring is cached."""
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
        value = self._values.setdefault(credential.name, _Value())
        async with value.lock:
            match credential.source.kind:
                case "env":
                    text = self._variables.get(credential.source.where)
                    if text is None:
                        raise Unreadable(f"the variable {credential.source.where} was not set")
                    value.keep(_checked(text.encode("utf-8", errors="replace")), None)
                case "file":
                    await self._file(value, Path(credential.source.where))
                case "command":
                    await self._asked(value, words_of(credential.source.where))
                case "keyring":
                    service, _, user = credential.source.where.partition("/")
                    argv = ("secret-tool", "lookup", "service", service, "username", user)
                    await self._asked(value, argv)
            if value.text is None:
                raise Unreadable("it has no value")
            return value.text

    def doubt(self, name: str) -> None:
        """A server rejected the value: read it again next time."""
        if name in self._values:
            self._values[name].read_at = float("-inf")
            self._values[name].mark = None

    def known(self, name: str) -> tuple[str, ...]:
        """Every recent value."""
        found = self._values.get(name)
        return tuple(found.known) if found else ()

    async def _file(self, value: _Value, path: Path) -> None:
        try:
            mark, data = await anyio.to_thread.run_sync(_read_file, path, value.mark)
        except OSError as error:
            raise Unreadable(f"its file cannot be read: {error.strerror}") from None
        if data is not None:
            value.keep(_checked(data), mark)

    async def _asked(self, value: _Value, argv: tuple[str, ...]) -> None:
        if anyio.current_time() - value.read_at < _FRESH_SECONDS:
            return
        try:
            data = await output(argv, seconds=_SECONDS, limit_bytes=_BYTES)
        except Failed as error:
            raise Unreadable(str(error)) from None
        value.keep(_checked(data), None)


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


def _checked(data: bytes) -> str:
    if len(data) > _BYTES:
        raise Unreadable(f"it has more than {_BYTES:,} bytes")
    text = data.decode("latin-1").strip("\r\n")
    if len(text) < MIN_CHARS or not text.isascii() or not text.isprintable():
        raise Unreadable(f"it is not one line of at least {MIN_CHARS} printable ASCII characters")
    return text
