"""Ambiguous requests against real servers: a server answers exactly the requests that the proxy judged and recorded."""

import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from tests.egress.world import World, going, read_all

pytestmark = pytest.mark.anyio

HOST = "example.com"
ALLOWED = ("GET", "HEAD", "POST", "PUT", "PATCH", "OPTIONS", "PROPFIND")
IGNORES_BODIES = """
import http.server, signal, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        log.write(f"{self.command} {self.path}\\n")
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"ok")
    def log_message(self, *words): pass
    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_OPTIONS = do_DELETE = do_TRACE = do_PROPFIND = answer
log = open(sys.argv[2], "w", buffering=1)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.daemon_threads = False
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
server.server_close()
"""
NGINX = """
daemon off; master_process off; pid {place}/pid; error_log {place}/errors;
events {{}}
http {{
  log_format short "$request_method $uri"; access_log {place}/log short;
  client_body_temp_path {place}/bodies; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;
  uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}
}}
"""
LIGHTTPD = """
server.document-root = "{place}"
server.bind = "127.0.0.1"
server.port = {port}
server.modules = ("mod_accesslog")
accesslog.filename = "{place}/log"
accesslog.format = "%m %U"
"""


def http_server(place: Path, port: int) -> list[str]:
    return [sys.executable, "-c", IGNORES_BODIES, str(port), str(place / "log")]


def nginx(place: Path, port: int) -> list[str]:
    (place / "conf").write_text(NGINX.format(place=place, port=port))
    return ["nginx", "-c", str(place / "conf"), "-e", str(place / "errors")]


def lighttpd(place: Path, port: int) -> list[str]:
    (place / "conf").write_text(LIGHTTPD.format(place=place, port=port))
    return ["lighttpd", "-D", "-f", str(place / "conf")]


Start = Callable[[Path, int], list[str]]
GRACEFULLY = {"http_server": signal.SIGTERM, "nginx": signal.SIGQUIT, "lighttpd": signal.SIGINT}


@asynccontextmanager
async def running(start: Start, place: Path) -> AsyncGenerator[int]:
    """A real server on a port of its own. It ends gracefully, with its log complete."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = subprocess.Popen(start(place, port))  # noqa: ASYNC220 - once
    try:
        with anyio.fail_after(20):
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    assert process.poll() is None, "the server did not start"
                    await anyio.sleep(0.05)
        yield port
    finally:
        process.send_signal(GRACEFULLY[start.__name__])
        try:
            process.wait(20)
        finally:
            process.kill()


def request(
    number: int, *headers: str, method: str = "POST", body: bytes = b"", first: str | None = None
) -> bytes:
    line = first or f"{method} http://{HOST}/c{number} HTTP/1.1"
    return "\r\n".join((line, f"Host: {HOST}", *headers, "", "")).encode("latin-1") + body


def corpus() -> Iterator[bytes]:
    """What one client sends on one connection. Each hides a request that no rule allows, and one that a rule does."""
    for number, hidden in enumerate((b"DELETE", b"GET")):
        inner = b"%s /hidden%d HTTP/1.1\r\nHost: example.com\r\n\r\n" % (hidden, number)
        size, chunks = len(inner), b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
        length = f"Content-Length: {size}"
        for method in (*ALLOWED, "DELETE", "TRACE"):
            yield request(1, length, method=method, body=inner)
            yield request(2, "Transfer-Encoding: chunked", method=method, body=chunks)
            yield request(3, "Content-Length: 0", method=method, body=inner)
            yield request(4, length, "Expect: 100-continue", method=method, body=inner)
            yield request(5, length, "Connection: keep-alive", method=method, body=inner)
        for text in (
            f"+{size}", f"-{size}", f"0x{size:x}", f"0{size}", f"{size}, {size}", f"{size},0", f"{size} 0",
            f"{size}\x0b", f"{size};x", "", " ", "0, 0", f"{size}.0", "1e2", "9" * 30,
        ):  # fmt: skip
            yield request(6, f"Content-Length: {text}", body=inner)
        for text in (
            "chunked, identity", "identity", "identity, chunked", "Chunked", "cHUNKED", "xchunked", "chunked;q=1", '"chunked"',
            "\x0bchunked", "chunked\x00", "gzip", "chunked, chunked", "", "chunked\r\n identity",
        ):  # fmt: skip
            yield request(7, f"Transfer-Encoding: {text}", body=chunks)
            yield request(8, f"Transfer-Encoding: {text}", length, body=inner)
            yield request(9, f"Transfer-Encoding: {text}", "Content-Length: 0", body=inner)
        for lines in (
            (length, "Content-Length: 0"), ("Content-Length: 0", length), (length, length),
            (length, "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", length),
            ("Content-Length : 0", length), (" Content-Length: 0", length), ("X: y\nContent-Length: 0", length),
            ("X: y\rContent-Length: 0", length), ("X: y", f" {length}"), ("Content_Length: 0", length),
            ("Content-Length\t: 0",), ("Content_Length: 5",), ("\x00Content-Length: 5",), (length, "Connection: Content-Length"),
            (length, "Connection: close, Content-Length"), ("Transfer_Encoding: chunked",), ("X: \x00", length), ("no colon", length),
            (length, "Upgrade: h2c", "Connection: Upgrade"), (length, "Upgrade: websocket", "Connection: upgrade"),
            (length, "Connection: close"), (length, "X-HTTP-Method-Override: DELETE"), (f"Host: {HOST}", length), ("Host: other.test", length),
        ):  # fmt: skip
            yield request(10, *lines, body=inner)
            yield request(11, *lines, body=inner, method="GET")
        for framed in (
            b"%x;a=b\r\n%s\r\n0\r\n\r\n", b"%x ;a\r\n%s\r\n0\r\n\r\n", b"0x%x\r\n%s\r\n0\r\n\r\n", b"+%x\r\n%s\r\n0\r\n\r\n",
            b"000%x\r\n%s\r\n0\r\n\r\n", b"%x\n%s\n0\n\n", b"%x\r\n%s0\r\n\r\n", b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n",
            b"%x\r\n%s\r\n0\r\nContent-Length: 9\r\n\r\n", b"%x\r\n%s\r\n00\r\n\r\n", b"fffffffffffffffff%x\r\n%s\r\n0\r\n\r\n",
            b"%x\r\n%s\r\n0\r\n", b" %x\r\n%s\r\n0\r\n\r\n", b"%x\r\n%s\r\n0;\n\r\n\r\n",
        ):  # fmt: skip
            yield request(12, "Transfer-Encoding: chunked", body=framed % (size, inner))
        for line in (
            f"get http://{HOST}/c13 HTTP/1.1", f"GET  http://{HOST}/c13 HTTP/1.1", f"GET\thttp://{HOST}/c13 HTTP/1.1",
            f"GET http://{HOST}/c13 HTTP/1.2", f"GET http://{HOST}/c13 HTTP/2.0", f"GET http://{HOST}/c13 http/1.1", f"GET http://{HOST}/c13",
            f"GET http://{HOST}/c13 HTTP/1.1 ", f"GET http://{HOST}/c 13 HTTP/1.1", "GET /c13 HTTP/1.1", "PRI * HTTP/2.0",
            "GET http://other.test/c13 HTTP/1.1", f"GET http://x@{HOST}/c13 HTTP/1.1", f"GET http://{HOST}:99/c13 HTTP/1.1",
            f"GET https://{HOST}/c13 HTTP/1.1", "OPTIONS * HTTP/1.1", f"\r\nGET http://{HOST}/c13 HTTP/1.1", f"GET http://{HOST}/c13 HTTP/1.0",
        ):  # fmt: skip
            yield request(13, first=line, body=inner)
            yield request(14, length, first=line, body=inner)
            yield request(15, "Connection: keep-alive", "Transfer-Encoding: chunked", first=line, body=chunks)
        second = request(17, method="GET")
        yield request(16, method="GET", body=second + request(18, method="DELETE"))
        yield request(16, "Content-Length: 2", body=b"hi" + second)
        yield request(16, "Connection: close", method="GET", body=second)
        yield request(16, length, body=inner + second)
        yield request(16, "Transfer-Encoding: chunked", body=chunks + second)
        old = request(19, "Connection: keep-alive", first=f"GET http://{HOST}/c19 HTTP/1.0")
        yield old + old + second


async def send(client: SocketStream, data: bytes) -> None:
    async with client:
        try:
            await client.send(data)
            await client.send_eof()
            await read_all(client)
        except (anyio.BrokenResourceError, OSError):
            return


@pytest.mark.parametrize("start", [http_server, nginx, lighttpd])
async def test_a_server_sees_exactly_the_requests_that_were_judged(start: Start, tmp_path: Path) -> None:
    world = World(*(f"request:{method} {HOST}/**" for method in ALLOWED))
    cases = list(corpus())
    async with running(start, tmp_path) as port:
        world.has(HOST, port)
        for at in range(0, len(cases), 100):  # a proxy records the requests of one sandbox up to a limit
            async with going(world) as connect:
                for data in cases[at : at + 100]:
                    await send(await connect(), data)

    recorded = Counter(f"{method} {path}" for effect, method, path, _ in world.requests if effect == "allow")
    answered = Counter((tmp_path / "log").read_text().split("\n"))
    del answered[""]
    assert answered == recorded
    assert recorded["GET /c17"] > 4 and recorded["POST /c10"] > 4
    assert not any("hidden" in line for line in answered)
