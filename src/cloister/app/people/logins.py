"""Logins of browsers: a one-time secret, which a page exchanges for a cookie that holds for a day.

Only hashes are stored, in a file: a login outlives a restart of the server. A login has the name and the role of the
token that it came from, and ends with it.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import structs

from cloister.app.tokens import Caller, digest
from cloister.core.errors import UserError
from cloister.core.requests import Role
from cloister.core.system.json_file import JsonFile

ONCE_SECONDS = 60.0
LOGIN_SECONDS = 86_400.0
LOGINS, OF_ONE = 10_000, 20
"""Logins of a data directory, and of one person, whose oldest ends when there is one more."""
_FILE_BYTES = 4_194_304


class Login(msgspec.Struct, frozen=True):
    """A browser that is logged in, or a one-time secret for one."""

    id: str
    name: str
    role: Role
    sha256: str
    """Of the cookie, or of the one-time secret."""
    token: str
    """SHA-256 of the token that it came from; empty if a login provider named the person."""
    since: float
    until: float
    provider: str = ""
    """The issuer that named the person."""
    groups: tuple[str, ...] = ()
    """The person's groups there, as far as the settings or projects know them."""
    shares: tuple[str, ...] = ()
    """The links that this browser has opened."""
    known: bool = True
    """Whether the person had a role on the server when the login began."""


class _File(msgspec.Struct, frozen=True):
    offered: tuple[Login, ...] = ()
    logins: tuple[Login, ...] = ()


class Logins:
    """The logins of one data directory."""

    def __init__(self, data_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._file = JsonFile(data_dir / "logins.json", _File(), "logins_broken", _FILE_BYTES)
        self._now = now

    def offer(self, caller: Caller) -> str:
        """A one-time secret for the holder of a token. Raises `UserError` (`denied`, `too_many_logins`)."""
        if not caller.token:
            raise UserError("denied", "Only a token can open a login: use `cloister open` with one.")
        made, secret = self._new(caller.name, caller.role, caller.token, ONCE_SECONDS)

        def add(file: _File) -> _File:
            return structs.replace(file, offered=_with(file.offered, made, self._now()))

        self._file.change(add)
        return secret

    def exchange(self, secret: bytes) -> tuple[str, Login]:
        """The cookie and the login for a one-time secret. Raises `UserError` (`bad_login`)."""
        given, found = digest(secret), list[tuple[str, Login]]()

        def use(file: _File) -> _File:
            now = self._now()
            used = [each for each in _alive(file.offered, now) if hmac.compare_digest(each.sha256, given)]
            if not used:
                raise UserError(
                    "bad_login",
                    "This address was used already, is older than a minute, or is wrong: run `cloister open` again.",
                )
            made, cookie = self._new(used[0].name, used[0].role, used[0].token, LOGIN_SECONDS)
            found.append((cookie, made))
            left = tuple(each for each in file.offered if each not in used)
            return structs.replace(file, offered=left, logins=_with(file.logins, made, now))

        self._file.change(use)
        return found[0]

    def begin(
        self, name: str, role: Role | None, provider: str, groups: tuple[str, ...]
    ) -> tuple[str, Login]:
        """The cookie and the login of a person whom a login provider named. Raises `UserError` (`too_many_logins`)."""
        made, cookie = self._new(name, role or "viewer", "", LOGIN_SECONDS)
        made = structs.replace(made, provider=provider, groups=groups, known=role is not None)

        def add(file: _File) -> _File:
            return structs.replace(file, logins=_with(file.logins, made, self._now()))

        self._file.change(add)
        return cookie, made

    def begin_as_guest(self, share: str, until: float) -> tuple[str, Login]:
        """The cookie and the login of a browser that opened a link. Raises `UserError` (`too_many_logins`)."""
        left = min(LOGIN_SECONDS, until - self._now())
        made, cookie = self._new(f"guest {share}", "viewer", "", left)
        made = structs.replace(made, shares=(share,), known=False)

        def add(file: _File) -> _File:
            return structs.replace(file, logins=_with(file.logins, made, self._now()))

        self._file.change(add)
        return cookie, made

    def open_share(self, which: Login, share: str) -> Login:
        """The login, which has opened a link as well."""
        shares = (*(one for one in which.shares if one != share), share)[-OF_ONE:]
        made = structs.replace(which, shares=shares)

        def add(file: _File) -> _File:
            return structs.replace(
                file, logins=tuple(made if one.id == which.id else one for one in file.logins)
            )

        self._file.change(add)
        return made

    def all(self) -> tuple[Login, ...]:
        """The logins that hold."""
        return tuple(_alive(self._file.get().logins, self._now()))

    def find(self, cookie: bytes) -> Login | None:
        """The login whose cookie this is."""
        given = digest(cookie)
        return next((each for each in self.all() if hmac.compare_digest(each.sha256, given)), None)

    def end(self, which: str) -> None:
        """End a login. One that has ended is fine."""

        def end(file: _File) -> _File:
            return structs.replace(file, logins=tuple(each for each in file.logins if each.id != which))

        self._file.change(end)

    def _new(self, name: str, role: Role, token: str, seconds: float) -> tuple[Login, str]:
        secret, now = secrets.token_urlsafe(32), self._now()
        made = Login(
            f"l-{secrets.token_hex(6)}", name, role, digest(secret.encode("ascii")), token, now, now + seconds
        )
        return made, secret


def _alive(logins: tuple[Login, ...], now: float) -> list[Login]:
    # A clock that was set back must not prolong a login.
    return [each for each in logins if each.since - ONCE_SECONDS <= now < each.until]


def _with(logins: tuple[Login, ...], made: Login, now: float) -> tuple[Login, ...]:
    left = _alive(logins, now)
    if len(own := [each for each in left if each.name == made.name]) >= OF_ONE:
        left.remove(own[0])
    if len(left) >= LOGINS:
        raise UserError("too_many_logins", f"There are {LOGINS} logins already: end some.")
    return (*left, made)
