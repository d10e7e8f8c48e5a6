"""A pooled sandbox keeps every promise that any sandbox makes."""

import anyio
import pytest
from tests.whole.conformance.suites.sandbox import PROMISES, Promise

from cloister.core.requests import PoolWish, Quota
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.pool import open_pool

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_a_pooled_sandbox_keeps_the_promise(host: ContainerHost, promise: Promise) -> None:
    async with open_pool(host, (PoolWish(size=1),), Quota(), host.templates.version) as pool:
        with anyio.fail_after(60):
            await pool.filled()
        await promise(pool)
