"""Repositories and webhooks: the second clone of a large one into a new sandbox, and save points of a large tree.

Needs root. `clone` makes a repository of about 500 MB and compares the second run's way (fetch with the object cache,
new sandbox, files inside) with a plain `git clone` of it. `save` changes 50 of 20,000 files and saves them. `hooks` sends
10,000 signed webhooks to a server of its own over 32 connections; each is on disk before its answer. Beside it: as many
requests that store nothing.
"""

import argparse
import hashlib
import hmac
import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from parts.place import Bench, bench
from parts.table import Goal, Line, ms

from cloister.app.settings import read_settings
from cloister.app.triggers import INBOX_FILE
from cloister.app.wiring import open_app
from cloister.core.computer import shell
from cloister.core.requests import Quota
from cloister.forge import workspace
from cloister.forge.cache import ObjectCache
from cloister.forge.plain_git import PlainGit
from cloister.sandbox.api import SandboxSpec
from cloister.server.app import asgi_app
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets

PARTS = ("clone", "save", "hooks")
SPEC = SandboxSpec(quota=Quota(disk_bytes=8_000_000_000, memory_bytes=4_000_000_000))
COMMITS, BLOB = 500, 1_000_000
HOOKS, SENDERS, SECRET = 10_000, 32, "a-secret-of-the-bench"
FILES, CHANGED = 20_000, 50


def _imported(at: Path, commits: list[dict[str, bytes]]) -> str:
    """A bare repository with these commits on `main`; nothing is compressed."""
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(at)], check=True)
    git = ["git", "-C", str(at), "-c", "core.compression=0", "-c", "pack.compression=0"]
    with subprocess.Popen([*git, "fast-import", "--quiet"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number, files in enumerate(commits):
            head = f"commit refs/heads/main\ncommitter A <a@example.org> {number} +0000\ndata 1\nc\n"
            process.stdin.write(head.encode())
            for name, data in files.items():
                process.stdin.write(f"M 100644 inline {name}\ndata {len(data)}\n".encode() + data + b"\n")
    return str(at)


async def clones(place: Bench) -> None:
    one = ({f"d{number % 40}/file": os.urandom(BLOB)} for number in range(COMMITS))
    repo = _imported(place.directory / "large.git", list(one))
    forge = PlainGit(cache=ObjectCache(place.directory / "objects", 2**33))
    await forge.fetch(repo, None, place.directory / "first")
    ours, theirs = list[float](), list[float]()
    async with place.containers() as host:
        for number in range(place.rounds):
            bare, plain = place.directory / f"run{number}", place.directory / f"plain{number}"
            started = time.perf_counter()
            base = await forge.fetch(repo, None, bare)
            async with host.open(SPEC) as sandbox:
                await workspace.put(sandbox, bare, base.commit)
                ours.append(time.perf_counter() - started)
            started = time.perf_counter()
            await anyio.run_process(["git", "clone", "-q", f"file://{repo}", str(plain)])
            theirs.append(time.perf_counter() - started)
            shutil.rmtree(bare)
            shutil.rmtree(plain)
    what = "second clone of 500 MB into a new sandbox"
    place.table.add(Line(what, ms(ours), "ms", Goal(0.2, "ratio"), "git clone", ms(theirs)))


async def saves(place: Bench) -> None:
    files = {f"d{number % 200}/f{number}.txt": b"%d\n" % number * 20 for number in range(FILES)}
    repo = _imported(place.directory / "wide.git", [files])
    bare, took = place.directory / "wide-run", list[float]()
    base = await PlainGit().fetch(repo, None, bare)
    async with place.containers() as host, host.open(SPEC) as sandbox:
        await workspace.put(sandbox, bare, base.commit)
        for number in range(place.rounds):
            names = " ".join(f"d{n}/f{n}.txt" for n in range(CHANGED))
            await sandbox.run(shell(f"for f in {names}; do echo {number} >> $f; done"))
            started = time.perf_counter()
            await workspace.save(sandbox, bare, base.commit, "refs/cloister/save/1")
            took.append(time.perf_counter() - started)
    place.table.add(Line(f"save point, {CHANGED} of {FILES:,} files changed", ms(took), "ms", Goal(300)))


async def hooks(place: Bench) -> None:
    data = place.directory / "server"
    data.mkdir()
    table = '[[trigger]]\non = "hook"\nname = "storm"\nfrom = "env:HOOK"\nrepo = "/nowhere"\nprompt = "Fix {{n}}"\nat_most = 1\n'
    (data / "config.toml").write_text(table)
    settings = read_settings({"HOOK": SECRET, "CLOISTER_MODEL": "script:/nowhere"}, data)
    ours, theirs = list[float](), list[float]()
    async with open_app(settings, role="server") as app:
        sockets = Sockets()
        with bound(0) as listener:
            port = listener.getsockname()[1]
            async with listening(asgi_app(app, "t" * 40, sockets), listener, sockets):
                for number in range(place.rounds):
                    count = HOOKS // place.rounds
                    stored = [_delivery(number * count + one) for one in range(count)]
                    ours.append(await _send(port, stored, b"202"))
                    health = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    theirs.append(await _send(port, [health] * count, b"200"))
    with sqlite3.connect(data / INBOX_FILE) as db:
        (kept,) = db.execute("SELECT COUNT(DISTINCT key) FROM delivery").fetchone()
    assert kept == HOOKS // place.rounds * place.rounds, kept
    what = f"one of {HOOKS:,} webhooks, durable (2 ms is 500/s)"
    place.table.add(Line(what, tuple(ours), "ms", Goal(2), "request without a write", tuple(theirs)))


def _delivery(number: int) -> bytes:
    body = b'{"n": %d, "text": "%s"}' % (number, b"x" * 2_000)
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest().encode()
    head = b"POST /v1/hooks/storm HTTP/1.1\r\nHost: localhost\r\nX-Hub-Signature-256: sha256=%s\r\n" % digest
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _send(port: int, requests: list[bytes], status: bytes) -> float:
    """Milliseconds for each request, from many connections at a time."""
    left = iter(requests)

    async def sender() -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            reader = BufferedByteReceiveStream(stream)
            for request in left:
                await stream.send(request)
                head = await reader.receive_until(b"\r\n\r\n", 65_536)
                assert head.split(b" ")[1] == status, head
                await reader.receive_exactly(
                    int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                )

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(SENDERS):
            tasks.start_soon(sender)
    return (time.perf_counter() - started) * 1_000 / len(requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each line")
    chosen = parser.parse_args()
    jobs = {"clone": clones, "save": saves, "hooks": hooks}
    with bench(chosen.rounds) as place:
        for part in chosen.parts:
            anyio.run(jobs[part], place)


if __name__ == "__main__":
    main()
