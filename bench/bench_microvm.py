"""What a virtual machine costs: woken against booted, forked with its memory, and how much of it is its own."""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from cloister.core.commands import Command
from cloister.core.ids import new_owner_id
from cloister.core.records import Quota
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.microvm.vm import MicrovmHost, MicrovmSandbox
from cloister.sandbox.owners import Owners

ROUNDS = 30
FORKS = 10
SPEC = SandboxSpec(quota=Quota(memory_bytes=512 << 20))
ECHO = Command(("/bin/echo", "hi"))


def row(name: str, seconds: Sequence[float], goal_ms: float | None = None, ratio: str = "") -> None:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered) * 1000, ordered[max(0, round(len(ordered) * 0.99) - 1)] * 1000
    goal = f"   goal {goal_ms:4.0f} ms" if goal_ms else ""
    print(f"{name:42s} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms{goal}{ratio}")


def own_megabytes(sandbox: Sandbox) -> float:
    """What nobody shares with the processes of a sandbox: neither a file nor what it began with."""
    total = 0
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"/cloister/{sandbox.info.id}." in (directory / "cgroup").read_text():
                lines = (directory / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
        except OSError:
            continue
    return total / 1024


async def creates(host: MicrovmHost) -> tuple[list[float], list[float], list[float]]:
    first: list[float] = []
    later: list[float] = []
    own: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        async with host.open(SPEC) as sandbox:
            await sandbox.run(ECHO)
            first.append(time.perf_counter() - began)
            for _ in range(3):
                began = time.perf_counter()
                await sandbox.run(ECHO)
                later.append(time.perf_counter() - began)
            own.append(own_megabytes(sandbox))
    return first, later, own


async def forks(parent: MicrovmSandbox) -> tuple[list[float], list[float], list[float]]:
    first: list[float] = []
    pauses: list[float] = []
    own: list[float] = []
    for _ in range(FORKS):
        began = time.perf_counter()
        async with parent.fork() as child:
            await child.run(ECHO)
            first.append(time.perf_counter() - began)
            pauses.append(parent.pause_seconds)
        async with parent.fork() as child:
            own.append(own_megabytes(child))
    return first, pauses, own


async def bench(data_dir: Path) -> None:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = MicrovmHost(data_dir, owner, None, os.environ["PATH"])
        await host.prepare("default", lambda _fraction, _note: None)
        began = time.perf_counter()
        async with host.open(SPEC) as sandbox:
            await sandbox.run(ECHO)
            print(f"{sandbox.info.isolation}")
        booted = time.perf_counter() - began
        first, later, own = await creates(host)
        ratio = f"   {booted / statistics.median(first):5.1f}x faster than the first" if booted > 1 else ""
        row("create -> first exec", first, 150, ratio)
        row("exec", later)
        print(f"{'own memory after four commands':42s} p50 {statistics.median(own):7.1f} MB")
        for megabytes in (0, 50):
            async with host.open(SPEC) as parent:
                assert isinstance(parent, MicrovmSandbox)
                await parent.run(Command(("python3", "-c", f"x = bytearray({megabytes} << 20)")))
                first, pauses, own = await forks(parent)
                print(f"a parent that ran Python and wrote {megabytes} MB:")
                row("  memory fork -> first exec in the child", first, 300)
                row("  pause of the parent", pauses, 150)
                print(
                    f"{'  own memory of an idle child':42s} p50 {statistics.median(own):7.1f} MB   goal   20 MB"
                )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(bench, Path(sys.argv[1]) if len(sys.argv) > 1 else Path(directory))


if __name__ == "__main__":
    main()
