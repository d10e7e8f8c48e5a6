"""The guard in front of every route: the host name, the origin, the token, and the role that the route declares."""

import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
from litestar import Litestar
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from litestar.utils import normalize_path

from cloister.app.tokens import RANK, Caller, Tokens, always
from cloister.core.errors import CloisterError, HostError
from cloister.core.requests import Role
from cloister.server.errors import Problem, problem
from cloister.server.port_headers import has_own_name


class Callers:
    """The holders of tokens: of the data directory's own, and of named ones."""

    def __init__(self, token: str, user: str, tokens: Tokens) -> None:
        self._secret = token.encode("ascii")
        self._user = user
        self._tokens = tokens

    def find(self, given: bytes) -> Caller | None:
        """The holder of a token."""
        if hmac.compare_digest(given, self._secret):
            return Caller(self._user, "admin")
        found = self._tokens.find(given)
        if found is None:
            return None
        return Caller(found.name, found.role, lambda: found in self._tokens.all())


def route_of(web: Litestar, scope: Scope) -> Mapping[str, object]:
    """The metadata of the route that would serve this request; empty when there is none."""
    try:
        method = cast(Any, scope["method"]) if scope["type"] == "http" else None
        return web.asgi_router.handle_routing(path=normalize_path(scope["path"]), method=method)[1].opt
    except Exception:  # an invalid address has no route
        return {}


def may(caller: Role, route: Mapping[str, object]) -> bool:
    """Whether a role may use a route at all. A route that declares no role is for admins."""
    return RANK[caller] >= RANK[cast(Role, route.get("role", "admin"))]


def caller_of(scope: Scope) -> Caller:
    """The caller that the guard found; only `/v1/health` has none."""
    return cast(Caller, scope["user"])


CONNECTIONS, RESERVE = 512, 64
"""Requests and WebSockets at the same time, and how many more of admins. `/v1/health` is always answered."""

HOLDS_SECONDS = 0.5
"""How often the token of an open connection is checked."""

REVOKED = 4401
"""Closes the WebSockets of a token that was removed."""

SUBPROTOCOL = "cloister"
"""What a browser offers beside the token: it cannot set headers on a WebSocket."""

OPEN_PATH = "/v1/health"
_LOOPBACK = re.compile(rb"^(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?$")

Refusal = tuple[int, Problem]

_UNAUTHORIZED: Refusal = (
    401,
    Problem(
        "unauthorized", "Send the token: `Authorization: Bearer TOKEN`, from the data directory's `token`."
    ),
)


def guarded(inner: ASGIApp, web: Litestar, callers: Callers, names: Iterable[str] = ()) -> ASGIApp:
    """`inner` behind the checks below, with the roles that the routes of `web` declare.

    `names` are host names by which a reverse proxy on this machine calls the server.
    """
    allowed = frozenset(name.lower().encode() for name in names)

    served = 0

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal served
        try:
            refusal = refuse(scope, web, callers, allowed) or _too_many(scope, served)
        except CloisterError as error:
            refusal = problem(error)
        if refusal is not None:
            await _answer(scope, send, refusal)
            return
        served += 1
        try:
            if "user" in scope and caller_of(scope).holds is not always:
                await _while_it_holds(inner, scope, receive, send)
            else:
                await inner(scope, receive, send)
        finally:
            served -= 1

    return guard


def refuse(
    scope: Scope, web: Litestar, callers: Callers, allowed: frozenset[bytes] = frozenset()
) -> Refusal | None:
    """Why this request is refused; None when it is served, and then `caller_of` knows its caller."""
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    host = _only(headers, b"host")
    # DNS rebinding: a page of another site whose name resolves to this machine still sends its own name.
    if host is None or not (_LOOPBACK.match(host) or has_own_name(host) or host in allowed):
        named = "localhost, 127.0.0.1 and the names in the setting `hosts`"
        return 421, Problem("bad_host", f"This server answers to {named} only.")
    if any(name == b"origin" and not _same_origin(value, host) for name, value in headers):
        return 403, Problem("bad_origin", "Pages of other sites may not call this server.")
    if scope["type"] == "http" and scope["path"] == OPEN_PATH and not has_own_name(host):
        return None
    caller = callers.find(_given_token(scope, headers))
    if caller is None:
        return _UNAUTHORIZED
    # Also for the audit of a refused call.
    scope["user"] = caller
    # A host name of its own leads to a port inside a sandbox.
    if not may(caller.role, {} if has_own_name(host) else route_of(web, scope)):
        return 403, Problem("denied", f"{caller.name} is {caller.role}, which may not do this.")
    return None


def _too_many(scope: Scope, served: int) -> Refusal | None:
    if "user" not in scope or served < CONNECTIONS:
        return None
    if caller_of(scope).role == "admin" and served < CONNECTIONS + RESERVE:
        return None
    return 503, Problem("server_busy", "The server has too many open connections: close some, or try again.")


async def _while_it_holds(inner: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """`inner`, which is cancelled when the token of its caller is removed."""
    caller, state, revoked = caller_of(scope), "", False
    failure: Exception | None = None

    async def passing(message: Message) -> None:
        nonlocal state
        await send(message)
        state = str(message["type"]) if not message.get("more_body") else state

    async with anyio.create_task_group() as tasks:

        async def check() -> None:
            nonlocal revoked
            while _holds(caller):  # noqa: ASYNC110  (other processes change the file of tokens)
                await anyio.sleep(HOLDS_SECONDS)
            revoked = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(check)
        try:
            await inner(scope, receive, passing)
        except Exception as error:
            failure = error  # raised below as it is: a task group would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not revoked:
        return
    if state == "":
        await _answer(scope, send, _UNAUTHORIZED)
    elif state == "websocket.accept" or state == "websocket.send":
        await send({"type": "websocket.close", "code": REVOKED, "reason": "The token was removed."})


def _holds(caller: Caller) -> bool:
    try:
        return caller.holds()
    except CloisterError:  # the file of tokens is broken: no named token is valid
        return False


def _only(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    values = [value for name, value in headers if name == wanted]
    return values[0].lower() if len(values) == 1 else None


def _same_origin(origin: bytes, host: bytes) -> bool:
    # Behind a reverse proxy the browser speaks https, and this server http.
    secure = not _LOOPBACK.match(host) and not has_own_name(host)
    return origin.lower() == (b"https://" if secure else b"http://") + host


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
    """Refuse an HTTP request, or a WebSocket before it is accepted, with the same body."""
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


# The bearer token: made once per data directory, readable only by its owner.


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
    # Linked into place when it is complete: a crash in between leaves no empty token.
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
            return  # another process was faster: its token counts
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
                f"or run `chmod 600 {path}` if you are sure that it was not read.",
            )
        text = file.read(_READ_BYTES).decode("ascii", errors="replace").strip()
    if not _SHAPE.match(text):
        raise HostError("token_broken", f"{path} holds no token: delete it and a new one is made.")
    return text
