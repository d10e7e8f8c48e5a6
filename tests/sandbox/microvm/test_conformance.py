"""The microvm tier keeps the promises of a sandbox."""

from pathlib import Path

import anyio
import pytest
from tests.whole.conformance.suites.sandbox import PROMISES, Promise

from cloister.sandbox.microvm.host import MicrovmHost

pytestmark = pytest.mark.anyio

PROMISE_SECONDS = 300.0


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_microvm_tier_keeps_the_promise(
    promise: Promise, machines: MicrovmHost, data_dir: Path
) -> None:
    with anyio.fail_after(PROMISE_SECONDS):
        await promise(machines)
    assert list((data_dir / "sandboxes").glob("*")) == []
