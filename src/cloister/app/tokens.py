"""Callers, their roles, and the named tokens of a data directory.

Only hashes are stored. The file is read again whenever it changed, so that adding and removing need no restart.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.requests import Role
from cloister.system.locks import take

TOKENS = 1_000
RANK: dict[Role, int] = {"viewer": 0, "operator": 1, "admin": 2}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_TAKEN = frozenset({"deadline"})
"""Names that the log uses for something other than a person."""
_FILE_BYTES = 1_048_576


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

    def must_be(self, role: Role) -> None:
        """Raises `UserError`: `denied` without at least `role`, `unauthorized` once the token is removed."""
        if RANK[self.role] < RANK[role]:
            raise UserError("denied", f"{self.name} is {self.role}: this needs the role {role}.")
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


class Tokens:
    """The tokens of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "tokens.json"
        self._seen: tuple[int, int, int] | None = None
        self._known: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """Raises `HostError` (`tokens_broken`) when the file cannot be read; then no named token is valid."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._seen, self._known = None, ()
            return ()
        except OSError as error:
            raise self._broken(error.strerror or "no access") from None
        now = (status.st_mtime_ns, status.st_size, status.st_ino)
        if now != self._seen:
            self._known = self._read()
            # Another write in the same tick of the file's clock would go unnoticed: read a file that new again.
            settled = time.time_ns() - status.st_mtime_ns > limits.FILE_CLOCK_NANOSECONDS
            self._seen = now if settled else None
        return self._known

    def find(self, secret: bytes) -> Token | None:
        """The token whose secret this is."""
        given = hashlib.sha256(secret).hexdigest()
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
        made = Token(name, role, hashlib.sha256(secret.encode("ascii")).hexdigest(), time.time())
        with self._locked():
            known = self.all()
            if any(token.name == name for token in known):
                raise UserError("name_taken", f"There is a token {name} already: remove it first.")
            if len(known) >= TOKENS:
                raise UserError("too_many_tokens", f"There are {TOKENS} tokens already: remove some.")
            self._write((*known, made))
        return secret

    def remove(self, name: str) -> None:
        """Raises `UserError` (`no_such_token`)."""
        with self._locked():
            known = self.all()
            left = tuple(token for token in known if token.name != name)
            if len(left) == len(known):
                raise UserError(
                    "no_such_token", f"There is no token {name[:60]!r}: `cloister token list` shows them."
                )
            self._write(left)

    def _read(self) -> tuple[Token, ...]:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_FILE_BYTES), type=_File).tokens
        except OSError as error:
            raise self._broken(error.strerror or "no access") from None
        except msgspec.MsgspecError:
            raise self._broken("it is damaged") from None

    def _write(self, tokens: tuple[Token, ...]) -> None:
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_File(tokens)))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._broken(error.strerror or "no access") from None
        self._seen = None

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = take(self._path.with_suffix(".lock"), wait=True, create=True)
        except OSError as error:
            raise self._broken(error.strerror or "no access") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def _broken(self, why: str) -> HostError:
        return HostError("tokens_broken", f"{self._path} cannot be used ({why}): repair or delete it.")
