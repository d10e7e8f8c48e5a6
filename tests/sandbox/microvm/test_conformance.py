"""The microvm tier keeps the promises of a sandbox."""

from pathlib import Path

import anyio
import pytest

from cloister.core.errors import UserError
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.microvm.vm import MicrovmHost
from cloister.testing.sandbox_conformance import OF_FILES_ALONE, PROMISES, Promise

pytestmark = pytest.mark.anyio

PROMISE_SECONDS = 300.0


OURS = [promise for promise in PROMISES if promise not in OF_FILES_ALONE]


async def test_a_machine_cannot_be_kept_as_a_snapshot_and_says_what_to_do(
    machines: MicrovmHost, small: SandboxSpec
) -> None:
    async with machines.open(small) as sandbox:
        with pytest.raises(UserError) as refused:
            await sandbox.snapshot()
    assert refused.value.code == "no_snapshots"
    assert await machines.snapshots() == ()


@pytest.mark.parametrize("promise", OURS, ids=lambda promise: promise.__name__)
async def test_the_microvm_tier_keeps_the_promise(
    promise: Promise, machines: MicrovmHost, data_dir: Path
) -> None:
    with anyio.fail_after(PROMISE_SECONDS):
        await promise(machines)
    assert list((data_dir / "sandboxes").glob("*")) == []
