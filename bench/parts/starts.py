"""From asking for a sandbox to the end of its first command, and one more command in a live one; beside the others."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cloister.core.requests import PoolWish, Quota, TierName
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.pool import open_pool
from parts.place import TRUE, Bench, first_exec, nothing, timed
from parts.raw import Bwrap, Peer, Podman, Runtime, Shell, SweRex, swe_rex_python, why_missing
from parts.table import Goal, Line, ms

SPEC = SandboxSpec()
_SERVER_SECONDS = 60.0


async def containers(bench: Bench) -> None:
    async with bench.containers() as host:
        with ExitStack() as stack:
            peers = [await _runtime(bench, host, "container", stack), *_others(bench, stack)]
            await _creates(bench, host, peers)
            await _execs(bench, host, peers)


async def gvisor(bench: Bench) -> None:
    host = ContainerHost(bench.directory, bench.owner, None, bench.path, tier="gvisor")
    try:
        report = await host.report(again=True)
        if not report.works:
            bench.table.not_measured("gvisor", report.found)
            return
        await host.prepare("default", nothing)
        with ExitStack() as stack:
            raw = await _runtime(bench, host, "gvisor", stack)
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(bench.rounds):
                ours.append(await first_exec(host, SPEC))
                theirs.append(raw.create())
            bench.table.add(
                Line("gvisor: create → first exec", ms(ours), "ms", Goal(1.2, "ratio"), raw.name, ms(theirs))
            )
            async with host.open(SPEC) as sandbox:
                ours, theirs = await _in_turn(bench, sandbox, raw)
            bench.table.add(
                Line("gvisor: exec", ms(ours), "ms", Goal(15), f"{_program(raw)} exec", ms(theirs))
            )
    finally:
        await host.close()


def _program(peer: Peer) -> str:
    return peer.name.split(" run", maxsplit=1)[0]


async def _runtime(bench: Bench, host: ContainerHost, tier: TierName, stack: ExitStack) -> Runtime:
    """The runtime of this host by hand, with the configuration of a real sandbox."""
    async with host.open(SPEC):
        (path,) = (bench.directory / "sandboxes").glob("*/config.json")
        config: dict[str, Any] = json.loads(path.read_text())
    (report,) = [report for report in await host.probe() if report.works][:1]
    assert report.proof is not None
    flags = [flag for flag in report.proof.way.flags if flag != "--ignore-cgroups"]
    shell = stack.enter_context(Shell(bench.directory / f"raw-{tier}", bench.rootfs))
    argv = " ".join((str(report.path), *(flags or ["--cgroup-manager=cgroupfs"])))
    return Runtime(shell, argv, config)


def _others(bench: Bench, stack: ExitStack) -> Iterator[Peer]:
    shell = stack.enter_context(Shell(bench.directory / "raw-others", bench.rootfs))
    for program, kind in (("bwrap", Bwrap), ("podman", Podman)):
        if why := why_missing(program):
            bench.table.not_measured(program, why)
            continue
        peer = kind(shell)
        try:
            peer.create()
        except OSError as error:
            bench.table.not_measured(peer.name, str(error))
        else:
            yield peer
    python = swe_rex_python()
    if isinstance(python, str):
        bench.table.not_measured("SWE-ReX local", python)
        return
    try:
        rex = SweRex(shell, python)
    except OSError as error:
        bench.table.not_measured("SWE-ReX local", str(error))
        return
    stack.callback(rex.close)
    yield rex


async def _creates(bench: Bench, host: ContainerHost, peers: list[Peer]) -> None:
    fresh: list[float] = []
    pooled: list[float] = []
    theirs: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(bench.rounds):
        for peer in peers:
            theirs[peer.name].append(peer.create())
            if peer is peers[0]:
                fresh.append(await first_exec(host, SPEC))
    async with open_pool(host, (PoolWish(size=4),), Quota(), host.templates.version) as pool:
        for _ in range(bench.rounds):
            await pool.filled()
            pooled.append(await first_exec(pool, SPEC))
    what = "container: create → first exec"
    for number, peer in enumerate(peers):
        goal = Goal(1.2, "ratio") if number == 0 else None
        bench.table.add(Line(what, ms(fresh), "ms", goal, peer.name, ms(theirs[peer.name])))
    raw = peers[0].name
    bench.table.add(Line("pooled: create → first exec", ms(pooled), "ms", Goal(5), raw, ms(theirs[raw])))


async def _in_turn(bench: Bench, sandbox: Sandbox, peer: Peer) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    peer.start()
    try:
        for _ in range(bench.rounds * 2):
            ours.append(await timed(lambda: sandbox.run(TRUE)))
            theirs.append(peer.execute())
    finally:
        peer.stop()
    return ours, theirs


async def _execs(bench: Bench, host: ContainerHost, peers: list[Peer]) -> None:
    async with host.open(SPEC) as sandbox:
        for peer in peers:
            if isinstance(peer, Bwrap):
                continue
            ours, theirs = await _in_turn(bench, sandbox, peer)
            name = f"{_program(peer)} exec" if peer.name != "SWE-ReX local" else peer.name
            bench.table.add(Line("container: exec, Python API", ms(ours), "ms", Goal(2), name, ms(theirs)))


def through_http(bench: Bench) -> None:
    """Commands in a sandbox of a real server on loopback, one connection, beside a request that does nothing."""
    with served(bench) as (port, token):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

        def ask(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status < 300, data
            return json.loads(data) if data else None

        made = ask("POST", "/v1/sandboxes", {"tier": "container"})
        path = f"/v1/sandboxes/{made['id']}"
        ours: list[float] = []
        empty: list[float] = []
        for _ in range(bench.rounds * 4):
            began = time.perf_counter()
            done = ask("POST", f"{path}/exec", {"argv": ["/bin/true"], "cwd": "/"})
            ours.append(time.perf_counter() - began)
            assert done["exit_code"] == 0, done
            began = time.perf_counter()
            ask("GET", path)
            empty.append(time.perf_counter() - began)
        ask("DELETE", path)
        connection.close()
    bench.table.add(Line("container: exec, HTTP", ms(ours), "ms", Goal(5), "GET of a sandbox", ms(empty)))


@contextmanager
def served(bench: Bench) -> Generator[tuple[int, str]]:
    data_dir = bench.directory / "server"
    data_dir.mkdir()
    for name in ("templates", "programs"):
        (data_dir / name).symlink_to(bench.directory / name)
    argv = [sys.executable, "-m", "cloister", "--data-dir", str(data_dir), "serve", "--port", "0"]
    log = data_dir / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(argv, stdout=file, stderr=file, env=dict(os.environ))
    try:
        announced = data_dir / "server.json"
        patience = time.monotonic() + _SERVER_SECONDS
        while not announced.exists():
            if server.poll() is not None or time.monotonic() > patience:
                raise OSError(f"the server did not start: {log.read_text()[-500:]}")
            time.sleep(0.05)
        yield json.loads(announced.read_text())["port"], (data_dir / "token").read_text().strip()
    finally:
        server.terminate()
        server.wait(timeout=30)
