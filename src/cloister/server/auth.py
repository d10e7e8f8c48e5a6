"""Who may speak to the server: local callers that hold a token. Wraps everything else."""

import re
from collections.abc import Iterable

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from cloister.core.errors import CloisterError
from cloister.server.callers import Callers, may, remember
from cloister.server.errors import Problem, problem
from cloister.server.port_headers import has_own_name

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
