"""Request heads, strictly."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.http.head import BadHead, BadReply, Head, parse_head, parse_reply


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_connect_names_a_host_and_a_port() -> None:
    data = head(
        "CONNECT Example.COM.:443 HTTP/1.1", "Host: example.com:443", "Proxy-Authorization: Basic eA=="
    )

    assert parse_head(data) == Head("example.com", 443, tunnel=True)
    assert parse_head(head("CONNECT [::1]:8080 HTTP/1.0")) == Head("[::1]", 8080, tunnel=True)


def test_a_plain_request_is_rewritten_for_the_server() -> None:
    data = head(
        "POST HTTP://Example.com:8080/a?b=c HTTP/1.1",
        "Host: EXAMPLE.com:8080",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: Basic c2VjcmV0",
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "Keep-Alive: 5",
        "Upgrade: h2c",
        "TE: trailers",
        "Content-Length: 5",
        "X-Kept:  caf\xe9 ",
    )

    found = parse_head(data)
    assert (found.host, found.port, found.tunnel) == ("example.com", 8080, False)
    assert (found.method, found.path, found.body, found.keep) == ("POST", "/a", 5, True)
    assert found.forward == head(
        "POST /a?b=c HTTP/1.1",
        "Host: example.com:8080",
        "Content-Length: 5",
        "X-Kept: caf\xe9",
        "Connection: close",
    )


@pytest.mark.parametrize(
    ("target", "path"), [("http://a.b", "/"), ("http://a.b?x", "/?x"), ("http://a.b/%2e%2e/", "/%2e%2e/")]
)
def test_the_path_goes_on_as_it_was_written(target: str, path: str) -> None:
    assert parse_head(head(f"GET {target} HTTP/1.1", "Host: a.b")).forward.startswith(
        f"GET {path} HTTP/1.1\r\nHost: a.b\r\n".encode()
    )


OK = "Host: allowed.com"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"GET http://allowed.com/ HTTP/1.1\nHost: allowed.com\n\n",
        head("GET / HTTP/1.1", OK),
        head("OPTIONS * HTTP/1.1", OK),
        head("GET https://allowed.com/ HTTP/1.1", OK),
        head("GET ftp://allowed.com/ HTTP/1.1", OK),
        head("GET http://allowed.com/ HTTP/2.0", OK),
        head("GET http://allowed.com/", OK),
        head("get http://allowed.com/ HTTP/1.1", OK),
        head("GET  http://allowed.com/ HTTP/1.1", OK),
        head("GET http://allowed.com/ x HTTP/1.1", OK),
        head("GET http://allowed.com/\t HTTP/1.1", OK),
        head("GET http:///path HTTP/1.1", "Host: "),
        head("GET http://allowed.com@evil.com/ HTTP/1.1", "Host: evil.com"),
        head("GET http://user:pw@allowed.com/ HTTP/1.1", OK),
        head("GET http://evil.com#@allowed.com/ HTTP/1.1", OK),
        head("GET http://allowed.com/#x HTTP/1.1", OK),
        head("GET http://evil.com\\@allowed.com/ HTTP/1.1", OK),
        head("GET http://allowed.com%00.evil.com/ HTTP/1.1", OK),
        head("GET http://allowed.com:0/ HTTP/1.1", "Host: allowed.com:0"),
        head("GET http://allowed.com:65536/ HTTP/1.1", "Host: allowed.com:65536"),
        head("GET http://allowed.com:80evil/ HTTP/1.1", OK),
        head("GET http://allowed.com:/ HTTP/1.1", OK),
        head("GET http://allowed.com/ HTTP/1.1"),
        head("GET http://allowed.com/ HTTP/1.1", OK, OK),
        head("GET http://allowed.com/ HTTP/1.1", "Host: evil.com"),
        head("GET http://allowed.com/ HTTP/1.1", "Host: allowed.com:8080"),
        head("GET http://allowed.com/ HTTP/1.1", "Host: evil.com, allowed.com"),
        head("GET http://allowed.com/ HTTP/1.1", "Host : allowed.com"),
        head("GET http://allowed.com/ HTTP/1.1", OK, " folded: yes"),
        head("GET http://allowed.com/ HTTP/1.1", OK, "X-Bare: a\rb"),
        head("GET http://allowed.com/ HTTP/1.1", OK, "X-Bare: a\nInjected: b"),
        head("GET http://allowed.com/ HTTP/1.1", OK, "X-Nul: \0"),
        head("GET http://allowed.com/ HTTP/1.1", OK, "nocolon"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: 5", "Content-Length: 5"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: 5, 5"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: +5"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: -1"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: 0x5"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: " + "9" * 40),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: 5", "Transfer-Encoding: chunked"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Transfer-Encoding : chunked"),
        head("POST http://allowed.com/ HTTP/1.1", OK, "Content-Length: 5", "Connection: content-length"),
        head("GET http://allowed.com/ HTTP/1.1", OK, *["X: y"] * 101),
        head("CONNECT allowed.com HTTP/1.1"),
        head("CONNECT allowed.com:443evil HTTP/1.1"),
        head("CONNECT http://allowed.com:443 HTTP/1.1"),
        head("CONNECT a@allowed.com:443 HTTP/1.1"),
        head("CONNECT allowed.com:443 HTTP/1.1", "Host: evil.com:443"),
        head("CONNECT allowed.com:443 HTTP/1.1", "Host: allowed.com:22"),
        head("CONNECT allowed.com:443 HTTP/1.1", "Content-Length: 5"),
        head("CONNECT allowed.com:443 HTTP/1.1", "Transfer-Encoding: chunked"),
        head("CONNECT .:443 HTTP/1.1"),
        head("CONNECT [::1%25eth0]:443 HTTP/1.1"),
        head("CONNECT \xe2\x91\xa0:443 HTTP/1.1"),
    ],
)
def test_what_is_in_doubt_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead) as caught:
        parse_head(data)

    assert caught.value.status in (400, 411, 431)
    assert caught.value.message.endswith((".", "…"))


def test_a_body_may_come_in_chunks_and_in_no_other_encoding() -> None:
    post = ("POST http://a.b/ HTTP/1.1", "Host: a.b")
    chunked = parse_head(head(*post, "Transfer-Encoding: Chunked"))
    assert chunked.body == "chunked" and b"Transfer-Encoding: chunked\r\n" in chunked.forward
    for coding in ("gzip, chunked", "identity", "chunked, chunked", "xchunked", ""):
        with pytest.raises(BadHead):
            parse_head(head(*post, f"Transfer-Encoding: {coding}"))
    with pytest.raises(BadHead):
        parse_head(head(*post, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"))


def test_within_tls_a_request_names_the_host_that_the_connection_is_for() -> None:
    own = ("a.b", 443)
    assert parse_head(head("GET /x?y HTTP/1.1", "Host: A.b"), own).forward == head(
        "GET /x?y HTTP/1.1", "Host: a.b"
    )
    for line, host in (
        ("GET /x HTTP/1.1", "Host: c.d"),
        ("GET /x HTTP/1.1", "Host: a.b:80"),
        ("GET http://a.b/x HTTP/1.1", "Host: a.b"),
        ("GET x HTTP/1.1", "Host: a.b"),
        ("CONNECT a.b:443 HTTP/1.1", "Host: a.b"),
    ):
        with pytest.raises(BadHead):
            parse_head(head(line, host), own)


PIECES = st.sampled_from(
    [
        b"GET ",
        b"CONNECT ",
        b"http://",
        b"a.b",
        b":80",
        b"/",
        b" HTTP/1.1",
        b"\r\n",
        b"Host: a.b",
        b"Content-Length: 1",
        b"Connection: ",
        b"@",
        b"[::1]",
        b"%",
    ]
)
HEADS = st.lists(PIECES | st.binary(max_size=3), max_size=20).map(b"".join)


@given(HEADS | HEADS.map(lambda data: b"GET http://a.b/ HTTP/1.1\r\nHost: a.b\r\n" + data))
def test_any_bytes_are_a_head_or_a_clear_refusal(data: bytes) -> None:
    try:
        found = parse_head(data + b"\r\n\r\n")
    except BadHead:
        return
    assert 1 <= found.port <= 65_535
    assert found.tunnel == (not found.forward)
    if not found.tunnel:
        # What goes on is itself one head, with one host, that the same reader understands.
        first, *rest = found.forward[:-4].split(b"\r\n")
        method, path, version = first.split(b" ")
        again = b"\r\n".join([b"%s http://%s%s %s" % (method, found.host.encode(), path, version), *rest])
        host_headers = [line for line in rest if line.lower().startswith(b"host:")]
        assert len(host_headers) == 1
        if found.port == 80:
            assert parse_head(again + b"\r\n\r\n").forward == found.forward or b":80" in host_headers[0]


def test_the_same_host_and_port_may_be_written_with_or_without_the_default_port() -> None:
    assert parse_head(head("GET http://a.b/ HTTP/1.1", "Host: a.b:80")).port == 80
    assert parse_head(head("GET http://a.b:80/ HTTP/1.1", "Host: a.b")).port == 80


def request_head(text: bytes) -> None:
    with pytest.raises(BadHead):
        parse_head(b"GET http://a.b/ HTTP/1.1\r\nHost: a.b\r\n" + text + b"\r\n\r\n")


def reply_headers(text: bytes) -> None:
    with pytest.raises(BadReply):
        parse_reply(b"HTTP/1.1 200 OK\r\n" + text + b"\r\n\r\n", "GET")


@pytest.mark.parametrize("parse", [request_head, reply_headers])
@pytest.mark.parametrize(
    ("begin", "fill", "end"),
    [
        (b"X:", b" ", b"\0"),
        (b"X:", b"\t", b"\0"),
        (b"X: a", b" \t", b"\0"),
        (b"X", b" ", b"\0"),
        (b"", b"x", b":\0"),
        (b"Content-Length: ", b"0", b"\0"),
        (b"Content-Length: ", b"0", b""),
        (b"Connection: ", b",", b"\0"),
        (b"Transfer-Encoding: ", b"chunked,", b""),
    ],
)
def test_a_malformed_head_takes_time_in_proportion_to_its_length(
    parse: Callable[[bytes], None], begin: bytes, fill: bytes, end: bytes
) -> None:
    """Measured in processor time: four times the text takes sixteen times as long in a quadratic parser."""

    def spent(count: int) -> float:
        times: list[float] = []
        for _ in range(5):
            began = time.process_time()
            parse(begin + fill * count + end)
            times.append(time.process_time() - began)
        return min(times)

    assert spent(64_000) < 8 * spent(16_000) + 0.01
