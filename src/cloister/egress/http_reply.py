"""The head of a server's answer: how long its body is, and what of it the client inside is told."""

import re
from typing import Literal

import msgspec

from cloister.egress.http_head import Framing, Headers, values

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256})[ \t]*:[ \t]*([^\r\n\0]*)")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HEADERS = 200
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"transfer-encoding", b"content-length"}
)

Coding = Literal["identity", "gzip", "deflate"]


class BadReply(Exception):
    """The answer cannot be passed on; the message says why in one sentence."""


class Reply(msgspec.Struct, frozen=True):
    """One answer of a server."""

    status: int
    reason: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    """Without those about the connection and the length of the body."""
    body: Framing
    keep: bool
    """Whether the server takes another request on this connection."""
    length: int | None = None
    """What the server said of the length, also where there is no body, as after HEAD."""

    @property
    def coding(self) -> Coding | None:
        """How the body is compressed; None for a way that is not known here."""
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
    """Read a head with its empty line; `method` is that of the request. Raises `BadReply` and nothing else."""
    first, *rest = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _STATUS.fullmatch(first)
    if line is None or len(rest) > _HEADERS:
        raise BadReply("The server's answer is not HTTP/1.")
    headers: list[tuple[bytes, bytes]] = []
    for text in rest:
        found = _HEADER.fullmatch(text)
        if found is None:
            raise BadReply("The server's answer has a malformed header.")
        headers.append((found[1], found[2].strip(b" \t")))
    status = int(line[2])
    body, length = _framing(status, method, headers)
    listed = {v.strip().lower() for value in values(headers, b"connection") for v in value.split(b",")}
    return Reply(
        status,
        line[3] or b"",
        tuple((key, value) for key, value in headers if key.lower() not in _HOP_BY_HOP | listed),
        body,
        keep=body != "close" and b"close" not in listed and (line[1] == b"1" or b"keep-alive" in listed),
        length=length,
    )


def _framing(status: int, method: str, headers: Headers) -> tuple[Framing, int | None]:
    codings = [value.lower() for value in values(headers, b"transfer-encoding")]
    lengths = set(values(headers, b"content-length"))
    if (codings and lengths) or len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise BadReply("The server's answer has more than one length.")
    if codings and codings != [b"chunked"]:
        raise BadReply("The server's answer comes in a transfer encoding other than chunked.")
    length = int(lengths.pop()) if lengths else None
    if method == "HEAD" or status in (204, 304) or status < 200:
        return 0, length
    if codings:
        return "chunked", None
    return ("close", None) if length is None else (length, length)


def reply_head(reply: Reply, headers: Headers, body: Framing, *, keep: bool) -> bytes:
    """The head that the client inside is sent."""
    lines = [b"HTTP/1.1 %d %s" % (reply.status, reply.reason), *(b"%s: %s" % header for header in headers)]
    if body == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
    elif isinstance(body, int) and reply.length is not None and reply.status != 204:
        lines.append(b"Content-Length: %d" % reply.length)
    if reply.status >= 200:
        lines.append(b"Connection: keep-alive" if keep else b"Connection: close")
    return b"\r\n".join([*lines, b"", b""])
