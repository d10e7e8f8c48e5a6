"""Heads of requests and replies, parsed strictly and once: ambiguous input is refused, never repaired."""

import re
from collections.abc import Sequence
from typing import Literal
from urllib.parse import unquote_to_bytes

import msgspec

_REQUEST = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,8192}) (HTTP/1\.[01])")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}):([\t\x20-\x7e\x80-\xff]*)")
_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_TARGET = re.compile(rb"http://([^/?#]*)([/?].*)?", re.IGNORECASE)
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,14}")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

HTTP_PORT = 80
NOT_A_SERVER = "This is a proxy: request http://HOST/… or CONNECT HOST:PORT."
HERE = ""
"""The host of a request to the proxy itself: in origin form, with a Host header that names the sandbox's own loopback."""

_HEADERS = 100
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"host", b"expect", b"http2-settings"}
)
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"})
"""Methods whose body many servers do not read: they would take it for the next request."""
_OVERRIDES = re.compile(
    rb"(?i)x[-_](http[-_])?method([-_]override)?|x[-_](original|rewrite|override|forwarded)[-_](ur[il]|path|prefix|method)"
    rb"|x[-_](forwarded[-_]|original[-_]|http[-_])?(host|server)([-_]override)?|forwarded"
)
"""Headers by which some servers take another method, path or host than those of the request."""

Headers = Sequence[tuple[bytes, bytes]]
Framing = int | Literal["chunked", "close"]
"""The framing of a body: a length, chunked, or until the connection closes."""


class BadHead(Exception):
    """The head is refused. The message says why in one sentence."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Head(msgspec.Struct, frozen=True):
    """One request to the proxy."""

    host: str
    """Lower case, without a trailing dot, not validated yet."""
    port: int
    tunnel: bool
    """True for CONNECT."""
    method: str = ""
    target: bytes = b""
    """Path and query as written, for an HTTP request."""
    path: str = ""
    """The path for display: decoded, without the query."""
    named: bytes = b""
    """The value of the forwarded Host header."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """End-to-end headers, without Host."""
    body: Framing = 0
    keep: bool = False
    """True if the client may send another request afterwards."""
    waits: bool = False
    """True if the client waits for 100 Continue before it sends the body."""
    old: bool = False
    """HTTP/1.0, which has no chunked encoding."""

    @property
    def forward(self) -> bytes:
        """The head to forward."""
        return b"" if self.tunnel else self.forward_with(self.headers)

    def forward_with(self, headers: Headers) -> bytes:
        """The head to forward, with these headers instead.

        SAFETY: a server that does not read a body would take it for the next request, unless it closes.
        """
        first = b"%s %s HTTP/1.1" % (self.method.encode("ascii"), self.target)
        lines = [first, b"Host: " + self.named, *(b"%s: %s" % header for header in headers)]
        return b"\r\n".join([*lines, *([b"Connection: close"] if self.body else []), b"", b""])


def parse_head(data: bytes, origin: tuple[str, int] | None = None, *, plain: bool = False) -> Head:
    """Parse a head up to and including the empty line. Raises `BadHead` and nothing else.

    Inside terminated TLS, and with `plain` in a tunnel without it, `origin` is the host and port of the connection;
    elsewhere the request names them.
    """
    if not data.endswith(b"\r\n\r\n"):
        raise BadHead("The request head does not end with an empty line.")
    first, *rest = data[:-4].split(b"\r\n")
    line = _REQUEST.fullmatch(first)
    if line is None:
        raise BadHead("The request line is malformed.")
    if len(rest) > _HEADERS:
        raise BadHead(f"A request has at most {_HEADERS} headers.", 431)
    headers = [_header(text) for text in rest]
    method, target, version = line[1], line[2], line[3]
    if method == b"CONNECT":
        if origin is not None:
            raise BadHead("CONNECT inside a tunnel is not supported.")
        return _tunnel(target, headers)
    if origin is not None:
        host, port, path = *origin, _own_path(target)
        default = HTTP_PORT if plain else 443
    elif target.startswith(b"/"):
        host, port, path = *_loopback(headers), _own_path(target)
        default = HTTP_PORT
    else:
        host, port, path = _absolute(target)
        default = HTTP_PORT
    _check_host(headers, (host, port), default, must=version == b"HTTP/1.1")
    if origin is None and target.startswith(b"/"):
        host = HERE
    name = host.encode("ascii") + (b"" if port == default else b":%d" % port)
    old = version == b"HTTP/1.0"
    body = _framing(headers, old=old)
    if body and method in _BODILESS:
        raise BadHead(f"A {method.decode()} request has no body here: servers disagree about its meaning.")
    return Head(
        host,
        port,
        tunnel=False,
        method=method.decode("ascii"),
        target=path,
        path=shown_path(path),
        named=name,
        headers=tuple(_forwarded(headers)),
        body=body,
        keep=_keeps(headers, old=old),
        waits=b"100-continue" in [value.lower() for value in values(headers, b"expect")] and not old,
        old=old,
    )


def shown_path(target: bytes) -> str:
    """The path of a request for display: decoded, without the query."""
    return unquote_to_bytes(target.partition(b"?")[0]).decode("utf-8", errors="replace")


def values(headers: Headers, name: bytes) -> list[bytes]:
    """All values of a header by its lower-case name."""
    return [value for key, value in headers if key.lower() == name]


def _header(text: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise BadHead("A header is malformed.")
    if found[1].lower().replace(b"_", b"-") in _FRAMING and b"_" in found[1]:
        raise BadHead("A header has a name that some servers read as another.")
    return found[1], found[2].strip(b" \t")


def without_overrides(headers: Headers) -> Headers:
    """The headers without those by which a server takes another method, path or host."""
    return tuple(header for header in headers if not _OVERRIDES.fullmatch(header[0]))


def _tunnel(target: bytes, headers: Headers) -> Head:
    host, port = _authority(target)
    if port is None:
        raise BadHead("CONNECT needs HOST:PORT.")
    for value in values(headers, b"host"):
        if _authority(value) not in ((host, port), (host, None)):
            raise BadHead("The Host header names another host than the request.")
    if values(headers, b"transfer-encoding") or any(v != b"0" for v in values(headers, b"content-length")):
        raise BadHead("A CONNECT request has no body.")
    return Head(host, port, tunnel=True)


def _absolute(target: bytes) -> tuple[str, int, bytes]:
    url = _TARGET.fullmatch(target)
    if url is None or b"#" in target or b"\\" in target:
        raise BadHead(NOT_A_SERVER)
    host, port = _authority(url[1])
    path = url[2] or b"/"
    return host, HTTP_PORT if port is None else port, path if path.startswith(b"/") else b"/" + path


def _loopback(headers: Headers) -> tuple[str, int]:
    """The authority in the Host header. Raises `BadHead` unless it is the loopback."""
    host, port = next((_authority(value) for value in values(headers, b"host")), ("", None))
    if host not in _LOOPBACK:
        raise BadHead(NOT_A_SERVER)
    return host, HTTP_PORT if port is None else port


def _own_path(target: bytes) -> bytes:
    if not target.startswith(b"/") or b"#" in target or b"\\" in target:
        raise BadHead("The request target must begin with a slash.")
    return target


def _check_host(headers: Headers, authority: tuple[str, int], default: int, *, must: bool) -> None:
    hosts = values(headers, b"host")
    if len(hosts) > 1 or (not hosts and must):
        raise BadHead("A request has exactly one Host header.")
    for value in hosts:
        host, port = _authority(value)
        if (host, default if port is None else port) != authority:
            raise BadHead("The Host header names another host than the request.")


def _authority(text: bytes) -> tuple[str, int | None]:
    """Host and port. User names, escapes and everything else are refused."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise BadHead("The request does not name a host in plain ASCII, with or without a port.")
    port = None if found[2] is None else int(found[2])
    if port is not None and not 1 <= port <= 65_535:
        raise BadHead("A port is a number from 1 to 65535.")
    host = found[1].decode("ascii").lower().removesuffix(".")
    if not host:
        raise BadHead("The request names no host.")
    return host, port


def _framing(headers: Headers, *, old: bool) -> Framing:
    codings = values(headers, b"transfer-encoding")
    lengths = values(headers, b"content-length")
    if codings and lengths:
        raise BadHead("A body has a Content-Length or is chunked, not both.")
    if codings:
        if old or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise BadHead("The only supported transfer encoding is chunked, in HTTP/1.1.")
        return "chunked"
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise BadHead("The Content-Length is not one number.")
    return int(lengths[0]) if lengths else 0


def _listed(headers: Headers) -> set[bytes]:
    return {name.strip().lower() for value in values(headers, b"connection") for name in value.split(b",")}


def _keeps(headers: Headers, *, old: bool) -> bool:
    wishes = _listed(headers) | {value.lower() for value in values(headers, b"proxy-connection")}
    return b"close" not in wishes and (not old or b"keep-alive" in wishes)


def _forwarded(headers: Headers) -> Headers:
    """The end-to-end headers."""
    listed = _listed(headers)
    if listed & _FRAMING:
        raise BadHead("The Connection header lists a header that must not be dropped.")
    dropped = _HOP_BY_HOP | listed
    return [
        (key, b"chunked" if key.lower() == b"transfer-encoding" else value)
        for key, value in headers
        if key.lower() not in dropped and not key.lower().startswith(b"proxy-")
    ]


# Replies: framing of the body, and the headers that the client inside receives.


_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_REPLY_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256})[ \t]*:([^\r\n\0]*)")
_REPLY_LENGTH = re.compile(rb"[0-9]{1,18}")
_REPLY_HEADERS = 200
_REPLY_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"transfer-encoding", b"content-length"}
)

Coding = Literal["identity", "gzip", "deflate"]


class BadReply(Exception):
    """The reply cannot be passed on. The message says why in one sentence."""


class Reply(msgspec.Struct, frozen=True):
    """One reply of a server."""

    status: int
    reason: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    """Without connection and length headers."""
    body: Framing
    keep: bool
    """True if the server accepts another request on this connection."""
    length: int | None = None
    """The stated length, also where there is no body, as after HEAD."""

    @property
    def coding(self) -> Coding | None:
        """The compression of the body; None if unknown."""
        found = b",".join(values(self.headers, b"content-encoding")).strip().lower()
        match found:
            case b"" | b"identity":
                return "identity"
            case b"gzip" | b"x-gzip":
                return "gzip"
            case b"deflate":
                return "deflate"
            case _:
                return None


def parse_reply(data: bytes, method: str) -> Reply:
    """Parse a head with its empty line; `method` is the request's. Raises `BadReply` and nothing else."""
    first, *rest = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _STATUS.fullmatch(first)
    if line is None or len(rest) > _REPLY_HEADERS:
        raise BadReply("The server's reply is not HTTP/1.")
    headers: list[tuple[bytes, bytes]] = []
    for text in rest:
        found = _REPLY_HEADER.fullmatch(text)
        if found is None:
            raise BadReply("The server's reply has a malformed header.")
        headers.append((found[1], found[2].strip(b" \t")))
    status = int(line[2])
    body, length = _reply_framing(status, method, headers)
    listed = {v.strip().lower() for value in values(headers, b"connection") for v in value.split(b",")}
    return Reply(
        status,
        line[3] or b"",
        tuple((key, value) for key, value in headers if key.lower() not in _REPLY_HOP_BY_HOP | listed),
        body,
        # SAFETY: a server that sends a body where there is none would answer the next request with it.
        keep=body != "close"
        and b"close" not in listed
        and (line[1] == b"1" or b"keep-alive" in listed)
        and method != "HEAD"
        and (body != 0 or not (length or values(headers, b"transfer-encoding"))),
        length=length,
    )


def _reply_framing(status: int, method: str, headers: Headers) -> tuple[Framing, int | None]:
    codings = [value.lower() for value in values(headers, b"transfer-encoding")]
    lengths = set(values(headers, b"content-length"))
    if (codings and lengths) or len(lengths) > 1 or not all(map(_REPLY_LENGTH.fullmatch, lengths)):
        raise BadReply("The server's reply has more than one length.")
    if codings and codings != [b"chunked"]:
        raise BadReply("The server's reply has a transfer encoding other than chunked.")
    length = int(lengths.pop()) if lengths else None
    if status < 200 and (codings or length):
        raise BadReply("The server's interim reply has a body.")
    if method == "HEAD" or status in (204, 304) or status < 200:
        return 0, length
    if codings:
        return "chunked", None
    return ("close", None) if length is None else (length, length)


def reply_head(reply: Reply, headers: Headers, body: Framing, *, keep: bool) -> bytes:
    """The head for the client inside."""
    lines = [b"HTTP/1.1 %d %s" % (reply.status, reply.reason), *(b"%s: %s" % header for header in headers)]
    if body == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
    elif isinstance(body, int) and reply.length is not None and reply.status != 204:
        lines.append(b"Content-Length: %d" % reply.length)
    if reply.status >= 200:
        lines.append(b"Connection: keep-alive" if keep else b"Connection: close")
    return b"\r\n".join([*lines, b"", b""])
