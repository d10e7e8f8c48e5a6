"""A place for virtual machines, whose kernel, disk and images are kept between test sessions."""

import os
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from cloister.core.errors import HostError
from cloister.core.ids import new_owner_id
from cloister.core.records import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.microvm.vm import MicrovmHost
from cloister.sandbox.owners import Owners

SMALL = SandboxSpec(quota=Quota(memory_bytes=256 << 20))
"""Software emulation is slow and the machine is shared: small is enough nearly everywhere."""


@pytest.fixture
def small() -> SandboxSpec:
    return SMALL


@pytest.fixture(scope="session")
def machine_dir(warm_dir: Path) -> Path:
    """The data directory that keeps what is slow to make. Skips, with the reason, where no machine boots."""
    owner = new_owner_id()

    async def warm() -> None:
        warm_host = MicrovmHost(warm_dir, owner, None, os.environ["PATH"])
        reports = await warm_host.probe()
        if not any(report.works for report in reports):
            raise HostError("no_runtime", " ".join(report.why or "" for report in reports))
        async with warm_host.open(SMALL):
            pass

    try:
        with Owners(warm_dir / "owners").hold(owner):
            anyio.run(warm)
    except HostError as error:
        pytest.skip(f"no virtual machines here ({error.code}): {error.message}")
    return warm_dir


@pytest.fixture
def data_dir(machine_dir: Path, data_dir: Path) -> Path:
    (data_dir / "microvm").symlink_to(machine_dir / "microvm")
    return data_dir


@pytest.fixture
def machines(data_dir: Path) -> Generator[MicrovmHost]:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        yield MicrovmHost(data_dir, owner, None, os.environ["PATH"])
