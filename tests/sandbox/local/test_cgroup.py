import os
import subprocess
from pathlib import Path

import anyio
import pytest

from cloister.core.errors import HostError
from cloister.core.ids import new_owner_id, new_sandbox_id
from cloister.core.requests import Quota
from cloister.sandbox.container.oci import Name
from cloister.sandbox.local.cgroup import (
    RUNTIME_TASKS,
    Cgroup,
    Group,
    Layout,
    groups_for,
    parse_mounts,
    read_layout,
)

pytestmark = pytest.mark.anyio

HYBRID = """\
31 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
35 31 0:30 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
36 31 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
ROOT = Path("/sys/fs/cgroup")
QUOTA = Quota(cpus=1.5, memory_bytes=1 << 30, processes=100)


def test_the_layout_is_read_from_the_mounts() -> None:
    v1, v2 = parse_mounts(HYBRID)
    assert v1 == {
        "cpu": ROOT / "cpu,cpuacct",
        "cpuacct": ROOT / "cpu,cpuacct",
        "memory": ROOT / "memory",
        "pids": ROOT / "pids",
        "name=systemd": ROOT / "systemd",
    }
    assert v2 == ROOT / "unified"
    assert parse_mounts(UNIFIED) == ({}, ROOT)
    assert parse_mounts("broken\n\n1 2 3 - cgroup\n") == ({}, None)


def test_a_unified_machine_gets_all_limits_in_one_group() -> None:
    layout = Layout({}, ROOT, frozenset({"memory", "cpu", "pids", "io"}))
    assert groups_for(layout, "x", QUOTA) == (
        Group(
            ROOT / "cloister/x",
            (
                ("memory.max", "1073741824"),
                ("memory.swap.max", "0"),
                ("cpu.max", "150000 100000"),
                ("pids.max", "124"),
            ),
            ("memory.memsw.limit_in_bytes", "memory.swap.max"),
        ),
    )


def test_a_mixed_machine_gets_limits_from_v1_and_a_group_in_v2_to_kill() -> None:
    v1, v2 = parse_mounts(HYBRID)
    groups = groups_for(Layout(v1, v2, frozenset({"hugetlb"})), "x", QUOTA)
    assert {group.path: dict(group.limits) for group in groups} == {
        ROOT / "unified/cloister/x": {},
        ROOT / "memory/cloister/x": {
            "memory.limit_in_bytes": "1073741824",
            "memory.memsw.limit_in_bytes": "1073741824",
        },
        ROOT / "cpu,cpuacct/cloister/x": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"},
        ROOT / "pids/cloister/x": {"pids.max": "124"},
    }


def test_missing_controllers_are_refused_by_name() -> None:
    with pytest.raises(HostError) as refused:
        groups_for(Layout({"memory": ROOT / "memory"}, ROOT / "unified", frozenset({"pids"})), "x", QUOTA)
    assert refused.value.code == "no_limits"
    assert "cpu" in refused.value.message


@pytest.fixture
def layout() -> Layout:
    found = read_layout()
    if os.geteuid() != 0:
        pytest.skip("cgroups need root")
    if found.missing():
        pytest.skip(f"this machine has no cgroup controllers for {', '.join(found.missing())}")
    return found


def fresh_name() -> str:
    return str(Name(new_sandbox_id(), new_owner_id(), 0x7001))


JOIN = 'for f in "$@"; do echo 0 > "$f" || exit 9; done; '


def start_inside(group: Cgroup, script: str) -> "subprocess.Popen[bytes]":
    argv = ["/bin/sh", "-c", JOIN + script, "sh", *map(str, group.procs_files())]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_removing_a_group_kills_everything_in_it_however_it_resists(layout: Layout) -> None:
    group = Cgroup.create(layout, fresh_name(), QUOTA)
    script = "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM; sleep 1000' &) ; echo up; sleep 1000"
    with start_inside(group, script) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        assert shell.pid in group.pids()
        with anyio.fail_after(20):
            await group.remove()
        assert shell.wait(10) == -9
        assert shell.stdout.read() == b"", "nobody holds the pipe any more"
    assert not group.exists


async def test_a_frozen_group_stands_still_and_goes_on_afterwards(layout: Layout) -> None:
    group = Cgroup.create(layout, fresh_name(), QUOTA)
    try:
        with start_inside(group, "echo up; read line; echo $line") as shell:
            assert shell.stdout is not None and shell.stdin is not None
            assert shell.stdout.readline() == b"up\n"
            with anyio.fail_after(20):
                async with group.frozen():
                    shell.stdin.write(b"hello\n")
                    shell.stdin.flush()
                    os.set_blocking(shell.stdout.fileno(), False)
                    assert shell.stdout.read() is None, "nothing is printed while it is frozen"
                    os.set_blocking(shell.stdout.fileno(), True)
            assert shell.stdout.readline() == b"hello\n"
    finally:
        await group.remove()


async def test_a_group_can_be_removed_while_it_is_frozen(layout: Layout) -> None:
    group = Cgroup.create(layout, fresh_name(), QUOTA)
    with start_inside(group, "echo up; sleep 1000") as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        with anyio.fail_after(20):
            async with group.frozen():
                await group.remove()
        assert shell.wait(10) == -9


async def test_processes_and_memory_are_limited_and_out_of_memory_is_counted(layout: Layout) -> None:
    group = Cgroup.create(layout, fresh_name(), Quota(memory_bytes=64 << 20, processes=8))
    try:
        with start_inside(group, "for i in $(seq 200); do sleep 60 & done") as shell:
            assert shell.wait(20) != 0, "the shell cannot fork that often"
            assert 8 <= len(group.pids()) <= 8 + RUNTIME_TASKS
            group.kill()
        assert group.oom_kills() == 0
        hog = "import sys; x = bytearray(512 << 20); print('got it')"
        with start_inside(group, f'exec python3 -c "{hog}"') as shell:
            out, _ = shell.communicate(timeout=60)
        assert out == b""
        assert shell.returncode == -9
        assert group.oom_kills() == 1
    finally:
        await group.remove()


async def test_making_a_group_twice_is_refused_and_leaves_the_first_alone(layout: Layout) -> None:
    name = fresh_name()
    group = Cgroup.create(layout, name, QUOTA)
    try:
        with start_inside(group, "echo up; read line") as shell:
            assert shell.stdout is not None
            shell.stdout.readline()
            with pytest.raises(HostError):
                Cgroup.create(layout, name, QUOTA)
            assert shell.pid in group.pids()
    finally:
        await group.remove()
