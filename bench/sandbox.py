"""The sandbox beside what others need for the same, in one run: p50, p99, ratios and goals.

Needs root. Both sides of a line are measured in turn on the same template, so that noise hits them alike. What is not
installed is not measured, and says so: `apt-get install bubblewrap podman` adds two; SWE-ReX is put into a cache of its own.
"""

import argparse
import os

import anyio
from parts.clients import seam, through_clients
from parts.files import streams
from parts.forks import beside_data, disk_forks
from parts.idle import idle
from parts.machines import microvms, services
from parts.place import Bench, bench
from parts.starts import containers, gvisor, through_http

ALONE = {
    "create": containers,
    "gvisor": gvisor,
    "fork": disk_forks,
    "microvm": microvms,
    "services": services,
    "files": streams,
    "beside": beside_data,
}
IN_A_THREAD = {"http": through_http, "clients": through_clients, "harness": seam}
PARTS = (*ALONE, *IN_A_THREAD, "idle")


async def measure(place: Bench, parts: list[str], idle_count: int) -> None:
    for part in parts:
        if part in ALONE:
            await ALONE[part](place)
        elif part in IN_A_THREAD:
            await anyio.to_thread.run_sync(IN_A_THREAD[part], place)
        elif part == "idle":
            await idle(place, idle_count)
        else:
            raise SystemExit(f"There is no part {part}: take some of {', '.join(PARTS)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=20, help="measurements of each line")
    parser.add_argument("--idle", type=int, default=500, help="how many idle sandboxes are held at once")
    parser.add_argument("--markdown", action="store_true", help="print the table once more for a document")
    chosen = parser.parse_args()
    with bench(chosen.rounds) as place:
        busy = os.getloadavg()[0]
        anyio.run(measure, place, chosen.parts, chosen.idle)
        print(
            f"load of this machine: {busy:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores"
        )
        if chosen.markdown:
            print("\n" + place.table.markdown())


if __name__ == "__main__":
    main()
