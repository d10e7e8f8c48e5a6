"""The door: a large download, the time it adds to a request, and how many connections it holds.

Everything is on loopback: the same client and the same server with the door between them and without it, in turn.
The client and the server are processes of their own, so that what is measured is the door.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketStream
from parts.downloads import downloads

from cloister.core.computer import Command
from cloister.core.ids import SandboxId, new_owner_id
from cloister.egress.credentials import Redactor, spellings
from cloister.egress.factory import Doorway, Outfit, Through
from cloister.egress.rules import DoorEvent
from cloister.policy.api import Layer, Rule
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners

SIZE = 200 * 1_048_576
ROUNDS = 5
REQUESTS = 300
HELD = 200
LINES = 10_000
READ = 262_144
SERVER = f"""
import socket, threading
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listener.getsockname()[1], flush=True)
piece = bytes(262144)
def serve(s):
    with s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        while True:
            while b"\\r\\n\\r\\n" not in data:
                more = s.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\\r\\n\\r\\n")
            size = {SIZE} if b" /big " in head else 2
            s.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
            while size:
                part = piece[:size]
                s.sendall(part)
                size -= len(part)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """
import http.client, statistics, sys, time
host, port, proxy, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
times = []
connection = http.client.HTTPConnection("127.0.0.1", proxy or port)
path = f"http://{host}:{port}/small" if proxy else "/small"
for _ in range(count):
    began = time.perf_counter()
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    connection.getresponse().read()
    times.append(time.perf_counter() - began)
print(statistics.median(times) * 1000)
"""


async def record(sandbox: SandboxId, body: DoorEvent) -> None:
    return None


def make_outfit(port: int) -> Outfit:
    rules = (Rule(f"connect:localhost:{port}", "allow"),)
    return Doorway().outfit((Layer("host", rules, may_widen=True),), record)


@asynccontextmanager
async def listening(outfit: Outfit) -> AsyncGenerator[int]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=512)

    async def serve(client: SocketStream) -> None:
        await outfit.serve(SandboxId("s-bench000"), client)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def curl(*words: str) -> float:
    began = time.perf_counter()
    argv = ["curl", "-sS", "-o", "/dev/null", *words]
    await anyio.run_process(argv)
    return time.perf_counter() - began


async def download(port: int, door: int) -> None:
    url = f"http://localhost:{port}/big"
    without: list[float] = []
    plain: list[float] = []
    tunnel: list[float] = []
    for _ in range(ROUNDS):
        without.append(await curl("--noproxy", "*", url))
        plain.append(await curl("--noproxy", "", "-x", f"http://127.0.0.1:{door}", url))
        tunnel.append(await curl("--noproxy", "", "-p", "-x", f"http://127.0.0.1:{door}", url))
    for name, times in (("plain HTTP", plain), ("tunnel", tunnel)):
        report(f"200 MB, {name}", statistics.median(without), statistics.median(times))


def report(name: str, without: float, through: float) -> None:
    print(
        f"{name:<30} {SIZE / 1e6 / through:7.0f} MB/s against {SIZE / 1e6 / without:7.0f} MB/s without"
        f"   ratio {without / through:4.2f}   wanted ≥ 0.5"
    )


async def latency(port: int, door: int) -> None:
    added: list[float] = []
    for _ in range(ROUNDS):
        times: list[float] = []
        for proxy in (0, door):
            argv = [sys.executable, "-c", CLIENT, "localhost", str(port), str(proxy), str(REQUESTS)]
            times.append(float((await anyio.run_process(argv)).stdout))
        added.append(times[1] - times[0])
    print(f"{'added to a request, p50':<30} {statistics.median(added):7.2f} ms   wanted ≤ 3 ms")


async def held(port: int, door: int) -> None:
    clients = [await anyio.connect_tcp("127.0.0.1", door) for _ in range(HELD)]
    ask = f"CONNECT localhost:{port} HTTP/1.1\r\n\r\n".encode()
    for client in clients:
        await client.send(ask)
    established = [b" 200 " in await client.receive() for client in clients]
    for client in clients:
        await client.send(f"GET /small HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
    answered = [b" 200 " in await client.receive() for client in clients]
    for client in clients:
        await client.aclose()
    print(
        f"{'connections held at once':<30} {sum(established):7d} opened, {sum(answered)} answered   wanted {HELD}"
    )


def redaction() -> None:
    """The cost of the search for a secret, and how many lines of a stream wait for the next one."""
    needles = spellings("ghp_q7Rk2Lw9Zx4Vn8Bt6Ys1Dc3Fh5Jm0Pg")
    line = b'data: {"choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": null}]}\n\n'
    redactor, times, at_once = Redactor(needles), list[float](), 0
    for _ in range(LINES):
        began = time.perf_counter()
        at_once += redactor.feed(line) == line
        times.append(time.perf_counter() - began)
    text = (line * (READ // len(line) + 1))[:READ]
    began = time.perf_counter()
    for _ in range(SIZE // READ):
        redactor.feed(text)
    rate = SIZE / 1e6 / (time.perf_counter() - began)
    print(
        f"{'redaction of a stream':<30} {statistics.median(times) * 1e6:7.1f} µs for a line, {at_once} of {LINES} at once"
        f"   {rate:.0f} MB/s"
    )


async def inside(port: int, outfit: Outfit) -> None:
    """The same from inside a sandbox, against a program on this machine without one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
    with tempfile.TemporaryDirectory() as directory:
        data_dir, owner = Path(directory), new_owner_id()
        for name in ("templates", "programs"):
            (cache / name).mkdir(parents=True, exist_ok=True)
            (data_dir / name).symlink_to(cache / name)
        with Owners(data_dir / "owners").hold(owner):
            host = ContainerHost(data_dir, owner, None, os.environ["PATH"])
            await host.prepare("default", lambda fraction, note: None)
            async with Through(host, outfit).open(SandboxSpec()) as sandbox:
                await compare_inside(port, sandbox)
            await host.close()


async def compare_inside(port: int, sandbox: Sandbox) -> None:
    url = f"http://localhost:{port}/big"
    script = f"curl -sS --noproxy '' -o /dev/null -w '%{{time_total}} %{{http_code}}' {url}"
    times: list[float] = []
    without: list[float] = []
    for _ in range(ROUNDS):
        ran = await sandbox.run(Command(("/bin/sh", "-c", script)))
        taken, status = ran.out.split()
        assert status == b"200", ran
        times.append(float(taken))
        without.append(await curl("--noproxy", "*", url))
    report("200 MB, inside a sandbox", statistics.median(without), statistics.median(times))
    many = (
        "import socket\n"
        f"ask = b'CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\n'\n"
        f"all = [socket.create_connection(('127.0.0.1', 3128)) for _ in range({HELD})]\n"
        "[s.sendall(ask) for s in all]\n"
        "print(sum(b' 200 ' in s.recv(4096) for s in all))\n"
    )
    ran = await sandbox.run(Command(("python3", "-c", many)))
    print(f"{'held from inside a sandbox':<30} {ran.out.decode().strip():>7} opened   wanted {HELD}")


async def loopback() -> None:
    redaction()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)  # noqa: ASYNC220 - once
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        outfit = make_outfit(port)
        async with listening(outfit) as door:
            await download(port, door)
            await latency(port, door)
            await held(port, door)
        if os.geteuid() == 0:
            await inside(port, outfit)
    finally:
        server.kill()
        server.wait()


async def main() -> None:
    parts = sys.argv[1:] or ["loopback", "downloads"]
    if "loopback" in parts:
        await loopback()
    if "downloads" in parts and os.geteuid() == 0:
        await downloads(ROUNDS)


if __name__ == "__main__":
    anyio.run(main)
