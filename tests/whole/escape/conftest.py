"""Hostile programs run as hostile programs do: with a compiler, a script language and root inside."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conftest import borrowing, host_on

from cloister.core.computer import shell
from cloister.core.ids import new_owner_id
from cloister.core.requests import TierName
from cloister.sandbox.api import Host, Sandbox, SandboxSpec
from cloister.sandbox.liveness import Owners
from cloister.sandbox.microvm.host import MicrovmHost

TIERS: tuple[TierName, ...] = ("container", "gvisor", "microvm")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the tests of a file, which share sandboxes."""
    return "asyncio"


@pytest.fixture(params=TIERS, scope="module")
def tier(request: pytest.FixtureRequest) -> TierName:
    """Each hostile program is tried on each tier."""
    return request.param


@pytest.fixture(scope="module")
def prepared(tier: TierName, request: pytest.FixtureRequest) -> None:
    """What a tier needs beforehand. Not asynchronous, because making it runs an event loop of its own."""
    if tier == "microvm":
        request.getfixturevalue("machine_dir")


@asynccontextmanager
async def host_at(data_dir: Path, tier: TierName) -> AsyncGenerator[Host]:
    if tier != "microvm":
        async with host_on(data_dir, tier, None) as found:
            yield found
        return
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        machines = MicrovmHost(data_dir, owner, None, os.environ["PATH"])
        yield machines
        await machines.close()


@pytest.fixture
async def host(tier: TierName, data_dir: Path, prepared: None) -> AsyncGenerator[Host]:
    """A place for sandboxes, of each tier in turn."""
    async with host_at(data_dir, tier) as found:
        yield found


@pytest.fixture(scope="module")
def shared_dir(warm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return borrowing(warm_dir, tmp_path_factory.mktemp("shared") / "data")


@pytest.fixture(scope="module")
async def shared(tier: TierName, shared_dir: Path, prepared: None) -> AsyncGenerator[Sandbox]:
    """One sandbox of each tier for all tests of a file that leave nothing behind that another could mind."""
    async with host_at(shared_dir, tier) as found, found.open(SandboxSpec()) as opened:
        yield opened


@pytest.fixture
def containers_only(tier: TierName) -> None:
    if tier == "microvm":
        pytest.skip("about what a container shares with this machine; a virtual machine does not")


@pytest.fixture
async def sandbox(host: Host) -> AsyncGenerator[Sandbox]:
    async with host.open(SandboxSpec()) as opened:
        yield opened


@pytest.fixture(scope="module")
async def prober(shared: Sandbox) -> Sandbox:
    """A sandbox with `/work/probe`, which makes one system call and prints its result or the error's name."""
    await shared.write("probe.c", PROBE.encode())
    built = await shared.run(shell("cc -o probe probe.c"))
    assert built.ok, built.err
    return shared


@pytest.fixture
def pids_of() -> Callable[[Sandbox], list[int]]:
    """Finds the host's ids of the living processes in a sandbox's user namespaces, its first process first."""
    return _pids_of


def _pids_of(sandbox: Sandbox) -> list[int]:
    own = Path("/proc/self/ns/user").readlink()
    found: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            belongs = f"/cloister/{sandbox.info.id}." in (directory / "cgroup").read_text()
            if belongs and (directory / "ns/user").readlink() != own and not _is_zombie(directory):
                found.append(int(directory.name))
        except OSError:
            continue  # It ended while we looked.
    return sorted(found)


def _is_zombie(process: Path) -> bool:
    return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


PROBE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* probe NUMBER ARGUMENT...: an argument is a number, or text that starts with '@'. */
int main(int argc, char **argv) {
    long a[6] = {0};
    static char scratch[4096];
    for (int i = 2; i < argc && i < 8; i++)
        a[i - 2] = argv[i][0] == '@' ? (long)(argv[i] + 1)
                 : !strcmp(argv[i], "buffer") ? (long)scratch : strtol(argv[i], NULL, 0);
    errno = 0;
    long result = syscall(strtol(argv[1], NULL, 0), a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result < 0)
        puts(strerrorname_np(errno));
    else
        printf("%ld\n", result);
    return 0;
}
"""
