"""The program that holds sandboxes is killed: nothing of them is left after the next start, whatever they were made of."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import pytest
from tests.conftest import loop_devices

from cloister.core.ids import new_owner_id
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.provider import Choices, local_provider
from cloister.sandbox.providers import Providers
from cloister.sandbox.store.btrfs import BtrfsStore

pytestmark = pytest.mark.anyio

PATH = os.environ["PATH"]
COUNTS = {"container": 12, "gvisor": 5, "microvm": 3}

HOLDER = """
import sys
from contextlib import AsyncExitStack
from pathlib import Path
import anyio
from cloister.core.computer import shell
from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.provider import Choices, local_provider
from cloister.sandbox.providers import Providers

LINE = "trap '' TERM HUP; (setsid sleep 961 &); echo x > file; echo up; sleep 961"

async def main(data_dir, path, counts):
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        tiers = Providers((local_provider(data_dir, owner, path, Choices()),))
        async with AsyncExitStack() as stack:
            for tier, count in counts.items():
                spec = SandboxSpec(tier=tier, quota=Quota(memory_bytes=256 << 20))
                for number in range(count):
                    if number == 1:  # one of each kind is a fork
                        sandbox = await stack.enter_async_context(sandbox.fork())
                    else:
                        sandbox = await stack.enter_async_context(tiers.open(spec))
                    process = await stack.enter_async_context(sandbox.start(shell(LINE)))
                    async for item in process:
                        break
            print("up", flush=True)
            await anyio.sleep_forever()

counts = dict(word.split("=") for word in sys.argv[3:])
anyio.run(main, Path(sys.argv[1]), sys.argv[2], {tier: int(count) for tier, count in counts.items()})
"""


def hold(data_dir: Path) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", HOLDER, str(data_dir), PATH, *(f"{tier}={n}" for tier, n in COUNTS.items())]
    env = {"PATH": PATH, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n", "it did not get that far"
    return holder


def processes(names: list[str]) -> dict[int, str]:
    """The living processes in the cgroups of these names, each with its network namespace."""
    found: dict[int, str] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            alive = (directory / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if alive and any(f"/cloister/{name}" in (directory / "cgroup").read_text() for name in names):
                found[int(directory.name)] = str((directory / "ns/net").readlink())
        except OSError:
            continue  # It ended while we looked.
    return found


def pinned(namespaces: set[str]) -> list[str]:
    """Who is in one of these network namespaces, or keeps it by a mount or an open file."""
    found: list[str] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if str((directory / "ns/net").readlink()) in namespaces:
                found.append(f"{directory.name} is in it")
            mounts = (directory / "mountinfo").read_text()
            found += [f"{directory.name} has it mounted" for name in namespaces if name in mounts]
        except OSError:
            continue
    return found


def keep_networks(pids: Iterable[int], open_files: ExitStack) -> None:
    """The kernel gives the number of a namespace that is gone to the next one of anybody, so none shall go."""
    for pid in pids:
        with suppress(OSError):
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            open_files.callback(os.close, namespace)


def mounts_of(data_dir: Path, devices: list[str]) -> list[str]:
    """Mounts from below a data directory, or of these devices, in any process's view."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found += [
            f"{path.parent.name}: {line}"
            for line in lines
            if str(data_dir) in line or any(f" {device} " in line for device in devices)
        ]
    return found


def devices_of(data_dir: Path) -> list[str]:
    return [f"/dev/{name}" for name in loop_devices(data_dir)]


def own_network() -> str:
    return str(Path("/proc/self/ns/net").readlink())


async def test_twenty_sandboxes_of_all_tiers_leave_nothing_when_their_holder_is_killed(
    data_dir: Path, machine_dir: Path
) -> None:
    # A store of its own, so that every file and device of it is theirs.
    (data_dir / "store.btrfs").unlink()
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner), anyio.fail_after(300), ExitStack() as open_files:
        tiers = Providers((local_provider(data_dir, owner, PATH, Choices()),))
        reports = {report.tier: report for report in await tiers.reports()}
        for tier in COUNTS:
            if not reports[tier].works:
                pytest.skip(f"the tier {tier} does not work here: {reports[tier].found}")
        await tiers.prepare("default", lambda fraction, note: None)
        await tiers.close()
        holder = await anyio.to_thread.run_sync(hold, data_dir)
        with holder:
            try:
                names = [path.name for path in (data_dir / "sandboxes").iterdir()]
                living, devices = processes(names), devices_of(data_dir)
                keep_networks(living, open_files)
                assert len(names) == sum(COUNTS.values())
                assert len(living) > 2 * len(names) and devices and mounts_of(data_dir, devices)
                networks = set(living.values()) - {own_network()}
                assert len(networks) >= len(names)
            finally:
                holder.send_signal(signal.SIGKILL)
        next_start = Providers((local_provider(data_dir, owner, PATH, Choices()),))
        assert await next_start.sweep() == len(names)
        ids = {name.split(".")[0] for name in names}
        assert [info for info in await next_start.snapshots() if info.sandbox in ids] == []
        await next_start.close()
        # The kernel lets go of mounts and devices in its own time, after the last process.
        with anyio.move_on_after(30):
            while devices_of(data_dir) or mounts_of(data_dir, devices_of(data_dir)):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        assert processes(names) == {}
        assert pinned(networks) == []
        assert devices_of(data_dir) == []
        assert mounts_of(data_dir, []) == [], "and a mount of the device would have kept it"
        assert [name for name in cgroup.names(cgroup.read_layout()) if name in names] == []
        assert list((data_dir / "sandboxes").iterdir()) == []
        assert {path.name for path in (data_dir / "owners").iterdir()} == {owner}
        store = BtrfsStore(data_dir, PATH, native=False)
        assert list(((await store.snapshots()).parent / "roots").iterdir()) == [], (
            "no root is left in the store"
        )
        await store.close()
