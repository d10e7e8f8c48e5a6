"""Sandbox: create to first exec against the raw runtime, and exec in a live sandbox against the runtime's own, per tier.

Both sides run interleaved in one process on the same template, so that noise hits them alike.
The raw side is handed what we hand the runtime: the same config.json, on an overlay that is already mounted,
with the same limits on memory, cpu and processes, which the runtime then enforces by cgroups of its own.
"""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio

from cloister.core.commands import Command
from cloister.core.ids import new_owner_id
from cloister.core.records import TierName
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container import ContainerHost
from cloister.sandbox.owners import Owners

ROUNDS = int(os.environ.get("ROUNDS", "30"))
WARM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests"
TRUE = Command(("/bin/true",), cwd="/")


def show(name: str, ours: list[float], raw: list[float], goal: float) -> None:
    a, b = statistics.median(ours) * 1000, statistics.median(raw) * 1000
    print(f"{name:34s} ours p50 {a:7.2f} ms   raw p50 {b:7.2f} ms   ratio {a / b:5.2f}x   (goal ≤ {goal}x)")


class Raw:
    """`run` and `exec` of a runtime with an equivalent bundle, in a mount namespace of their own."""

    def __init__(self, at: Path, rootfs: Path, config: dict[str, Any], runtime: str) -> None:
        self.at = at
        self.runtime = runtime
        (at / "bundle").mkdir(parents=True)
        for name in ("up", "work", "root"):
            (at / name).mkdir()
        config["root"] = {"path": str(at / "root")}
        config["process"]["args"] = ["/bin/echo", "started"]
        config["linux"]["cgroupsPath"] = "/cloister-bench"
        config["linux"]["resources"] = {
            "memory": {"limit": 2 << 30, "swap": 2 << 30},
            "cpu": {"quota": 200_000, "period": 100_000},
            "pids": {"limit": 512},
        }
        config["mounts"] = [m for m in config["mounts"] if "/.cloister" not in m["destination"]]
        (at / "bundle" / "config.json").write_text(json.dumps(config))
        script = f"""
mount -t overlay overlay -o lowerdir={rootfs},upperdir={at}/up,workdir={at}/work {at}/root
umount -l /sys/fs/cgroup/unified 2>/dev/null
echo ready
while read -r line; do eval "$line" </dev/null 2>{at}/err; echo $?; done
"""
        self.shell = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.shell.stdout is not None
        assert self.shell.stdout.readline() == "ready\n"

    def do(self, line: str, *, says: str | None = None) -> float:
        """Seconds until it is over, or until it has said something: the end of a container is not its start."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        started = time.perf_counter()
        self.shell.stdin.write(line + "\n")
        self.shell.stdin.flush()
        first = self.shell.stdout.readline().strip()
        took = time.perf_counter() - started
        code = first if says is None else self.shell.stdout.readline().strip()
        assert (code, says or code) == ("0", first), (line, first, (self.at / "err").read_text())
        return took

    def call(self, *args: str) -> str:
        return f"{self.runtime} --root {self.at}/state {' '.join(args)}"

    def close(self) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.close()
        self.shell.wait(timeout=30)


async def timed(job: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    started = time.perf_counter()
    await job()
    return time.perf_counter() - started


async def measure(tier: TierName, host: ContainerHost, raw: Raw) -> None:
    async def create_and_exec() -> None:
        nonlocal first
        async with host.open(SandboxSpec()) as sandbox:
            await sandbox.run(TRUE)
            first = time.perf_counter()

    first = 0.0
    ours: list[float] = []
    theirs: list[float] = []
    for n in range(ROUNDS):
        started = time.perf_counter()
        await create_and_exec()
        ours.append(first - started)
        theirs.append(raw.do(raw.call("run", "--bundle", f"{raw.at}/bundle", f"b{n}"), says="started"))
    goals = {"container": (1.5, 0.5), "gvisor": (1.2, 0.5)}[tier]
    show(f"{tier}: create → first exec", ours, theirs, goals[0])

    config = json.loads((raw.at / "bundle" / "config.json").read_text())
    config["process"]["args"] = ["/bin/sleep", "600"]
    (raw.at / "bundle" / "config.json").write_text(json.dumps(config))
    raw.do(raw.call("run", "--detach", "--bundle", f"{raw.at}/bundle", "live", ">/dev/null"))
    try:
        async with host.open(SandboxSpec()) as sandbox:
            ours, theirs = [], []
            for _ in range(ROUNDS * 4):
                ours.append(await timed(lambda: sandbox.run(TRUE)))
                theirs.append(raw.do(raw.call("exec", "live", "/bin/true")))
        show(f"{tier}: exec in a live sandbox", ours, theirs, goals[1])
    finally:
        raw.do(raw.call("delete", "--force", "live"))


async def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="cloister-bench-"))
    os.chmod(directory, 0o711)  # noqa: PTH101  (the raw runtime's user namespace has to pass here)
    owner = new_owner_id()
    with Owners(directory / "owners").hold(owner):
        WARM.mkdir(parents=True, exist_ok=True)
        for name in ("templates", "programs"):
            (WARM / name).mkdir(exist_ok=True)
            (directory / name).symlink_to(WARM / name)
        path = os.environ["PATH"]
        await compare("container", directory, ContainerHost(directory, owner, "crun", path))
        gvisor = ContainerHost(directory, owner, None, path, tier="gvisor")
        if (report := await gvisor.report(again=True)).works:
            await compare("gvisor", directory, gvisor)
        else:
            print(f"gvisor: not measured: {report.found}")
    shutil.rmtree(directory)


async def compare(tier: TierName, directory: Path, host: ContainerHost) -> None:
    await host.prepare("default", lambda fraction, note: None)
    captured = await _config_of_a_real_sandbox(host, directory)
    (rootfs,) = (directory / "templates").glob("default-*/rootfs")
    (report,) = await host.probe()
    assert report.proof is not None
    flags = [flag for flag in report.proof.way.flags if flag != "--ignore-cgroups"] or [
        "--cgroup-manager=cgroupfs"
    ]
    raw = Raw(directory / f"raw-{tier}", rootfs, captured, " ".join((str(report.path), *flags)))
    try:
        await measure(tier, host, raw)
    finally:
        raw.close()
        await host.close()


async def _config_of_a_real_sandbox(host: ContainerHost, directory: Path) -> dict[str, Any]:
    async with host.open(SandboxSpec()):
        (path,) = (directory / "sandboxes").glob("*/config.json")
        return json.loads(path.read_text())


if __name__ == "__main__":
    anyio.run(main)
