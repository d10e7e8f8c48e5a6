"""Hostile programs run as hostile programs do: with a compiler, a script language and root inside."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from cloister.core.commands import shell
from cloister.core.ids import new_owner_id
from cloister.core.records import TierName
from cloister.sandbox.api import Host, Sandbox, SandboxSpec
from cloister.sandbox.container import ContainerHost
from cloister.sandbox.microvm.vm import MicrovmHost
from cloister.sandbox.owners import Owners

TIERS: tuple[TierName, ...] = ("container", "gvisor", "microvm")


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> TierName:
    """Each hostile program is tried on each tier."""
    return request.param


@pytest.fixture
def prepared(tier: TierName, request: pytest.FixtureRequest) -> None:
    """What a tier needs beforehand. Not asynchronous, because making it runs an event loop of its own."""
    if tier == "microvm":
        request.getfixturevalue("machine_dir")


@pytest.fixture
async def host(
    tier: TierName,
    data_dir: Path,
    prepared: None,
    host_of: Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]],
) -> AsyncGenerator[Host]:
    """A place for sandboxes, of each tier in turn."""
    if tier != "microvm":
        async with host_of(tier, None) as found:
            yield found
        return
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        machines = MicrovmHost(data_dir, owner, None, os.environ["PATH"])
        yield machines
        await machines.close()


@pytest.fixture
def containers_only(tier: TierName) -> None:
    if tier == "microvm":
        pytest.skip("about what a container shares with this machine; a virtual machine does not")


@pytest.fixture
async def sandbox(host: Host) -> AsyncGenerator[Sandbox]:
    async with host.open(SandboxSpec()) as opened:
        yield opened


@pytest.fixture
async def prober(sandbox: Sandbox) -> Sandbox:
    """A sandbox with `/work/probe`, which makes one system call and prints its result or the error's name."""
    await sandbox.write("probe.c", PROBE.encode())
    built = await sandbox.run(shell("cc -o probe probe.c"))
    assert built.ok, built.err
    return sandbox


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
