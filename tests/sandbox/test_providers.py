import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import get_args

import anyio
import msgspec
import pytest

from cloister.cli.options import TierWish
from cloister.core.computer import Command
from cloister.core.errors import HostError, UserError
from cloister.core.ids import SandboxId, SnapshotId, new_owner_id
from cloister.core.requests import NewRun, Quota, Tier, TierName
from cloister.sandbox.api import SandboxSpec, SnapshotInfo, TierReport
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local.provider import Choices, local_provider
from cloister.sandbox.providers import STRENGTH, Providers, able_to_open, choose, which
from cloister.testing.local import ISOLATION, LocalHost

pytestmark = pytest.mark.anyio

PATH = os.environ["PATH"]
CONTAINER = TierReport("container", works=True, native=True, found="crun 1, self-test passed")
GVISOR = TierReport("gvisor", works=True, native=True, found="runsc 1 on systrap, self-test passed")
SLOW = TierReport(
    "gvisor", works=True, native=False, found="runsc 1 on ptrace, self-test passed", fix="a newer one"
)
ABSENT = TierReport(
    "gvisor", works=False, native=False, found="runsc is not installed.", fix="apt-get install runsc"
)
BROKEN = TierReport("container", works=False, native=False, found="crun is not installed.")


@pytest.mark.parametrize(
    ("reports", "strongest"),
    [
        ((CONTAINER, GVISOR), "gvisor"),
        ((CONTAINER, SLOW), "container"),
        ((CONTAINER, ABSENT), "container"),
        ((BROKEN, GVISOR), "gvisor"),
    ],
)
def test_auto_is_the_strongest_that_works_at_native_speed(
    reports: tuple[TierReport, ...], strongest: TierName
) -> None:
    assert choose("auto", reports).tier == strongest


def test_auto_takes_nothing_slow_and_nothing_broken_and_says_why() -> None:
    with pytest.raises(HostError) as refused:
        choose("auto", (BROKEN, SLOW))
    assert refused.value.code == "no_tier"
    assert "crun is not installed" in refused.value.message
    assert "ptrace" in refused.value.message


def test_a_tier_asked_for_by_name_may_be_slow_but_is_never_another_one() -> None:
    assert choose("gvisor", (SLOW,)) == SLOW
    with pytest.raises(HostError) as refused:
        choose("gvisor", (ABSENT,))
    assert refused.value.code == "no_tier"
    assert "runsc is not installed" in refused.value.message
    assert "apt-get install runsc" in refused.value.message


def test_of_two_providers_with_the_same_tier_the_first_one_is_taken() -> None:
    elsewhere = msgspec.structs.replace(CONTAINER, provider="elsewhere")
    assert choose("auto", (CONTAINER, elsewhere)) == choose("container", (CONTAINER, elsewhere)) == CONTAINER
    assert choose("auto", (BROKEN, elsewhere)) == choose("container", (BROKEN, elsewhere)) == elsewhere


def test_auto_never_takes_a_tier_whose_strength_is_not_known() -> None:
    new = msgspec.structs.replace(CONTAINER, tier="jail")
    assert choose("auto", (CONTAINER, new)) == CONTAINER
    assert choose("jail", (new,)) == new
    with pytest.raises(HostError):
        choose("auto", (new,))


def kept(number: int, tier: TierName) -> SnapshotInfo:
    return SnapshotInfo(
        SnapshotId(f"sn-{number}"), "name", None, SandboxId("s-1"), "default", float(number), 0, tier
    )


def test_a_snapshot_opens_where_its_files_can_be_read_and_nowhere_else() -> None:
    files, machine = kept(1, "gvisor"), kept(2, "microvm")
    assert able_to_open(files) == {"container", "gvisor"}
    assert able_to_open(machine) == {"microvm"}
    assert which("name", (files,), "auto") == which("name", (files, machine), "container") == files
    assert which("name", (files, machine), "microvm") == machine


@pytest.mark.parametrize(
    ("found", "tier", "code"),
    [
        ((), "auto", "unknown_snapshot"),
        ((kept(1, "container"),), "microvm", "wrong_tier"),
        ((kept(1, "microvm"),), "gvisor", "wrong_tier"),
        ((kept(1, "container"), kept(2, "microvm")), "auto", "ambiguous_snapshot"),
    ],
)
def test_a_snapshot_that_cannot_be_meant_is_refused(
    found: tuple[SnapshotInfo, ...], tier: Tier, code: str
) -> None:
    with pytest.raises(UserError) as refused:
        which("name", found, tier)
    assert refused.value.code == code


def test_every_tier_can_be_asked_for_everywhere() -> None:
    for tier in ("auto", *STRENGTH):
        asked = msgspec.json.encode({"prompt": "p", "repo": "r", "tier": tier})
        assert msgspec.json.decode(asked, type=NewRun).tier == tier
        assert tier in get_args(TierWish)[1].help


@asynccontextmanager
async def tiers_of(data_dir: Path, *, runsc: str | None = None) -> AsyncGenerator[Providers]:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        tiers = Providers((local_provider(data_dir, owner, PATH, Choices(runsc=runsc)),))
        try:
            yield tiers
        finally:
            await tiers.close()


async def test_another_provider_is_added_by_registering_it(data_dir: Path, tmp_path: Path) -> None:
    """A provider whose tier is stronger than all of this machine's gets the sandboxes that ask for `auto`."""

    class Stronger(LocalHost):
        tiers = ("microvm",)

    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        local = local_provider(data_dir, owner, PATH, Choices(runsc="no-such-runsc"))
        both = Providers((local, Stronger(tmp_path / "elsewhere")))
        assert both.tiers == STRENGTH
        async with both.open(SandboxSpec()) as strongest, both.open(SandboxSpec(tier="container")) as named:
            assert strongest.info.isolation.provider == ISOLATION.provider
            assert (named.info.isolation.provider, named.info.isolation.tier) == ("local", "container")
        await both.close()


async def test_an_unknown_tier_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    tiers = Providers((local_provider(tmp_path, new_owner_id(), str(tmp_path), Choices()),))
    with pytest.raises(UserError) as refused:
        async with tiers.open(SandboxSpec(tier="jail")):
            pass
    assert refused.value.code == "unknown_tier"
    assert refused.value.message == (
        "There is no tier 'jail' here: use one of auto, container, gvisor, microvm."
    )


async def test_a_tier_that_is_not_here_is_refused_while_the_others_work(data_dir: Path) -> None:
    async with tiers_of(data_dir, runsc="no-such-runsc") as tiers:
        with pytest.raises(HostError) as refused:
            async with tiers.open(SandboxSpec(tier="gvisor")):
                pass
        assert refused.value.code == "no_tier"
        assert "no-such-runsc is not installed" in refused.value.message
        async with tiers.open(SandboxSpec()) as sandbox:
            assert sandbox.info.isolation.tier == "container"
            assert (await sandbox.run(Command(("true",)))).ok
        (container, gvisor, _) = await tiers.reports()
        assert (container.works, gvisor.works) == (True, False)


async def test_a_runsc_that_dies_of_many_programs_is_not_used(data_dir: Path, tmp_path: Path) -> None:
    # It says what gVisor says, and what it starts runs well until ten programs are started at once.
    broken = tmp_path / "runsc"
    broken.write_text(FRAGILE)
    broken.chmod(0o755)
    async with tiers_of(data_dir, runsc=str(broken)) as tiers:
        with pytest.raises(HostError) as refused:
            async with tiers.open(SandboxSpec(tier="gvisor")):
                pass
    assert refused.value.code == "no_tier"
    assert "could not be started" in refused.value.message


FRAGILE = """#!/bin/sh
[ "$1" = flags ] && { echo '  -network value'; echo 'which platform to use: ptrace'; exit; }
while [ "$1" != --root ]; do shift; done
sed -i 's/"rlimits":\\[/&{"type":"RLIMIT_NPROC","soft":4,"hard":4},/' "$5/config.json"
exec crun --cgroup-manager=disabled "$@"
"""


async def test_an_impossible_spec_is_refused_before_any_self_test(tmp_path: Path) -> None:
    tiers = Providers((local_provider(tmp_path, new_owner_id(), str(tmp_path), Choices()),))
    with pytest.raises(UserError) as refused:
        async with tiers.open(SandboxSpec(tier="gvisor", quota=Quota(memory_bytes=1))):
            pass
    assert refused.value.code == "bad_sandbox"


async def test_a_snapshot_of_a_machine_and_one_of_files_are_listed_opened_and_deleted_alike(
    data_dir: Path, machine_dir: Path
) -> None:
    name = f"kept-{new_owner_id()}"
    small = Quota(memory_bytes=256 << 20)
    with anyio.fail_after(120):
        async with tiers_of(data_dir) as tiers:
            both: tuple[TierName, TierName] = ("container", "microvm")
            for tier in both:
                async with tiers.open(SandboxSpec(tier=tier, quota=small)) as sandbox:
                    await sandbox.write("file", tier.encode())
                    await sandbox.snapshot(f"{name}-{tier}")
            ours = [info for info in await tiers.snapshots() if (info.name or "").startswith(name)]
            assert [info.tier for info in ours] == ["container", "microvm"]
            for info in ours:
                async with tiers.open(SandboxSpec(f"snapshot:{info.name}", quota=small)) as opened:
                    assert opened.info.isolation.tier == info.tier
                    assert await opened.read("file") == info.tier.encode()
                with pytest.raises(UserError) as refused:
                    wrong: Tier = "microvm" if info.tier == "container" else "gvisor"
                    async with tiers.open(SandboxSpec(f"snapshot:{info.name}", tier=wrong, quota=small)):
                        pass
                assert refused.value.code == "wrong_tier"
                await tiers.delete_snapshot(info.id)
            assert not {info.id for info in ours} & {info.id for info in await tiers.snapshots()}


async def test_the_same_trial_is_not_made_twice(data_dir: Path) -> None:
    async with tiers_of(data_dir) as tiers:
        first = await tiers.reports()
    async with tiers_of(data_dir) as tiers:
        assert await tiers.reports() == first, "the measured time would differ"


async def test_a_gvisor_sandbox_reports_its_isolation(
    host_of: Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]],
) -> None:
    async with host_of("gvisor", None) as host, host.open(SandboxSpec(tier="gvisor")) as sandbox:
        isolation = sandbox.info.isolation
        assert (isolation.tier, isolation.shares_kernel, isolation.seccomp) == ("gvisor", False, True)
        assert isolation.runtime.startswith("runsc ")
        assert isolation.platform in ("systrap", "ptrace")
        told = (await sandbox.run(Command(("uname", "-r")))).out.decode().strip()
        assert told != os.uname().release, "the kernel inside is not this machine's"
