"""Files: streaming into and out of a live sandbox, through the Python API, against a pipe of the same size on the host.

A ratio of 1 is the speed of `head -c N /dev/zero | cat > /dev/null`; both are measured in turn.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from cloister.core.ids import new_owner_id
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container import ContainerHost
from cloister.sandbox.owners import Owners

PIECE = bytes(1_048_576)
PIECES = 256
ROUNDS = 5


async def write(sandbox: Sandbox) -> None:
    async with sandbox.write_stream("big") as sink:
        for _ in range(PIECES):
            await sink.send(PIECE)


async def read(sandbox: Sandbox) -> None:
    size = 0
    async with sandbox.read_stream("big") as pieces:
        async for piece in pieces:
            size += len(piece)
    assert size == len(PIECE) * PIECES


def pipe() -> float:
    began = time.perf_counter()
    line = f"head -c {len(PIECE) * PIECES} /dev/zero | cat > /dev/null"
    subprocess.run(["/bin/sh", "-c", line], check=True)
    return time.perf_counter() - began


async def compare(name: str, what: Callable[[Sandbox], Awaitable[None]], sandbox: Sandbox) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        theirs.append(await anyio.to_thread.run_sync(pipe))
        began = time.perf_counter()
        await what(sandbox)
        ours.append(time.perf_counter() - began)
    speed = PIECES / statistics.median(ours)
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{name:<24} {speed:7.0f} MB/s   {ratio:5.2f} of a pipe   wanted ≥ 300 MB/s")


async def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
    with tempfile.TemporaryDirectory() as directory:
        data_dir, owner = Path(directory), new_owner_id()
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("templates", "programs"):
            (cache / name).mkdir(exist_ok=True)
            (data_dir / name).symlink_to(cache / name)
        with Owners(data_dir / "owners").hold(owner):
            host = ContainerHost(data_dir, owner, None, os.environ["PATH"])
            await host.prepare("default", lambda fraction, note: None)
            async with host.open(SandboxSpec()) as sandbox:
                await compare("stream into a file", write, sandbox)
                await compare("stream out of a file", read, sandbox)


if __name__ == "__main__":
    anyio.run(main)
