import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.server.port_headers import Address, address, has_own_name, to_client, to_inside

BY_PATH = Address("s-abcd", 80, b"/x", b"/v1/sandboxes/s-abcd/ports/80", b"localhost:80")
BY_NAME = Address("s-abcd", 80, b"/x", b"", b"80-s-abcd.localhost:7717")


@pytest.mark.parametrize(
    ("host", "path", "query", "found"),
    [
        (b"127.0.0.1", "/v1/sandboxes/s-abcd/ports/80/a/b", b"q=1", ("s-abcd", 80, b"/a/b?q=1")),
        (b"127.0.0.1", "/v1/sandboxes/s-abcd/ports/80", b"", ("s-abcd", 80, b"/")),
        (b"80-s-abcd.localhost:7717", "/v1/runs", b"", ("s-abcd", 80, b"/v1/runs")),
        (b"80-s-abcd.localhost", "/", b"x", ("s-abcd", 80, b"/?x")),
        (b"127.0.0.1", "/v1/sandboxes/s-abcd/ports/x/", b"", None),
        (b"127.0.0.1", "/v1/sandboxes/s-abcd/portsx/80", b"", None),
        (b"127.0.0.1", "/v1/sandboxes/s-abcd/files", b"", None),
        (b"80-r-abcd.localhost", "/", b"", None),
        (b"80-s-abcd.localhost.evil.example", "/", b"", None),
    ],
)
def test_an_address_names_a_port_or_the_api(
    host: bytes, path: str, query: bytes, found: tuple[str, int, bytes] | None
) -> None:
    where = address(host, path, path.encode(), query)
    assert (where and (where.sandbox, where.port, where.target)) == found


def test_an_address_with_escapes_names_no_port() -> None:
    assert address(b"localhost", "/v1/sandboxes/s-a/ports/80/", b"/v1/sandboxes/s%2da/ports/80/", b"") is None


def test_the_token_and_hop_by_hop_headers_do_not_go_in() -> None:
    given = [
        (b"Host", b"127.0.0.1:7717"),
        (b"Authorization", b"Bearer secret"),
        (b"Connection", b"keep-alive, X-Mine"),
        (b"X-Mine", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Proxy-Authorization", b"secret"),
        (b"Cookie", b"theirs=1"),
        (b"Origin", b"http://127.0.0.1:7717"),
        (b"Referer", b"http://127.0.0.1:7717/"),
        (b"Accept", b"*/*"),
    ]
    assert to_inside(given, BY_PATH) == [
        (b"host", b"localhost:80"),
        (b"accept", b"*/*"),
        (b"origin", b"http://localhost:80"),
    ]
    named = dict(to_inside(given, BY_NAME))
    assert (named[b"host"], named[b"cookie"]) == (b"80-s-abcd.localhost:7717", b"theirs=1")
    assert b"authorization" not in named


def test_headers_that_act_on_the_origin_do_not_come_out() -> None:
    given = [
        (b"Content-Type", b"text/html"),
        (b"Set-Cookie", b"a=1; Path=/; Domain=localhost; HttpOnly"),
        (b"Strict-Transport-Security", b"max-age=1"),
        (b"Clear-Site-Data", b"*"),
        (b"Alt-Svc", b"h3"),
        (b"Service-Worker-Allowed", b"/"),
        (b"Content-Security-Policy", b"default-src *"),
        (b"Keep-Alive", b"1"),
        (b"Location", b"/login"),
    ]
    assert to_client(given, BY_PATH) == [
        (b"content-type", b"text/html"),
        (b"location", b"/v1/sandboxes/s-abcd/ports/80/login"),
        (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals"),
    ]
    assert to_client(given, BY_NAME) == [
        (b"content-type", b"text/html"),
        (b"set-cookie", b"a=1; Path=/; HttpOnly"),
        (b"content-security-policy", b"default-src *"),
        (b"location", b"/login"),
    ]


@pytest.mark.parametrize(
    ("location", "moved"),
    [
        (b"http://localhost:80/x", b"/v1/sandboxes/s-abcd/ports/80/x"),
        (b"http://localhost:80", b"/v1/sandboxes/s-abcd/ports/80/"),
        (b"http://localhost:8000/x", b"http://localhost:8000/x"),
        (b"//elsewhere/x", b"//elsewhere/x"),
        (b"relative", b"relative"),
    ],
)
def test_redirects_stay_below_the_address_of_the_port(location: bytes, moved: bytes) -> None:
    assert dict(to_client([(b"location", location)], BY_PATH))[b"location"] == moved


@given(st.binary(max_size=60))
def test_only_a_port_and_an_id_make_a_port_name(host: bytes) -> None:
    assert has_own_name(host) == (address(host, "/", b"/", b"") is not None)
