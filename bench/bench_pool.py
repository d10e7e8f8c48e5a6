"""Pool: claim of a warm sandbox to its first exec, beside opening a fresh one. One line, as milliseconds and a ratio."""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import anyio

from cloister.core.commands import Command
from cloister.core.ids import new_owner_id
from cloister.core.records import PoolWish, Quota
from cloister.sandbox.api import Host, SandboxSpec
from cloister.sandbox.container import ContainerHost
from cloister.sandbox.owners import Owners
from cloister.sandbox.pool import open_pool

ROUNDS = int(os.environ.get("ROUNDS", "50"))
WARM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
TRUE = Command(("/bin/true",), cwd="/")
GOAL_MS = 5.0


async def first_exec(host: Host) -> float:
    """Seconds from asking for a sandbox to the end of its first command."""
    started = time.perf_counter()
    async with host.open(SandboxSpec()) as sandbox:
        await sandbox.run(TRUE)
        return time.perf_counter() - started


async def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="cloister-bench-"))
    owner = new_owner_id()
    with Owners(directory / "owners").hold(owner):
        WARM.mkdir(parents=True, exist_ok=True)
        for name in ("templates", "programs"):
            (WARM / name).mkdir(exist_ok=True)
            (directory / name).symlink_to(WARM / name)
        host = ContainerHost(directory, owner, None, os.environ["PATH"])
        await host.prepare("default", lambda fraction, note: None)
        pooled: list[float] = []
        fresh: list[float] = []
        async with open_pool(host, (PoolWish(size=4),), Quota(), host.templates.version) as pool:
            for _ in range(ROUNDS):
                await pool.filled()
                pooled.append(await first_exec(pool))
                await pool.filled()
                fresh.append(await first_exec(host))
        await host.close()
    shutil.rmtree(directory)
    a, b = statistics.median(pooled) * 1000, statistics.median(fresh) * 1000
    p99 = statistics.quantiles(pooled, n=100)[98] * 1000
    print(
        f"{'pooled claim → first exec':34s} p50 {a:7.2f} ms (goal ≤ {GOAL_MS} ms)   p99 {p99:7.2f} ms   "
        f"fresh p50 {b:7.2f} ms   ratio {a / b:5.2f}x"
    )


if __name__ == "__main__":
    anyio.run(main)
