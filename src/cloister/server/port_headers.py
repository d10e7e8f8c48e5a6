"""Addresses of servers in sandboxes, and the headers that pass to and from them. Pure.

The server inside is hostile: it must not see a token, and its answers must not act on the origin of the API.
"""

import re
from collections.abc import Iterable

import msgspec

Headers = list[tuple[bytes, bytes]]

_HOST = re.compile(rb"^([0-9]{1,5})-(s-[0-9a-z]{4,32})(?:-([0-9a-f]{32}))?\.localhost(:[0-9]{1,5})?$")
_PATH = re.compile(r"^/v1/sandboxes/([^/]{1,64})/ports/([0-9]{1,5})(/|$)")
_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_NOT_IN = _HOP | {b"authorization", b"e2b-traffic-access-token", b"expect", b"host", b"content-length"}
_NOT_OUT = _HOP | {
    # These speak to the browser about the whole origin, or the whole machine.
    b"alt-svc",
    b"clear-site-data",
    b"nel",
    b"public-key-pins",
    b"report-to",
    b"reporting-endpoints",
    b"service-worker-allowed",
    b"strict-transport-security",
    b"www-authenticate",
}
_SANDBOXED = (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals")
"""A page below our address gets an opaque origin, so that it cannot act as the API's."""

_NO_REFERRER = (b"referrer-policy", b"no-referrer")


class Address(msgspec.Struct, frozen=True):
    """A port of a sandbox, as a request names it."""

    sandbox: str
    port: int
    target: bytes
    """Path and query for the server inside."""
    prefix: bytes
    """The prefix of its paths here; empty when it has a host name of its own."""
    host: bytes
    """The `Host` that the server inside sees."""


def has_own_name(host: bytes) -> bool:
    """Whether a `Host` names a port inside, and so never the API."""
    return _HOST.match(host) is not None


def secret_in(host: bytes) -> tuple[str, int, str] | None:
    """Sandbox, port and secret of an address that needs no token."""
    named = _HOST.match(host)
    if named is None or named[3] is None:
        return None
    return named[2].decode(), int(named[1]), named[3].decode()


def address(host: bytes, path: str, raw_path: bytes, query: bytes) -> Address | None:
    """The port that a request is for; None when it is for the API."""
    tail = b"?" + query if query else b""
    if named := _HOST.match(host):
        return Address(named[2].decode(), int(named[1]), (raw_path or b"/") + tail, b"", host)
    if found := _PATH.match(path):
        prefix = f"/v1/sandboxes/{found[1]}/ports/{found[2]}".encode()
        if not raw_path.startswith(prefix):
            return None  # escapes are never needed in an id or a number
        target = raw_path[len(prefix) :] or b"/"
        port = int(found[2])
        return Address(found[1], port, target + tail, prefix, b"localhost:%d" % port)
    return None


def to_inside(headers: Iterable[tuple[bytes, bytes]], where: Address) -> Headers:
    """The headers of a request that the server inside may see, without framing."""
    given = [(name.lower(), value) for name, value in headers]
    unwanted = _NOT_IN | _listed(given)
    if where.prefix:
        # Cookies and addresses of the API are none of its business.
        unwanted |= {b"cookie", b"referer", b"origin"}
    kept = [(name, value) for name, value in given if name not in unwanted]
    if where.prefix and any(name == b"origin" for name, _ in given):
        kept.append((b"origin", b"http://" + where.host))
    return [(b"host", where.host), *kept]


def to_client(headers: Iterable[tuple[bytes, bytes]], where: Address) -> Headers:
    """The headers of an answer that a client may see."""
    given = [(name.lower(), value) for name, value in headers]
    unwanted = _NOT_OUT | _listed(given)
    if where.prefix:
        unwanted |= {b"set-cookie", b"set-cookie2", b"content-security-policy"}
    kept: Headers = []
    for name, value in given:
        if name in unwanted:
            continue
        if name == b"set-cookie":
            value = _host_only(value)
        elif name in (b"location", b"content-location") and where.prefix:
            value = _moved(value, where)
        kept.append((name, value))
    if secret_in(where.host):  # what it links to must not see the secret
        kept = [*(pair for pair in kept if pair[0] != _NO_REFERRER[0]), _NO_REFERRER]
    return [*kept, _SANDBOXED] if where.prefix else kept


def _listed(headers: Headers) -> set[bytes]:
    """The names that `Connection` declares to be for this hop only."""
    return {
        word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")
    }


def _host_only(cookie: bytes) -> bytes:
    """A cookie without a domain is for its own host name alone, which is not that of the API."""
    parts = [part for part in cookie.split(b";") if not part.strip().lower().startswith(b"domain")]
    return b";".join(parts)


def _moved(location: bytes, where: Address) -> bytes:
    own = b"http://" + where.host
    if location == own or location.startswith(own + b"/"):
        location = location[len(own) :] or b"/"
    return where.prefix + location if location.startswith(b"/") and location[1:2] != b"/" else location
