"""Every tier, runtime and provider keeps the promises of the conformance suite."""

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from tests.whole.conformance.suites.sandbox import PROMISES, PROVIDER_PROMISES
from tests.whole.conformance.suites.sandbox_files import Promise

from cloister.core.ids import new_owner_id
from cloister.core.requests import TierName
from cloister.sandbox.api import Provider
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.provider import Choices, local_provider
from cloister.testing.local import LocalHost

pytestmark = pytest.mark.anyio

PROMISE_SECONDS = 180.0
WAYS: tuple[tuple[TierName, str], ...] = (("container", "crun"), ("container", "runc"), ("gvisor", "runsc"))

HostOf = Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize(("tier", "runtime"), WAYS, ids=lambda word: word)
async def test_the_tier_keeps_the_promise(
    tier: TierName, runtime: str, promise: Promise, host_of: HostOf, data_dir: Path
) -> None:
    async with host_of(tier, runtime) as host:
        with anyio.fail_after(PROMISE_SECONDS):
            await promise(host)
        await host.close()
    assert list((data_dir / "sandboxes").glob("*")) == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_container_tier_keeps_the_promise_on_the_plain_store(
    promise: Promise, data_dir: Path
) -> None:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, None, os.environ["PATH"], store="overlay")
        with anyio.fail_after(PROMISE_SECONDS):
            await promise(host)
    assert list((data_dir / "sandboxes").glob("*")) == []


ProviderPromise = Callable[[Provider], Awaitable[None]]


@pytest.mark.parametrize("promise", PROVIDER_PROMISES, ids=lambda promise: promise.__name__)
async def test_this_machine_keeps_the_promise_of_a_provider(promise: ProviderPromise, data_dir: Path) -> None:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        provider = local_provider(data_dir, owner, os.environ["PATH"], Choices())
        with anyio.fail_after(PROMISE_SECONDS):
            await promise(provider)
        await provider.close()
    assert list((data_dir / "sandboxes").glob("*")) == []


@pytest.mark.parametrize("promise", PROVIDER_PROMISES, ids=lambda promise: promise.__name__)
async def test_the_directories_of_the_tests_keep_the_promise_of_a_provider(
    promise: ProviderPromise, tmp_path: Path
) -> None:
    await promise(LocalHost(tmp_path))
