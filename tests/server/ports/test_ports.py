import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.conftest import Served
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from cloister.app.settings import Settings, read_settings

pytestmark = pytest.mark.anyio

# A server of the standard library that shows what it was asked, and answers on demand with whatever bytes it is told.
SERVER = r"""
import base64, hashlib, json, socketserver, struct, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = []
        while (line := self.rfile.readline().rstrip(b"\r\n")):
            head.append(line.decode("latin-1"))
        headers = {k.lower(): v for k, _, v in (l.partition(": ") for l in head[1:])}
        if "upgrade" in headers:
            return self.socket(head, headers)
        body = self.body(headers)
        path = head[0].split(" ")[1]
        if path.startswith("/raw/"):
            self.wfile.write(bytes.fromhex(path[5:])); return
        if path == "/slow":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(3):
                self.wfile.write(b"2\r\n%d\n\r\n" % i); self.wfile.flush(); self.rfile.peek(1)
            return
        if path == "/endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 40000); return
        if path == "/big":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n" + bytes(50000000)); return
        data = json.dumps({"head": head, "size": len(body), "body": body[:20].decode("latin-1")}).encode()
        self.wfile.write(b"HTTP/1.1 201 Fine\r\nContent-Type: application/json\r\nSet-Cookie: a=1; Domain=localhost\r\n"
            b"X-Seen: yes\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    def body(self, headers):
        if "content-length" in headers:
            return self.rfile.read(int(headers["content-length"]))
        data = b""
        while "transfer-encoding" in headers and (n := int(self.rfile.readline(), 16)):
            data += self.rfile.read(n); self.rfile.readline()
        return data
    def socket(self, head, headers):
        if "/refused" in head[0]:
            self.wfile.write(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"); return
        key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
        extra = b"Sec-WebSocket-Protocol: chat\r\n" if "chat" in headers.get("sec-websocket-protocol", "") else b""
        self.wfile.write(b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + extra +
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        self.say(1, json.dumps(head).encode())
        while True:
            a, b = self.rfile.read(2)
            n = b & 127
            if n == 126: n = struct.unpack(">H", self.rfile.read(2))[0]
            if n == 127: n = struct.unpack(">Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4)
            data = bytes(c ^ mask[i % 4] for i, c in enumerate(self.rfile.read(n)))
            if a & 15 == 8: self.say(8, data); return
            if data == b"close": self.say(8, struct.pack(">H", 4321) + b"enough"); return
            if data == b"lie": self.wfile.write(b"\xff\xff\xff\xff"); return
            self.say(a & 15, data)
    def say(self, kind, data):
        n = len(data)
        size = bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n) if n < 65536 else b"\x7f" + struct.pack(">Q", n)
        self.wfile.write(bytes([0x80 | kind]) + size + data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
with Server(("127.0.0.1", 8080), Handler) as server:
    print("up", flush=True)
    server.serve_forever()
"""


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


@pytest.fixture
async def sandbox(served: Served) -> AsyncIterator[str]:
    """A sandbox with a server in it."""
    made = (await served.client.post("/v1/sandboxes", json={"ttl_seconds": 300})).json()["id"]
    at = f"/v1/sandboxes/{made}"
    await served.client.put(f"{at}/files", params={"path": "server.py"}, content=SERVER.encode())
    started = await served.client.post(f"{at}/commands", json={"argv": ["python3", "server.py"]})
    async with served.socket(f"{at}/commands/{started.json()['id']}/attach") as socket:
        with anyio.fail_after(20):
            assert await socket.recv() == b"\1up\n"
    yield made


async def test_requests_reach_a_server_inside_by_path(served: Served, sandbox: str) -> None:
    at = f"/v1/sandboxes/{sandbox}/ports/8080"
    reply = await served.client.post(
        f"{at}/a/b?c=d", content=b"hello", headers={"Cookie": "x=1", "X-My": "1"}
    )
    assert (reply.status_code, reply.headers["x-seen"]) == (201, "yes")
    seen = reply.json()
    assert (seen["head"][0], seen["body"]) == ("POST /a/b?c=d HTTP/1.1", "hello")
    text = "\n".join(seen["head"]).lower()
    assert served.token not in text
    assert "cookie" not in text
    assert "host: localhost:8080" in text
    assert "x-my: 1" in text
    assert "set-cookie" not in reply.headers
    assert reply.headers["content-security-policy"].startswith("sandbox")


async def test_requests_reach_a_server_inside_by_its_own_name(served: Served, sandbox: str) -> None:
    host = f"8080-{sandbox}.localhost:{served.port}"
    for path in ("/", "/v1/runs", "/v1/health", "/v1/sandboxes"):
        reply = await served.client.get(path, headers={"Host": host})
        assert reply.status_code == 201
        assert reply.json()["head"][0] == f"GET {path} HTTP/1.1"
        assert served.token not in reply.text
    assert reply.headers["set-cookie"] == "a=1"
    async with httpx.AsyncClient(timeout=30, trust_env=False) as stranger:
        for path in ("/", "/v1/health"):
            refused = await stranger.get(f"http://127.0.0.1:{served.port}{path}", headers={"Host": host})
            assert refused.status_code == 401


async def test_an_address_with_a_secret_reaches_its_port_without_a_token_and_nothing_else(
    served: Served, sandbox: str
) -> None:
    at = f"/v1/sandboxes/{sandbox}/addresses"
    made = (await served.client.post(at, json={"port": 8080})).json()
    assert (made["sandbox"], made["port"]) == (sandbox, 8080)
    assert (await served.client.post(at, json={"port": 8080})).json() == made, "the same one again"
    other = (await served.client.post("/v1/sandboxes", json={})).json()["id"]
    secret = made["host"].removeprefix(f"8080-{sandbox}-").removesuffix(".localhost")
    async with httpx.AsyncClient(timeout=30, trust_env=False) as stranger:

        async def status(name: str, path: str = "/") -> int:
            host = {"Host": f"{name}.localhost:{served.port}"}
            return (await stranger.get(f"http://127.0.0.1:{served.port}{path}", headers=host)).status_code

        own = made["host"].removesuffix(".localhost")
        assert [await status(own, path) for path in ("/", "/v1/runs", f"/v1/sandboxes/{other}")] == [201] * 3
        shown = await stranger.get(f"http://127.0.0.1:{served.port}/", headers={"Host": f"{made['host']}:80"})
        assert shown.headers["referrer-policy"] == "no-referrer"
        for name in (
            f"8081-{sandbox}-{secret}",
            f"8080-{other}-{secret}",
            f"8080-{sandbox}-{'0' * 32}",
            f"8080-{sandbox}",
        ):
            assert await status(name) == 401, name
        assert (await served.client.post(at, json={"port": 0})).status_code == 400
        async with connect(f"ws://{made['host']}:{served.port}/", host="127.0.0.1", proxy=None) as socket:
            assert "GET / HTTP/1.1" in str(await socket.recv())
        await served.client.delete(f"/v1/sandboxes/{sandbox}")
        assert await status(own) == 401
    entries = await served.app.backbone.audit(0, 10_000)
    kinds = [entry.kind for entry in entries]
    assert kinds.count("PortAddressMade") == 1
    assert secret not in "".join(f"{entry.detail}" for entry in entries)


async def test_bodies_of_any_size_go_both_ways(served: Served, sandbox: str) -> None:
    at = f"/v1/sandboxes/{sandbox}/ports/8080"

    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(50):
            yield bytes(100_000)

    assert (await served.client.put(f"{at}/", content=pieces())).json()["size"] == 5_000_000
    assert (await served.client.put(f"{at}/", content=bytes(3_000_000))).json()["size"] == 3_000_000
    big = await served.client.get(f"{at}/big")
    assert len(big.content) == 50_000_000
    head = await served.client.head(f"{at}/")
    assert (head.status_code, head.content) == (201, b"")


async def test_an_answer_is_passed_on_as_it_comes(served: Served, sandbox: str) -> None:
    with anyio.fail_after(20):
        async with served.client.stream("GET", f"/v1/sandboxes/{sandbox}/ports/8080/slow") as reply:
            async for data in reply.aiter_raw():
                assert data == b"0\n"
                break


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA b: c\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999999 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
    ],
    ids=["nothing", "ssh", "two lengths", "codings", "nul", "space", "status", "101"],
)
async def test_a_malformed_answer_is_not_passed_on(served: Served, sandbox: str, reply: bytes) -> None:
    at = f"/v1/sandboxes/{sandbox}/ports/8080"
    for path in (f"raw/{reply.hex()}", "endless"):
        got = await served.client.get(f"{at}/{path}")
        assert (got.status_code, got.json()["code"]) == (502, "bad_reply")


async def test_an_answer_that_breaks_off_inside_breaks_off_outside(served: Served, sandbox: str) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this".hex()
    with pytest.raises(httpx.RemoteProtocolError):
        await served.client.get(f"/v1/sandboxes/{sandbox}/ports/8080/raw/{half}")


async def test_a_missing_sandbox_or_port_is_an_error(served: Served, sandbox: str) -> None:
    for at, status, code in (
        (f"/v1/sandboxes/{sandbox}/ports/8081/", 404, "no_such_port"),
        (f"/v1/sandboxes/{sandbox}/ports/0/", 400, "bad_port"),
        (f"/v1/sandboxes/{sandbox}/ports/99999/", 400, "bad_port"),
        (f"/v1/sandboxes/{sandbox}/ports/3128/", 400, "bad_port"),
        ("/v1/sandboxes/s-nosuchsandbox/ports/80/", 404, "no_such_sandbox"),
        (f"/v1/sandboxes/{sandbox}/ports/http/", 404, "no_such_route"),
    ):
        reply = await served.client.get(at)
        assert (reply.status_code, reply.json()["code"]) == (status, code), at


async def test_websockets_reach_a_server_inside(served: Served, sandbox: str) -> None:
    async with served.socket(f"/v1/sandboxes/{sandbox}/ports/8080/chat?x=1") as socket:
        with anyio.fail_after(20):
            head = "\n".join(json.loads(await socket.recv()))
            assert head.startswith("GET /chat?x=1 HTTP/1.1")
            assert served.token not in head
            for message in ("text", b"\x00\xff", "ä" * 50_000):
                await socket.send(message)
                assert await socket.recv() == message
            await socket.send("close")
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        assert (socket.close_code, socket.close_reason) == (4321, "enough")


async def test_a_browsers_websocket_brings_its_token_and_its_own_protocols(
    served: Served, sandbox: str
) -> None:
    url = f"ws://8080-{sandbox}.localhost:{served.port}/"
    offer = [Subprotocol("cloister"), Subprotocol(served.token), Subprotocol("chat")]
    async with connect(url, subprotocols=offer, host="127.0.0.1", proxy=None) as socket:
        head = "\n".join(json.loads(await socket.recv()))
        assert (socket.subprotocol, served.token in head) == ("chat", False)
    async with connect(url, subprotocols=offer[:2], host="127.0.0.1", proxy=None) as socket:
        assert socket.subprotocol == "cloister"
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, host="127.0.0.1", proxy=None):
            pass
    assert caught.value.response.status_code == 401


async def test_a_websocket_refused_or_broken_inside_is_so_outside(served: Served, sandbox: str) -> None:
    for path, status in (("8080/refused", 403), ("8081/", 404)):
        with pytest.raises(InvalidStatus) as caught:
            async with served.socket(f"/v1/sandboxes/{sandbox}/ports/{path}"):
                pass
        assert caught.value.response.status_code == status
    async with served.socket(f"/v1/sandboxes/{sandbox}/ports/8080/") as socket:
        await socket.recv()
        await socket.send("lie")
        with anyio.fail_after(20):
            await socket.wait_closed()
        assert socket.close_code == 1011


async def dialled(served: Served, path: str, said: bytes) -> bytes:
    shown = b""
    async with served.socket(path) as socket:
        assert json.loads(await socket.recv()) == {"connected": 8080}
        await socket.send(said)
        await socket.send('{"eof": true}')
        with pytest.raises(ConnectionClosed), anyio.fail_after(20):
            while True:
                message: Any = await socket.recv()
                shown += message
        assert socket.close_code == 1000
    return shown


async def test_a_plain_connection_carries_bytes_both_ways(served: Served, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/dial"
    shown = await dialled(served, f"{path}/8080", b"GET /x HTTP/1.0\r\n\r\n")
    assert shown.startswith(b"HTTP/1.1 201 Fine\r\n")
    for port, code in (("8081", 4404), ("3128", 4400), ("70000", 4400)):
        async with served.socket(f"{path}/{port}") as socket:
            with anyio.fail_after(20):
                await socket.wait_closed()
            assert socket.close_code == code
