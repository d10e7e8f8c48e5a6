"""Webhooks of forges: is the sender who it claims to be, and which repository is it about? Pure."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import cast

import msgspec

CLOCK_SECONDS = 300.0
"""How old a signed time may be."""
_PATH_CHARS = 1_000
_PLACES = {
    "gitlab": ("project.path_with_namespace",),
    "pagure": (
        "msg.pullrequest.project.fullname",
        "msg.pull_request.project.fullname",
        "msg.issue.project.fullname",
        "msg.project.fullname",
    ),
}
"""Kind of sender → where its deliveries name the repository; elsewhere as GitHub does."""
_HEADERS = {
    "github": ("x-hub-signature-256",),
    "gitea": ("x-gitea-signature", "x-forgejo-signature", "x-hub-signature-256"),
    "bitbucket": ("x-hub-signature",),
    "pagure": ("x-pagure-signature-256",),
    "any": ("x-hub-signature-256", "x-signature-256"),
}
"""Kind of sender → headers with the HMAC-SHA256 of the body, in hexadecimal."""
_TOKENS = {"gitlab": "x-gitlab-token", "any": "x-hook-token"}
"""Kind of sender → the header that may hold the secret itself."""
_EVENTS = (
    "x-github-event",
    "x-gitlab-event",
    "x-gitea-event",
    "x-forgejo-event",
    "x-event-key",
    "x-pagure-topic",
)
_HEX = re.compile(r"[0-9a-f]{64}")


def genuine(kind: str, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str | None:
    """The key by which a copy of this delivery is known; None if the sender does not know the secret.

    Only what the signature covers is part of the key: a header beside it could be changed in a copy.
    """
    if "webhook-signature" in headers and kind in _TOKENS:
        return _standard(secret, headers, body, now)
    wanted = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    for name in _HEADERS.get(kind, ()):
        given = headers.get(name, "").removeprefix("sha256=")
        if _HEX.fullmatch(given) and hmac.compare_digest(given, wanted):
            return f"body {hashlib.sha256(body).hexdigest()}"
    given = headers.get(_TOKENS.get(kind, ""), "")
    if not given or not hmac.compare_digest(given.encode(), secret.encode()):
        return None
    # The sender proved that it knows the secret, so its own number of the delivery counts.
    own = headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid")
    return f"own {own[:200]}" if own else f"body {hashlib.sha256(body).hexdigest()}"


def _standard(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str | None:
    """Standard Webhooks: the signature covers a number and a time."""
    number, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if (
        not (at.isascii() and at.isdigit())
        or len(at) > 12
        or abs(now - int(at)) > CLOCK_SECONDS
        or not number
    ):
        return None
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = secret.encode()
    signed = f"{number}.{at}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = headers["webhook-signature"].split()[:10]
    return f"id {number[:200]}" if any(_same(one, wanted) for one in given) else None


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def event_name(headers: Mapping[str, str]) -> str:
    """What the sender calls the kind of event."""
    return next((headers[name][:100] for name in _EVENTS if name in headers), "")


def repository(kind: str, body: bytes) -> str | None:
    """The path at the forge of the repository that a delivery is about; None if it is about none.

    The path is untrusted text. Raises `ValueError` for what is not JSON.
    """
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    for path in _PLACES.get(kind, ("repository.full_name",)):
        named = look_up(found, path)
        if isinstance(named, str) and named:
            return named[:_PATH_CHARS]
    return None


def look_up(body: object, path: str) -> object:
    """The value at a path such as `project.fullname` or `alerts.0.name`; None if there is none."""
    for name in path.split("."):
        if isinstance(body, dict):
            body = cast("dict[str, object]", body).get(name)
        elif isinstance(body, list) and name.isascii() and name.isdigit() and len(name) < 7:
            entries = cast("list[object]", body)
            body = entries[int(name)] if int(name) < len(entries) else None
        else:
            return None
    return body
