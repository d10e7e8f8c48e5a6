"""A place for virtual machines, whose kernel, disk and images are kept between test sessions."""

import os
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.liveness import Owners
from cloister.sandbox.microvm.host import MicrovmHost

SMALL = SandboxSpec(quota=Quota(memory_bytes=256 << 20))
"""Software emulation is slow and the machine is shared: small is enough nearly everywhere."""


@pytest.fixture
def small() -> SandboxSpec:
    return SMALL


@pytest.fixture
def machines(data_dir: Path, machine_dir: Path) -> Generator[MicrovmHost]:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        opened = MicrovmHost(data_dir, owner, None, os.environ["PATH"])
        yield opened
        anyio.run(opened.close)
