"""The head of a proxy request, read strictly and once: what is in doubt is refused, never repaired."""

import re
from collections.abc import Sequence

import msgspec

_REQUEST = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,8192}) (HTTP/1\.[01])")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_TARGET = re.compile(rb"http://([^/?#]*)([/?].*)?", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,15}")
_HEADERS = 100
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"host"})
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})


class BadHead(Exception):
    """The head is refused; the message says why in one sentence."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Head(msgspec.Struct, frozen=True):
    """One request to the door."""

    host: str
    """In lower case, without a final dot; not yet known to be a name at all."""
    port: int
    tunnel: bool
    """CONNECT, against one plain HTTP request."""
    forward: bytes = b""
    """The head to send on, for a plain request."""
    body_bytes: int = 0
    """What belongs to the plain request after its head."""


Headers = Sequence[tuple[bytes, bytes]]


def parse_head(data: bytes) -> Head:
    """Read everything up to and including the empty line. Raises `BadHead` and nothing else."""
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
        return _tunnel(target, headers)
    return _plain(method, target, version, headers)


def _header(text: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise BadHead("A header is malformed.")
    return found[1], found[2].strip(b" \t")


def _tunnel(target: bytes, headers: Headers) -> Head:
    host, port = _authority(target)
    if port is None:
        raise BadHead("CONNECT needs HOST:PORT.")
    for value in _values(headers, b"host"):
        if _authority(value) not in ((host, port), (host, None)):
            raise BadHead("The Host header names another host than the request.")
    if _values(headers, b"transfer-encoding") or any(v != b"0" for v in _values(headers, b"content-length")):
        raise BadHead("CONNECT has no body.")
    return Head(host, port, tunnel=True)


def _plain(method: bytes, target: bytes, version: bytes, headers: Headers) -> Head:
    url = _TARGET.fullmatch(target)
    if url is None or b"#" in target or b"\\" in target:
        raise BadHead("This is a proxy: ask it for http://HOST/… or to CONNECT HOST:PORT.")
    host, named_port = _authority(url[1])
    port = 80 if named_port is None else named_port
    hosts = _values(headers, b"host")
    if len(hosts) > 1 or (not hosts and version == b"HTTP/1.1"):
        raise BadHead("A request has exactly one Host header.")
    if any(_with_port(_authority(value)) != (host, port) for value in hosts):
        raise BadHead("The Host header names another host than the request.")
    path = url[2] or b"/"
    path = path if path.startswith(b"/") else b"/" + path
    kept = _forwarded(headers)
    name = host.encode("ascii") + (b"" if named_port is None else b":%d" % port)
    lines = [b"%s %s %s" % (method, path, version), b"Host: " + name]
    lines += [b"%s: %s" % header for header in kept]
    lines += [b"Connection: close", b"", b""]
    return Head(host, port, tunnel=False, forward=b"\r\n".join(lines), body_bytes=_length(headers))


def _authority(text: bytes) -> tuple[str, int | None]:
    """Host and port. User names, escapes and anything else that is not a host and a port are refused."""
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


def _with_port(authority: tuple[str, int | None]) -> tuple[str, int]:
    host, port = authority
    return host, 80 if port is None else port


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def _length(headers: Headers) -> int:
    if _values(headers, b"transfer-encoding"):
        raise BadHead("Send the body with a Content-Length, not in chunks.", 411)
    lengths = _values(headers, b"content-length")
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise BadHead("The Content-Length is not one number.")
    return int(lengths[0]) if lengths else 0


def _forwarded(headers: Headers) -> Headers:
    """The headers that are meant for the server and not for a proxy."""
    listed = {name.strip().lower() for value in _values(headers, b"connection") for name in value.split(b",")}
    if listed & _FRAMING:
        raise BadHead("The Connection header lists a header that must not be dropped.")
    dropped = _HOP_BY_HOP | listed
    return [
        (key, value)
        for key, value in headers
        if key.lower() not in dropped and not key.lower().startswith(b"proxy-")
    ]
