"""A credential as the configuration describes it: where its value is, and for what alone it may be used."""

import re
from typing import Literal

import msgspec

from cloister.core.errors import UserError
from cloister.core.records import CredentialEntry
from cloister.policy.hosts import normal_host
from cloister.policy.pattern import RequestPattern, read_pattern
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
    """Where the value is."""

    kind: Kind
    where: str


class Credential(msgspec.Struct, frozen=True):
    """One credential, checked."""

    name: str
    source: Source
    host: str
    port: int
    scope: tuple[RequestPattern, ...]
    header: tuple[str, str] | None = None
    """The header's name, and its value with `{}` for the secret."""
    basic: str | None = None
    env: str | None = None

    def covers(self, method: str, path: str) -> bool:
        """Whether it is for such a request, however a server may read the path."""
        try:
            ways = request_paths(path)
        except ValueError:
            return False
        return any(all(one.matches_request(method, way) for way in ways) for one in self.scope)


def read_credentials(entries: tuple[CredentialEntry, ...], source: str) -> tuple[Credential, ...]:
    """Check them all. Raises `UserError` (`bad_credential`) that names the entry."""
    found: dict[str, Credential] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            credential = _read(entry)
            if credential.name in found:
                raise ValueError("another one has the same name")
        except ValueError as error:
            raise UserError(
                "bad_credential", f"{source}, credential {number} ({entry.name[:64]!r}): {error}."
            ) from None
        found[credential.name] = credential
    return tuple(found.values())


def _read(entry: CredentialEntry) -> Credential:
    if not NAME.fullmatch(entry.name):
        raise ValueError("a name has letters, digits, and . _ - after the first")
    kind, colon, where = entry.source.partition(":")
    if not colon or not where.strip() or kind not in _KINDS:
        raise ValueError("from is env:VARIABLE, file:PATH, command:PROGRAM ARGUMENT… or keyring:SERVICE/USER")
    if kind == "keyring" and "/" not in where:
        raise ValueError("a keyring is written keyring:SERVICE/USER")
    if entry.header is not None and entry.basic is not None:
        raise ValueError("it has a header or a basic user, not both")
    if entry.env is not None and not _VARIABLE.fullmatch(entry.env):
        raise ValueError("env is the name of a variable")
    if entry.basic is not None and (":" in entry.basic or not entry.basic.isprintable()):
        raise ValueError("basic is a user name without a colon")
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
        raise ValueError(f"the header {found[1]} is the door's own")
    return found[1], found[2]
