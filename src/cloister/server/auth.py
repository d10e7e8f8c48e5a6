"""Who may speak to the server: local callers that hold a token. Wraps everything else."""

import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from cloister.app.tokens import RANK, Tokens
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.requests import Role
from cloister.server.errors import Problem, problem
from cloister.server.port_headers import has_own_name

# Who calls, in which role, and what that role may do. What is not listed here only an admin may.


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


SUBPROTOCOL = "cloister"
"""What a browser offers beside the token, because it cannot set headers on a WebSocket."""

OPEN_PATH = "/v1/health"
_LOOPBACK = re.compile(rb"^(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?$")

Refusal = tuple[int, Problem]


def guarded(inner: ASGIApp, callers: Callers) -> ASGIApp:
    """`inner` behind the checks below; what is refused never reaches it."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            refusal = refuse(scope, callers)
        except CloisterError as error:
            refusal = problem(error)
        if refusal is None:
            await inner(scope, receive, send)
        else:
            await _answer(scope, send, refusal)

    return guard


def refuse(scope: Scope, callers: Callers) -> Refusal | None:
    """Why this request is not served; None when it is, and then its routes know who calls."""
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    host = _only(headers, b"host")
    # A page of another site whose name was made to point at this machine still sends its own name.
    if host is None or not (_LOOPBACK.match(host) or has_own_name(host)):
        return 421, Problem("bad_host", "This server answers to localhost and 127.0.0.1 only.")
    if any(name == b"origin" and not _same_origin(value, host) for name, value in headers):
        return 403, Problem("bad_origin", "Pages of other sites may not call this server.")
    if scope["type"] == "http" and scope["path"] == OPEN_PATH and not has_own_name(host):
        return None
    caller = callers.find(_given_token(scope, headers))
    if caller is None:
        return 401, Problem(
            "unauthorized",
            "Send the token: `Authorization: Bearer TOKEN`, from the data directory's `token`.",
        )
    # Also of one who is refused it is known who it was.
    remember(scope, caller)
    # A name of its own leads to a port inside a sandbox.
    if not may(caller.role, scope) or (has_own_name(host) and caller.role != "admin"):
        return 403, Problem("denied", f"{caller.name} is {caller.role}, which may not do this.")
    return None


def _only(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    values = [value for name, value in headers if name == wanted]
    return values[0].lower() if len(values) == 1 else None


def _same_origin(origin: bytes, host: bytes) -> bool:
    return origin.lower() == b"http://" + host


def _given_token(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    given = b""
    value = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() == b"bearer":
        given = rest.strip()
    elif scope["type"] == "websocket":
        offered = [str(name) for name in scope["subprotocols"]]
        if len(offered) >= 2 and offered[0] == SUBPROTOCOL:
            given = offered[1].encode("latin-1", errors="replace")
    return given


async def _answer(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Refuse an HTTP request, or a WebSocket before it is accepted, with the same words."""
    status, body = refusal
    data = msgspec.json.encode(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if scope["type"] == "websocket":
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})  # type: ignore[typeddict-item]
        await send({"type": "websocket.http.response.body", "body": data, "more_body": False})  # type: ignore[typeddict-item]
    else:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": False})


# The bearer token: made once per data directory, readable by its owner alone.


_SHAPE = re.compile(r"^[A-Za-z0-9_-]{32,128}$")
_READ_BYTES = 256


def load_token(path: Path) -> str:
    """The token in `path`, made now if there is none.

    Raises `HostError` with code `no_data_dir`, `token_exposed`, `token_broken` or `token_failed`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HostError(
            "no_data_dir",
            f"The data directory {path.parent} cannot be made ({error.strerror}): "
            "choose another with --data-dir.",
        ) from None
    try:
        if not path.exists() and not path.is_symlink():
            _make(path)
        return _read(path)
    except OSError as error:
        raise HostError("token_failed", f"The token file {path} cannot be used: {error.strerror}.") from None


def _make(path: Path) -> None:
    # Linked into place when it is whole: a crash in between never leaves an empty token behind.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # somebody else made one in this moment: theirs counts
    finally:
        draft.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise HostError(
                "token_exposed", f"{path} is not a file of yours: delete it and a new token is made."
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise HostError(
                "token_exposed",
                f"{path} can be read by others: delete it to get a new token, "
                f"or run `chmod 600 {path}` if you know nobody read it.",
            )
        text = file.read(_READ_BYTES).decode("ascii", errors="replace").strip()
    if not _SHAPE.match(text):
        raise HostError("token_broken", f"{path} holds no token: delete it and a new one is made.")
    return text
