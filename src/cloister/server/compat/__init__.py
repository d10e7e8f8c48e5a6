"""The wires of other services' clients, each below its own base path and translated to our verbs.

What all of them share is here: where their clients put the token, and the shapes of their errors. Pure.
"""

import base64
import binascii
import re
from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]

E2B, PANDASTACK, MODBOX = "/compat/e2b", "/compat/pandastack", "/compat/modbox"
BOX = MODBOX + "/box/"
"""Before the secret in the address of a sandbox."""

_SECRET = re.compile(r"^/+compat/+modbox/+box/+[^/]+")
"""Routes take several slashes for one, so a client that joins addresses badly must not put the secret into a log."""
_LIKE_SECRET = re.compile(r"(?i)[0-9a-f]{64}")

_INSIDE = ("/files", "/health", "/execute", "/contexts", "/process.Process/", "/filesystem.Filesystem/")
_RPC = ("/process.Process/", "/filesystem.Filesystem/")
TRAFFIC_TOKEN = b"e2b-traffic-access-token"
"""The header with which clients of e2b reach ports inside."""
_E2B_KEYS = (b"x-access-token", b"x-api-key", TRAFFIC_TOKEN)

CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "already_exists",
    410: "unavailable",
    413: "resource_exhausted",
    421: "permission_denied",
    429: "resource_exhausted",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}
"""Status → code of the Connect protocol."""


def token_of(path: str, headers: Headers) -> bytes:
    """The token that a client of another service sends elsewhere than in `Authorization: Bearer`; empty if none."""
    if path.startswith(BOX):
        return path.removeprefix(BOX).partition("/")[0].encode("latin-1", errors="replace")
    if path.startswith(E2B + "/"):
        given = dict(headers)
        return next((given[name].strip() for name in _E2B_KEYS if name in given), b"")
    return b""


def without_secret(path: str) -> str:
    """The path as logs may have it. Outside of our own API, which names files by their hash, nothing looks like a secret."""
    shown = _SECRET.sub(f"{BOX}…", path)
    return shown if path.startswith("/v1/") else _LIKE_SECRET.sub("…", shown)


def user_of(authorization: str | None) -> str:
    """The user that a client of e2b names in `Authorization: Basic`; empty if none."""
    scheme, _, rest = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest, validate=True).decode("utf-8").partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def in_shape(path: str, status: int, code: str, message: str) -> tuple[int, dict[str, object]] | None:
    """The status and body of a refusal as that service's clients read it; None for our own API."""
    if path.startswith(E2B + "/"):
        below = path.removeprefix(E2B)
        if code in ("unauthorized", "no_such_sandbox", "sandbox_lost", "sandbox_paused") and below.startswith(
            _INSIDE
        ):
            # The answer of its proxy to a sandbox that has ended, and to a wrong token, which tells no more.
            gone = "The sandbox was not found: it has ended, or the access token is not its own."
            return 502, {"code": 502, "message": gone}
        if below.startswith(_RPC):
            return status, {"code": CODES.get(status, "internal"), "message": message}
        return status, {"code": status, "message": message}
    if path.startswith(PANDASTACK + "/"):
        return status, {"error": message, "code": code}
    if path.startswith(MODBOX + "/"):
        return status, {"error": {"code": code, "message": message}, "detail": message}
    return None
