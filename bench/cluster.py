"""A cluster of machines beside what it is made of: appends, fan-out, take-over, throughput, and chaos, in one run.

Starts real `nats-server` processes, and `cloister serve` processes for the last three; needs root and the development
requirements. Run it with `python -m bench.cluster`, or with some of: append, fan-out, takeover, throughput, chaos.
"""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from nats.js.api import StreamConfig
from tests.conftest import CACHE
from tests.log.jetstream.servers import NatsServer, one_server, three_servers
from tests.whole.cluster.fleet import TURNS, asleep, fleet

from cloister.core.events import AnyBody, ToolReturned
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun
from cloister.log.api import Backbone
from cloister.log.jetstream.backbone import open_backbone
from cloister.log.jetstream.leases import Terms
from cloister.log.jetstream.link import Cluster, Link, open_link

ROUNDS = int(os.environ.get("ROUNDS", "300"))
FOLLOWERS = 100
FANNED = 50
RUNS = 60
SLEEP_SECONDS = 2.0
"""How long each of the commands of a run sleeps where throughput is measured: sandboxes that work elsewhere."""
BODY: AnyBody = ToolReturned(1, "t1", "bash", True, "a line of output\n" * 20, 0.25, 0)


def told(servers: Sequence[object]) -> str:
    return f"{len(servers)} server{'s' if len(servers) > 1 else ' '}"


@asynccontextmanager
async def machine(path: Path, cluster: Cluster) -> AsyncGenerator[tuple[Link, Backbone]]:
    async with (
        open_link(cluster) as link,
        open_backbone(link, path, owner_lives=lambda _: True) as backbone,
    ):
        yield link, backbone


def cluster_of(servers: Sequence[NatsServer]) -> Cluster:
    return Cluster(tuple(server.url for server in servers), replicas=len(servers))


async def append(root: Path, servers: Sequence[NatsServer]) -> None:
    """What an append costs beside a bare JetStream publish of the same bytes, with the same check of the end."""
    times: dict[str, list[float]] = {"bare": [], "append": []}
    async with machine(root / "append.db", cluster_of(servers)) as (link, backbone):
        await link.jetstream.add_stream(
            StreamConfig(name="bare", subjects=["bare"], num_replicas=len(servers))
        )
        run, _ = await backbone.admit(NewRun("bench", "/nowhere"), "bench")
        fence = await backbone.claim(OwnerId("o-1"), run)
        assert fence is not None
        payload = msgspec.json.encode(BODY)
        for number in range(ROUNDS):
            started = time.perf_counter()
            await link.jetstream.publish(
                "bare", payload, headers={"Nats-Expected-Last-Sequence": str(number)}
            )
            between = time.perf_counter()
            await backbone.append(fence, [BODY])
            times["bare"].append(between - started)
            times["append"].append(time.perf_counter() - between)
    bare, own = (statistics.median(times[kind]) * 1_000 for kind in ("bare", "append"))
    worst = sorted(times["append"])[int(ROUNDS * 0.99)] * 1_000
    print(
        f"append      {told(servers)}   bare publish p50 {bare:.2f} ms   p50 {own:.2f} ms, p99 {worst:.2f} ms   "
        f"ratio {own / bare:.2f} (goal 1.3)"
    )


async def fan_out(root: Path, servers: Sequence[NatsServer]) -> None:
    """Until 100 followers have an event: on the machine that appended it, and on another one."""
    found: list[float] = []
    async with AsyncExitStack() as stack:
        pair = [
            (await stack.enter_async_context(machine(root / f"fan{name}.db", cluster_of(servers))))[1]
            for name in ("-here", "-there")
        ]
        run, _ = await pair[0].admit(NewRun("bench", "/nowhere"), "bench")
        fence = await pair[0].claim(OwnerId("o-2"), run)
        assert fence is not None
        for backbone in pair:
            times: list[float] = []
            for _ in range(FANNED):
                waiting = anyio.Semaphore(0)
                ready = anyio.Semaphore(0)
                last = (await backbone.row(run, told=False)).last_seq
                async with anyio.create_task_group() as tasks:
                    for _ in range(FOLLOWERS):
                        tasks.start_soon(follow, backbone, run, last, ready, waiting)
                    for _ in range(FOLLOWERS):
                        await ready.acquire()
                    begun = time.perf_counter()
                    await pair[0].append(fence, [BODY])
                    for _ in range(FOLLOWERS):
                        await waiting.acquire()
                    times.append(time.perf_counter() - begun)
            found.append(statistics.median(times) * 1_000)
    print(
        f"fan-out     {told(servers)}   {FOLLOWERS} followers here p50 {found[0]:.2f} ms, there {found[1]:.2f} ms   "
        f"ratio {found[1] / found[0]:.2f} (goal 2)"
    )


async def follow(
    backbone: Backbone, run: RunId, after: int, ready: anyio.Semaphore, seen: anyio.Semaphore
) -> None:
    async with backbone.follow(run, after, deltas=False) as items:
        ready.release()
        async for _ in items:
            seen.release()
            return


def takeover(root: Path, servers: Sequence[NatsServer]) -> None:
    """From the death of a worker to the claim of its runs by another one."""
    with fleet(root / "takeover", CACHE, servers, 2) as machines:
        machines.submit(4, SLEEP_SECONDS)
        machines.until(machines.started(4))
        victim = machines.workers[0]
        lost = {row["id"]: row["epoch"] for row in machines.rows()}
        begun = time.monotonic()
        victim.kill_server()

        def taken() -> bool:
            return any(row["epoch"] > lost[row["id"]] for row in machines.rows())

        machines.until(taken)
        took = time.monotonic() - begun
        lease = Terms().dead_seconds
        print(f"take-over   {told(servers)}   {took:.1f} s after kill -9 (goal: lease {lease:.0f} s + 5 s)")
        machines.until(machines.finished)


def throughput(root: Path, servers: Sequence[NatsServer]) -> None:
    """Runs that sleep, on 1, 2 and 4 workers of four places each."""
    first = 0.0
    for count in (1, 2, 4):
        with fleet(root / f"throughput{count}", CACHE, servers, count, name=f"t{count}") as machines:
            runs = 8 * count
            begun = time.monotonic()
            machines.submit(runs, SLEEP_SECONDS)
            machines.until(machines.finished)
            rate = runs / (time.monotonic() - begun)
            first = first or rate
            print(
                f"throughput  {count} worker{'s' if count > 1 else ' '}   {runs} runs, {rate:.2f} per second   "
                f"{rate / first / count:.2f} of linear (goal 0.9; {os.cpu_count()} processors, "
                f"load {os.getloadavg()[0]:.1f}; each run sleeps {TURNS * SLEEP_SECONDS:.0f} s)"
            )


def chaos(root: Path, servers: Sequence[NatsServer]) -> None:
    """Sixty runs on four workers: one is killed, then each NATS server in turn, one worker sleeps beyond its lease."""
    with fleet(root / "chaos", CACHE, servers, 4, name="chaos") as machines:
        begun = time.monotonic()
        runs = machines.submit(RUNS)
        machines.until(machines.started(8))
        machines.workers[0].kill_server()
        for server in servers:
            server.kill()
            time.sleep(10)
            server.start()
            time.sleep(5)
        with asleep(machines.workers[1]):
            time.sleep(30)
        machines.workers[0]("serve", "--background")
        machines.until(machines.finished, 1_800)
        machines.check(runs)
        machines.stop()
        left = machines.left_over()
        print(
            f"chaos       {told(servers)}   {RUNS} runs whole and once in {time.monotonic() - begun:.0f} s, "
            f"{len(left)} sandboxes left"
        )


PARTS: dict[str, Callable[[Path, Sequence[NatsServer]], None]] = {
    "append": lambda root, servers: anyio.run(append, root, servers),
    "fan-out": lambda root, servers: anyio.run(fan_out, root, servers),
    "takeover": takeover,
    "throughput": throughput,
    "chaos": chaos,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=list(PARTS), help="what to measure")
    chosen: list[str] = parser.parse_args().parts
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        root = Path(name)
        if "append" in chosen:
            with one_server(root / "alone") as server:
                PARTS["append"](root / "alone", [server])
        with three_servers(root / "three") as servers:
            for part in chosen:
                PARTS[part](root / "three", servers)


if __name__ == "__main__":
    main()
