"""The guard in front of every route: the host name, the origin, the token, and the role that the route declares."""

import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
from litestar import Litestar
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from litestar.utils import normalize_path

from cloister.app.people.logins import Login, Logins
from cloister.app.people.projects import people_in
from cloister.app.people.reach import Reach, safely_highest
from cloister.app.tokens import RANK, Caller, Tokens, always, digest
from cloister.core.errors import CloisterError, HostError
from cloister.core.requests import Role
from cloister.server import compat
from cloister.server.errors import Problem, problem
from cloister.server.port_headers import address, has_own_name, secret_in

if TYPE_CHECKING:
    from cloister.app.people.oidc import LoginProvider
    from cloister.app.settings import Settings
    from cloister.app.workbench.sandboxes import Sandboxes


class Callers:
    """The holders of tokens, of the data directory's own and of named ones, and their browsers' logins."""

    def __init__(
        self,
        token: str,
        settings: "Settings",
        tokens: Tokens,
        logins: Logins,
        sandboxes: "Sandboxes | None" = None,
        provider: "LoginProvider | None" = None,
    ) -> None:
        self._people = people_in(settings.data_dir)
        self._sandboxes = sandboxes
        self._secret = token.encode("ascii")
        self._digest = digest(self._secret)
        self._user = settings.user
        self._tokens = tokens
        self._logins = logins
        self._provider = provider

    def find(self, given: bytes) -> Caller | None:
        """The holder of a token."""
        if hmac.compare_digest(given, self._secret):
            return Caller(self._user, "admin", token=self._digest)
        found = self._tokens.find(given)
        if found is None:
            return self._inside(given)
        return Caller(found.name, found.role, lambda: found in self._tokens.all(), found.sha256)

    def _inside(self, given: bytes) -> Caller | None:
        """The holder of a sandbox's own token."""
        found = self._sandboxes.holder(given) if self._sandboxes is not None else None
        return found if found is not None and found.holds() else None

    def visitor(self, host: bytes) -> Caller | None:
        """Who comes by the address of a port with a secret in it."""
        if self._sandboxes is None or (named := secret_in(host)) is None:
            return None
        found = self._sandboxes.visitor(*named)
        return found if found is not None and found.holds() else None

    def browser(self, scope: Scope) -> Caller | None:
        """The person whose login the browser of a request to a page has."""
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        host = _only(headers, b"host")
        if host is None or not _from_own_page(scope, headers):
            return None
        return self.logged_in(cookie_in(headers, cookie_name(scope, host)))

    def logged_in(self, cookie: bytes) -> Caller | None:
        """The person of a browser's login, with the role that its token has now."""
        login = self._logins.find(cookie) if cookie else None
        found = None if login is None else self._of_login(login)
        if login is None or found is None:
            return None
        return replace(found, holds=lambda: self._holds(login.id, found))

    def _holds(self, which: str, caller: Caller) -> bool:
        """Whether the login is still there and gives what it gave."""
        login = next((one for one in self._logins.all() if one.id == which), None)
        now = None if login is None else self._of_login(login)
        if now is None or (now.role, now.known) != (caller.role, caller.known):
            return False
        return set(caller.shares) <= set(now.shares)

    def _of_login(self, login: Login) -> Caller | None:
        """The caller with what the login gives now; None if that is nothing."""
        role = self._role(login)
        caller = Caller(
            login.name,
            role or "viewer",
            login=login.id,
            known=role is not None,
            groups=login.groups if self._is_of_provider(login) else (),
            shares=self._open_shares(login),
        )
        if role is None and self.highest(caller) is None:
            return None
        return caller

    def _open_shares(self, login: Login) -> tuple[str, ...]:
        if not login.shares:
            return ()
        holding = {one.id for one in self._people.shares()}
        return tuple(one for one in login.shares if one in holding)

    def _is_of_provider(self, login: Login) -> bool:
        return self._provider is not None and login.provider == self._provider.entry.issuer

    def highest(self, caller: Caller) -> Role | None:
        """The highest role that a caller has with any run."""
        return safely_highest(Reach(self._people, caller))

    def _role(self, login: Login) -> Role | None:
        """None when the token that the login came from was removed, or the person's groups give no role any more."""
        if not login.token:
            return (
                self._provider.role_of(login.groups)
                if self._provider and self._is_of_provider(login)
                else None
            )
        if hmac.compare_digest(login.token, self._digest):
            return "admin"
        found = self._tokens.with_digest(login.token)
        return None if found is None else found.role


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
    """The caller that the guard found; only `OPEN_PATHS` and webhooks have none."""
    return cast(Caller, scope["user"])


RESERVE = 64
"""Requests and WebSockets of admins beyond those that the settings allow. `OPEN_PATHS` are always answered."""

STRANGERS = 64
"""Requests without a token at the same time, to the routes that need none. They take no place of others."""

SLOW_SECONDS = 2.0
"""After this time a stranger gives its place to another one, if all are taken: a webhook arrives at once."""

HOLDS_SECONDS = 0.5
"""How often the token of an open connection is checked."""

REVOKED = 4401
"""Closes the WebSockets of a token that was removed."""

SUBPROTOCOL = "cloister"
"""What a browser offers beside the token: it cannot set headers on a WebSocket."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

_SANDBOXES = "/v1/sandboxes/"
OPEN_PATH = "/v1/health"
OPEN_PATHS = frozenset({OPEN_PATH, "/healthz", "/readyz"})
_LOOPBACK = re.compile(rb"^(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?$")

Refusal = tuple[int, Problem]

_UNAUTHORIZED: Refusal = (
    401,
    Problem(
        "unauthorized", "Send the token: `Authorization: Bearer TOKEN`, from the data directory's `token`."
    ),
)
_BUSY: Refusal = (
    503,
    Problem("server_busy", "The server has too many open connections: close some, or try again."),
)
_SLOW: Refusal = (
    408,
    Problem("slow_request", "The request took too long to arrive while others waited: send it at once."),
)
_ENDED: Refusal = (
    401,
    Problem("unauthorized", "The login of this browser has ended: run `cloister open` for a new one."),
)


def guarded(
    inner: ASGIApp, web: Litestar, callers: Callers, connections: int, names: Iterable[str] = ()
) -> ASGIApp:
    """`inner` behind the checks below, with the roles that the routes of `web` declare.

    `connections` are requests and WebSockets at the same time. `names` are host names by which a reverse proxy on this machine calls the server.
    """
    allowed = frozenset(name.lower().encode() for name in names)

    served, strangers = 0, Strangers()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal served
        try:
            refusal = refuse(scope, web, callers, allowed)
        except CloisterError as error:
            refusal = problem(error)
        known = "user" in scope
        if refusal is None and known:
            refusal = _too_many(scope, served, connections)
        if refusal is not None:
            await answer(scope, send, refusal)
            return
        if not known:
            await strangers.serve(inner, scope, receive, send)
            return
        served += 1
        try:
            if caller_of(scope).holds is not always:
                await _while_it_holds(inner, scope, receive, send)
            else:
                await inner(scope, receive, send)
        finally:
            served -= 1

    return guard


class Strangers:
    """Requests without a token. When all places are taken, the slowest one gives way to the newest."""

    def __init__(self) -> None:
        self._since: dict[anyio.CancelScope, float] = {}
        """The longest served first."""

    async def serve(self, inner: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN_PATHS:
            await inner(scope, receive, send)
            return
        if not self._has_room():
            await answer(scope, send, _BUSY)
            return
        begun = False

        async def passing(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        with anyio.CancelScope() as place:
            self._since[place] = anyio.current_time()
            try:
                await inner(scope, receive, passing)
            finally:
                self._since.pop(place, None)
        if place.cancelled_caught and not begun:
            await answer(scope, send, _SLOW)

    def _has_room(self) -> bool:
        if len(self._since) < STRANGERS:
            return True
        slowest, since = next(iter(self._since.items()))
        if anyio.current_time() - since < SLOW_SECONDS:
            return False
        del self._since[slowest]
        slowest.cancel()
        return True


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
    if any(name == b"origin" and not _same_origin(value, host, scope) for name, value in headers):
        return 403, Problem("bad_origin", "Pages of other sites may not call this server.")
    if scope["type"] == "http" and scope["path"] in OPEN_PATHS and not has_own_name(host):
        return None
    if not has_own_name(host) and route_of(web, scope).get("open"):
        return None
    if given := _given_token(scope, headers):
        caller = callers.find(given)
    else:
        given = b"" if has_own_name(host) else cookie_in(headers, cookie_name(scope, host))
        caller = callers.visitor(host) if has_own_name(host) else callers.logged_in(given)
        if caller is not None and given and not _from_own_page(scope, headers):
            return 403, Problem("bad_origin", "A call with a login must come from a page of this server.")
    if caller is None:
        return _ENDED if given and not _given_token(scope, headers) else _UNAUTHORIZED
    # Also for the audit of a refused call.
    scope["user"] = caller
    if caller.sandbox and not _stays_inside(caller, scope, host, web):
        return 403, Problem("denied", f"This token reaches the inside of {caller.sandbox} only.")
    # A host name of its own leads to a port inside a sandbox.
    route: Mapping[str, object] = {} if has_own_name(host) else route_of(web, scope)
    if (caller.known and may(caller.role, route)) or _may_somewhere(callers, caller, route):
        return None
    what = caller.role if caller.known else "no user of this server"
    return 403, Problem("denied", f"{caller.name} is {what}, which may not do this.")


def _may_somewhere(callers: Callers, caller: Caller, route: Mapping[str, object]) -> bool:
    """Whether a project or a link may give the role that the route needs; the verb decides."""
    if route.get("scope", "server") == "server":
        return False
    highest = callers.highest(caller)
    return highest is not None and may(highest, route)


def _stays_inside(caller: Caller, scope: Scope, host: bytes, web: Litestar) -> bool:
    """Whether a sandbox's own token is used for its inside. The verbs check that again."""
    raw = scope["raw_path"] or scope["path"].encode()
    if (where := address(host, scope["path"], raw, b"")) is not None:
        return where.sandbox == caller.sandbox
    named = scope["path"].startswith(_SANDBOXES)
    if named and scope["path"].removeprefix(_SANDBOXES).partition("/")[0] != caller.sandbox:
        return False
    return route_of(web, scope).get("inside") is True


def _too_many(scope: Scope, served: int, connections: int) -> Refusal | None:
    most = connections + (RESERVE if caller_of(scope).role == "admin" else 0)
    return None if scope["path"] in OPEN_PATHS or served < most else _BUSY


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
        await answer(scope, send, _UNAUTHORIZED)
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


def _same_origin(origin: bytes, host: bytes, scope: Scope) -> bool:
    return origin.lower() == (b"https://" if is_secure(scope, host) else b"http://") + host


def cookie_name(scope: Scope, host: bytes) -> str:
    """The name of the login's cookie: cookies do not tell the ports of one host apart."""
    if is_secure(scope, host):
        return "__Host-cloister"
    return f"cloister-{host.rpartition(b':')[2].decode() if b':' in host else '80'}"


def is_secure(scope: Scope, host: bytes) -> bool:
    """Whether the browser speaks https: to this server, or to a reverse proxy."""
    if scope["scheme"] in ("https", "wss") or "forwarded" in scope:
        return scope["scheme"] in ("https", "wss")
    # Behind a reverse proxy that does not say so, the browser speaks https, and this server http.
    return not _LOOPBACK.match(host) and not has_own_name(host)


def cookie_in(headers: Iterable[tuple[bytes, bytes]], wanted: str) -> bytes:
    """The value of a cookie; empty when there is none or more than one."""
    pairs = [
        part.strip().partition(b"=")
        for name, value in headers
        if name == b"cookie"
        for part in value.split(b";")
    ]
    found = [value for name, _, value in pairs if name == wanted.encode()]
    return found[0] if len(found) == 1 else b""


def _from_own_page(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a call with a cookie may come from a page of this server: others of this machine are the same site."""
    if _only(headers, b"sec-fetch-site") in (b"same-site", b"cross-site"):
        return False
    reads = scope["type"] == "http" and scope["method"] in _READING
    return reads or _only(headers, b"origin") is not None  # `refuse` has compared it


def _given_token(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    headers = tuple(headers)
    if given := compat.token_of(scope["path"], headers):
        return given
    if (traffic := _only(headers, compat.TRAFFIC_TOKEN)) and has_own_name(_only(headers, b"host") or b""):
        return traffic
    value = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() == b"bearer":
        given = rest.strip()
    elif scope["type"] == "websocket":
        offered = [str(name) for name in scope["subprotocols"]]
        if len(offered) >= 2 and offered[0] == SUBPROTOCOL:
            given = offered[1].encode("latin-1", errors="replace")
    return given


async def answer(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Refuse an HTTP request, or a WebSocket before it is accepted, with the same body."""
    status, body = refusal
    status, shape = compat.in_shape(scope["path"], status, body.code, body.message) or (status, body)
    data = msgspec.json.encode(shape)
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
