import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import anyio
import pytest

from cloister.core.computer import Command, shell
from cloister.core.errors import Bug, HostError, SandboxLost
from cloister.core.ids import new_owner_id
from cloister.core.requests import Quota, TierName
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.container.sandbox import ContainerSandbox
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.names import Name, parse_name

pytestmark = pytest.mark.anyio

PATH = os.environ["PATH"]
HostOf = Callable[[TierName, str | None], AbstractAsyncContextManager[ContainerHost]]


def groups_of(owner: str) -> list[str]:
    return [name for name in cgroup.names(cgroup.read_layout()) if f".{owner}." in name]


def names_in(data_dir: Path) -> list[Name]:
    return [name for path in (data_dir / "sandboxes").iterdir() if (name := parse_name(path.name))]


async def test_a_sandbox_reports_its_isolation(host: ContainerHost) -> None:
    async with host.open(SandboxSpec(quota=Quota(cpus=1.0), ttl_seconds=600)) as sandbox:
        info = sandbox.info
        assert (info.isolation.tier, info.isolation.shares_kernel) == ("container", True)
        assert info.isolation.store.split()[0] in ("btrfs", "btrfs-loop", "reflink+copy", "overlay+copy")
        assert info.isolation.runtime.split()[0] in ("crun", "runc")
        assert (info.template, info.quota.cpus, info.parent) == ("default", 1.0, None)
        assert info.expires_at == info.created_at + 600


async def test_while_it_lives_its_directory_and_cgroups_carry_its_name_and_then_they_are_gone(
    host: ContainerHost, data_dir: Path
) -> None:
    async with host.open(SandboxSpec()) as sandbox:
        (name,) = names_in(data_dir)
        assert name.sandbox == sandbox.info.id
        assert groups_of(name.owner) == [str(name)]
    assert names_in(data_dir) == []
    assert groups_of(name.owner) == []


def processes(sandbox: str) -> set[tuple[str, str]]:
    """The processes of a sandbox on this machine, living or dead, each by its id and the time of its start."""
    found: set[tuple[str, str]] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"/cloister/{sandbox}." in (entry / "cgroup").read_text():
                found.add((entry.name, started_at(entry)))
    return found


def started_at(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[19]


def still_there(found: set[tuple[str, str]]) -> list[str]:
    left: list[str] = []
    for pid, start in found:
        with suppress(OSError):
            if started_at(Path("/proc") / pid) == start:
                left.append((Path("/proc") / pid / "stat").read_text())
    return left


@pytest.mark.parametrize("tier", ["container", "gvisor"])
@pytest.mark.parametrize("end", ["closed", "killed"])
async def test_no_process_of_a_sandbox_is_left_when_it_is_closed_not_even_a_dead_one(
    host_of: HostOf, tier: TierName, end: str
) -> None:
    async with host_of(tier, None) as host:
        async with host.open(SandboxSpec()) as sandbox:
            assert (await sandbox.run(shell("(sleep 900 &); (setsid sleep 901 &); (sh -c 'sleep 902' &)"))).ok
            lived = processes(sandbox.info.id)
            if end == "killed":
                assert isinstance(sandbox, ContainerSandbox)
                await sandbox.fail("enough")
                await sandbox.wait_lost()
        left = still_there(lived)
    assert lived
    assert left == []


async def test_cancelling_in_the_middle_leaves_nothing(host: ContainerHost, data_dir: Path) -> None:
    for moments in range(0, 40, 4):
        with anyio.move_on_after(moments / 1000):
            async with host.open(SandboxSpec()) as sandbox, sandbox.fork(), sandbox.start(shell("sleep 970")):
                await anyio.sleep_forever()
        assert not (data_dir / "sandboxes").exists() or names_in(data_dir) == []


async def test_a_sandbox_killed_from_outside_is_lost_and_then_removed(
    host: ContainerHost, data_dir: Path
) -> None:
    with anyio.fail_after(60):
        async with host.open(SandboxSpec()) as sandbox:
            (name,) = names_in(data_dir)
            async with anyio.create_task_group() as tasks:

                async def work() -> None:
                    with pytest.raises(SandboxLost):
                        await sandbox.run(Command(("sleep", "971")))

                tasks.start_soon(work)
                cgroup.Cgroup(cgroup.read_layout(), str(name)).kill()
            assert await sandbox.wait_lost()
    assert names_in(data_dir) == []


async def test_a_runtime_that_fails_is_quoted(data_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken-runtime"
    broken.write_text("#!/bin/sh\necho 'the moon is in the wrong phase' >&2\nexit 1\n")
    broken.chmod(0o755)
    (data_dir / "runtimes.json").unlink()
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, str(broken), PATH)
        with pytest.raises(HostError) as refused:
            async with host.open(SandboxSpec()):
                pass
        assert refused.value.code == "no_runtime"
        assert "the moon is in the wrong phase" in refused.value.message
        (report,) = await host.probe()
        assert (report.works, report.path) == (False, broken)
        assert report.fix is not None
    assert names_in(data_dir) == []
    assert groups_of(owner) == []


async def test_a_runtime_that_is_not_installed_is_named_with_what_to_do(data_dir: Path) -> None:
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        host = ContainerHost(data_dir, owner, "no-such-runtime", PATH)
        with pytest.raises(HostError) as refused:
            async with host.open(SandboxSpec()):
                pass
        assert refused.value.code == "no_runtime"
        (report,) = await host.probe()
        assert (report.works, report.path, report.version) == (False, None, None)
        assert report.why == "no-such-runtime is not installed."
        (crun, runc) = await ContainerHost(data_dir, owner, None, str(data_dir)).probe()
        assert (crun.fix, runc.fix) == ("apt-get install crun", "apt-get install runc")


@pytest.mark.skipif(shutil.which("crun") is None, reason="crun is not installed")
async def test_a_trial_that_went_well_is_remembered_until_the_runtime_changes(
    data_dir: Path, tmp_path: Path
) -> None:
    counted = tmp_path / "counted"
    wrapper = tmp_path / "crun"
    wrapper.write_text(f'#!/bin/sh\necho tried >> {counted}\nexec {shutil.which("crun")} "$@"\n')
    wrapper.chmod(0o755)
    (data_dir / "runtimes.json").unlink()
    owner = new_owner_id()

    async def starts() -> int:
        before = counted.read_text().count("tried") if counted.exists() else 0
        async with ContainerHost(data_dir, owner, str(wrapper), PATH).open(SandboxSpec()):
            return counted.read_text().count("tried") - before

    with Owners(data_dir / "owners").hold(owner):
        with_trial = await starts()
        assert (await starts(), with_trial > 1) == (1, True)
        os.utime(wrapper, (1, 1))
        assert await starts() == with_trial


@pytest.mark.skipif(shutil.which("crun") is None, reason="crun is not installed")
async def test_a_runtime_that_failed_its_trial_is_tried_again(data_dir: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "crun"
    switch = tmp_path / "mended"
    wrapper.write_text(f'#!/bin/sh\n[ -e {switch} ] || exit 1\nexec {shutil.which("crun")} "$@"\n')
    wrapper.chmod(0o755)
    (data_dir / "runtimes.json").unlink()
    owner = new_owner_id()
    with Owners(data_dir / "owners").hold(owner):
        with pytest.raises(HostError) as refused:
            async with ContainerHost(data_dir, owner, str(wrapper), PATH).open(SandboxSpec()):
                pass
        assert refused.value.code == "no_runtime"
        switch.touch()
        async with ContainerHost(data_dir, owner, str(wrapper), PATH).open(SandboxSpec()) as sandbox:
            assert (await sandbox.run(Command(("true",)))).ok


async def test_without_a_template_or_an_owner_nothing_is_opened(tmp_path: Path, data_dir: Path) -> None:
    empty = ContainerHost(tmp_path / "empty", new_owner_id(), None, PATH)
    with pytest.raises(HostError) as refused:
        async with empty.open(SandboxSpec()):
            pass
    assert refused.value.code == "no_template"
    assert await empty.sweep() == 0
    with pytest.raises(Bug):
        async with ContainerHost(data_dir, new_owner_id(), "crun", PATH).open(SandboxSpec()):
            pass


def test_without_root_the_answer_is_one_sentence(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
import anyio
from cloister.core.errors import HostError
from cloister.core.ids import new_owner_id
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container import host as container
async def main():
    os.setresuid(65534, 65534, 65534)
    host = container.ContainerHost(Path({str(tmp_path)!r}), new_owner_id(), None, {PATH!r})
    try:
        async with host.open(SandboxSpec()):
            pass
    except HostError as error:
        print(error.code, error.message)
anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.stdout == b"no_root Sandboxes need root on this machine: run with sudo.\n", done.stderr


async def test_closing_many_at_once_leaves_nothing(host: ContainerHost, data_dir: Path) -> None:
    async def one() -> None:
        async with host.open(SandboxSpec()) as sandbox:
            assert (await sandbox.run(Command(("true",)))).ok

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(one)
    assert names_in(data_dir) == []
