"""Who calls, in which role, and what that role may do. What is not listed here only an admin may."""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from litestar.types import Scope

from cloister.core.errors import UserError
from cloister.core.records import Role
from cloister.runs.tokens import RANK, Tokens

_READ = re.compile(
    r"/v1/(?:runs|templates)(?:/[^/]+){0,2}/?|/v1/runs/[^/]+/receipt/markdown/?|/v1/(?:pool|sandboxes|budget|compare|openapi\.json)/?"
)
"""What a viewer may GET. The inside of sandboxes is not among it."""
_STREAM = re.compile(r"/v1/runs/[^/]+/stream/?")
_OPERATE = re.compile(r"/v1/runs(?:/[^/]+/(?:say|stop|answer|fork|rewind|model))?/?")
"""What an operator may POST beside."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One who holds a token."""

    name: str
    role: Role
    holds: Callable[[], bool] = lambda: True
    """Whether the token still counts: a connection may outlive it."""

    def must_be(self, role: Role) -> None:
        """Raises `UserError` (`denied`) unless this caller is at least `role`, and still is."""
        if RANK[self.role] < RANK[role] or not self.holds():
            raise UserError("denied", f"{self.name} is {self.role}: this needs the role {role}.")


class Callers:
    """Everyone who may call: the one with the data directory's own token, and those with named ones."""

    def __init__(self, token: str, user: str, tokens: Tokens) -> None:
        self._secret = token.encode("ascii")
        self._user = user
        self._tokens = tokens

    def find(self, given: bytes) -> Caller | None:
        """Whose token was given."""
        if hmac.compare_digest(given, self._secret):
            return Caller(self._user, "admin")
        found = self._tokens.find(given)
        if found is None:
            return None
        return Caller(found.name, found.role, lambda: found in self._tokens.all())


def may(role: Role, scope: Scope) -> bool:
    """Whether `role` may make this request at all; what it says is judged by its route."""
    if role == "admin":
        return True
    path = scope["path"]
    if scope["type"] == "websocket":
        return _STREAM.fullmatch(path) is not None
    if scope["type"] != "http":
        return False
    method = scope["method"]
    if method in ("GET", "HEAD"):
        return _READ.fullmatch(path) is not None
    return role == "operator" and method == "POST" and _OPERATE.fullmatch(path) is not None


def remember(scope: Scope, caller: Caller) -> None:
    """Let routes know who calls."""
    scope["user"] = caller


def caller_of(scope: Scope) -> Caller:
    """Who makes this request; every request but for `/v1/health` has one."""
    return cast(Caller, scope["user"])
