"""What an append to the shared log of a cluster costs beside a bare JetStream publish of the same bytes, in turns.

Starts one `nats-server`, then three that replicate, on free ports; needs the development requirements. The append is
decided on the machine's copy, published, and committed there. Run it with `python -m bench.parts.shared_log`.
"""

# pyright: reportUnknownMemberType=false
# The NATS client's keyword arguments have no types.

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
from nats.js.api import StreamConfig
from tests.log.jetstream.servers import one_server, three_servers

from cloister.core.events import AnyBody, ToolReturned
from cloister.core.ids import OwnerId
from cloister.core.requests import NewRun
from cloister.log.jetstream.backbone import open_backbone
from cloister.log.jetstream.link import Cluster, Link, open_link

ROUNDS = int(os.environ.get("ROUNDS", "300"))
BODY: AnyBody = ToolReturned(1, "t1", "bash", True, "a line of output\n" * 20, 0.25, 0)


async def measure(directory: Path, servers: Sequence[str]) -> None:
    cluster = Cluster(tuple(servers), replicas=len(servers))
    times: dict[str, list[float]] = {"bare": [], "append": []}
    async with (
        open_link(cluster) as link,
        open_backbone(link, directory / "copy.db", owner_lives=lambda _: True) as backbone,
    ):
        await link.jetstream.add_stream(
            StreamConfig(name="bare", subjects=["bare"], num_replicas=cluster.replicas)
        )
        run, _ = await backbone.admit(NewRun("bench", "/nowhere"), "bench")
        fence = await backbone.claim(OwnerId("o-1"), run)
        assert fence is not None
        payload = msgspec.json.encode(BODY)
        for number in range(ROUNDS):
            started = time.perf_counter()
            await publish(link, payload, number)
            between = time.perf_counter()
            await backbone.append(fence, [BODY])
            times["bare"].append(between - started)
            times["append"].append(time.perf_counter() - between)
    bare, append = (statistics.median(times[kind]) * 1_000 for kind in ("bare", "append"))
    worst = sorted(times["append"])[int(ROUNDS * 0.99)] * 1_000
    print(
        f"{len(servers)} server{'s' if len(servers) > 1 else ' '}   bare publish p50 {bare:.2f} ms   "
        f"append p50 {append:.2f} ms, p99 {worst:.2f} ms   ratio {append / bare:.2f}"
    )


async def publish(link: Link, payload: bytes, last: int) -> None:
    """What JetStream itself takes, with the same check of the end."""
    await link.jetstream.publish("bare", payload, headers={"Nats-Expected-Last-Sequence": str(last)})


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cloister-bench-") as name:
        root = Path(name)
        with one_server(root / "one") as server:
            anyio.run(measure, root, [server.url])
        with three_servers(root / "three") as servers:
            anyio.run(measure, root / "three", [each.url for each in servers])


if __name__ == "__main__":
    main()
