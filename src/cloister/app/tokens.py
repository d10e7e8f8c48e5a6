"""Callers, their roles, and the named tokens of a data directory.

Only hashes are stored. The file is read again whenever it changed, so that adding and removing need no restart.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloister.core.errors import UserError
from cloister.core.requests import Role
from cloister.core.system.json_file import JsonFile

TOKENS = 1_000
RANK: dict[Role, int] = {"viewer": 0, "operator": 1, "admin": 2}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_TAKEN = frozenset({"deadline"})
"""Names that the log uses for something other than a person."""


def always() -> bool:
    """The validity of a token that is never removed."""
    return True


@dataclass(frozen=True, slots=True)
class Caller:
    """A person, or a program, with a role."""

    name: str
    role: Role
    holds: Callable[[], bool] = always
    """Whether the token is still valid: a connection may outlive it."""
    token: str = ""
    """SHA-256 of the token that the caller sent; empty for a login and for a command without a server."""
    login: str = ""
    """The id of the login whose cookie the caller sent."""
    sandbox: str = ""
    """The only sandbox that the caller's token reaches, and only its inside; empty for everyone else."""
    known: bool = True
    """Whether the role is one on the server; False: only projects and links let the caller in."""
    groups: tuple[str, ...] = ()
    """Of the login provider."""
    shares: tuple[str, ...] = ()
    """The links that the caller has opened."""

    @property
    def is_admin(self) -> bool:
        """Whether no project limits what the caller sees."""
        return self.known and self.role == "admin"

    @property
    def guest(self) -> bool:
        """Whether nothing is known of the caller but a link."""
        return not self.known and not self.token and bool(self.shares) and self.name.startswith("guest ")

    def must_be(self, role: Role) -> None:
        """Raises `UserError`: `denied` without at least `role`, `unauthorized` once the token is removed."""
        if not self.known:
            raise UserError(
                "denied", f"{self.name} has no role on this server: only projects and links count."
            )
        if RANK[self.role] < RANK[role]:
            raise UserError("denied", f"{self.name} is {self.role}: this needs the role {role}.")
        self.must_hold()

    def must_hold(self) -> None:
        """Raises `UserError` (`unauthorized`) once the token is removed."""
        if not self.holds():
            raise UserError("unauthorized", f"The token of {self.name} was removed.")


class Token(msgspec.Struct, frozen=True):
    """One token, without the secret."""

    name: str
    role: Role
    sha256: str
    made_at: float
    """Unix seconds."""


class _File(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...] = ()


def digest(secret: bytes) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret).hexdigest()


class Tokens:
    """The tokens of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._file = JsonFile(data_dir / "tokens.json", _File(), "tokens_broken")

    def all(self) -> tuple[Token, ...]:
        """Raises `HostError` (`tokens_broken`) when the file cannot be read; then no named token is valid."""
        return self._file.get().tokens

    def find(self, secret: bytes) -> Token | None:
        """The token whose secret this is."""
        return self.with_digest(digest(secret))

    def with_digest(self, given: str) -> Token | None:
        """The token whose secret has this digest."""
        found = None
        for token in self.all():
            if hmac.compare_digest(token.sha256, given):
                found = token
        return found

    def add(self, name: str, role: Role, not_named: str) -> str:
        """Make a token and return its secret, which is not stored. `not_named` is the holder of the first token."""
        if not _NAME.fullmatch(name) or name in _TAKEN or name == not_named:
            raise UserError(
                "bad_name",
                f"{name[:60]!r} cannot name a token: use up to 40 of a-z, 0-9, dot, dash and underscore, "
                f"and neither 'deadline' nor the name of the account that runs the server.",
            )
        secret = secrets.token_urlsafe(32)
        made = Token(name, role, digest(secret.encode("ascii")), time.time())

        def add(file: _File) -> _File:
            if any(token.name == name for token in file.tokens):
                raise UserError("name_taken", f"There is a token {name} already: remove it first.")
            if len(file.tokens) >= TOKENS:
                raise UserError("too_many_tokens", f"There are {TOKENS} tokens already: remove some.")
            return _File((*file.tokens, made))

        self._file.change(add)
        return secret

    def remove(self, name: str) -> None:
        """Raises `UserError` (`no_such_token`)."""

        def remove(file: _File) -> _File:
            left = tuple(token for token in file.tokens if token.name != name)
            if len(left) == len(file.tokens):
                raise UserError(
                    "no_such_token", f"There is no token {name[:60]!r}: `cloister token list` shows them."
                )
            return _File(left)

        self._file.change(remove)
