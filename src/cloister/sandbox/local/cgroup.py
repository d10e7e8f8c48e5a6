"""Control groups: limit, freeze and kill the processes of a sandbox.

Supports v2, v1 and the hybrid of both: limits are set where the controllers are; freezing and killing use v2 wherever
that tree exists.
"""

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError
from cloister.core.requests import Quota

PARENT = "cloister"
"""The directory of ours in each hierarchy."""

RUNTIME_TASKS = 24
"""Threads of the OCI runtime and of the guest, on top of the processes a sandbox may have."""

CONTROLLERS = ("memory", "cpu", "pids")
_V1_CONTROLLERS = frozenset(
    f"{' '.join(CONTROLLERS)} cpuacct cpuset devices freezer blkio hugetlb net_cls net_prio perf_event rdma misc".split()
)
_PERIOD_MICROSECONDS = 100_000
_PATIENCE_SECONDS = 10.0


class Layout(msgspec.Struct, frozen=True):
    """Where this machine's controllers are mounted."""

    v1: dict[str, Path]
    """Controller → hierarchy. All of them, because some runtimes join even those without limits."""
    v2: Path | None
    v2_controllers: frozenset[str] = frozenset()

    @property
    def hybrid(self) -> bool:
        return self.v2 is not None and bool(self.v1)

    def missing(self) -> tuple[str, ...]:
        """The controllers without which limits cannot be enforced."""
        return tuple(c for c in CONTROLLERS if c not in self.v1 and c not in self.v2_controllers)


class Group(msgspec.Struct, frozen=True):
    """One directory to make, and the limits to write into its files, in order."""

    path: Path
    limits: tuple[tuple[str, str], ...] = ()
    optional: tuple[str, ...] = ()
    """Files that not every kernel has."""


def parse_mounts(mountinfo: str) -> tuple[dict[str, Path], Path | None]:
    """The v1 controllers and the v2 tree in the text of `/proc/self/mountinfo`."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        where = Path(fields[4])
        if kind[0] == "cgroup2":
            v2 = v2 or where
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option in _V1_CONTROLLERS or option.startswith("name="):
                    v1.setdefault(option, where)
    return v1, v2


def read_layout(mountinfo: Path = Path("/proc/self/mountinfo")) -> Layout:
    v1, v2 = parse_mounts(mountinfo.read_text())
    available: frozenset[str] = frozenset()
    if v2 is not None:
        with suppress(OSError):
            available = frozenset((v2 / "cgroup.controllers").read_text().split())
    return Layout(v1, v2, available)


def groups_for(layout: Layout, name: str, quota: Quota) -> tuple[Group, ...]:
    """The groups of the sandbox called `name`. Raises `HostError` (`no_limits`)."""
    if missing := layout.missing():
        raise HostError(
            "no_limits",
            f"This machine cannot limit {', '.join(missing)}: mount the cgroup controllers and try again.",
        )
    memory = str(quota.memory_bytes)
    share = str(max(1_000, int(quota.cpus * _PERIOD_MICROSECONDS)))
    tasks = str(quota.processes + RUNTIME_TASKS)
    old = {
        "memory": (("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)),
        "cpu": (("cpu.cfs_period_us", str(_PERIOD_MICROSECONDS)), ("cpu.cfs_quota_us", share)),
        "pids": (("pids.max", tasks),),
    }
    new = {
        "memory": (("memory.max", memory), ("memory.swap.max", "0")),
        "cpu": (("cpu.max", f"{share} {_PERIOD_MICROSECONDS}"),),
        "pids": (("pids.max", tasks),),
    }
    optional = ("memory.memsw.limit_in_bytes", "memory.swap.max")
    wanted: dict[Path, tuple[tuple[str, str], ...]] = {}
    if layout.v2 is not None:
        wanted[layout.v2] = ()
    elif "freezer" in layout.v1:
        wanted[layout.v1["freezer"]] = ()
    for controller in CONTROLLERS:
        if (here := layout.v1.get(controller)) is not None:
            wanted[here] = (*wanted.get(here, ()), *old[controller])
        elif layout.v2 is not None:
            wanted[layout.v2] = (*wanted[layout.v2], *new[controller])
    return tuple(Group(where / PARENT / name, limits, optional) for where, limits in wanted.items())


def names(layout: Layout) -> tuple[str, ...]:
    """Every sandbox group on this machine, of all processes and data directories."""
    hierarchy = layout.v2 or layout.v1.get("memory")
    if hierarchy is None:
        return ()
    try:
        with os.scandir(hierarchy / PARENT) as entries:
            return tuple(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return ()


class Cgroup:
    """The groups of one sandbox, one per hierarchy, all with the same name."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.name = name
        hierarchies = dict.fromkeys((*((layout.v2,) if layout.v2 else ()), *layout.v1.values()))
        self._directories = tuple(where / PARENT / name for where in hierarchies)
        self._v2 = layout.v2 / PARENT / name if layout.v2 else None
        freezer = layout.v1.get("freezer")
        self._freezer = freezer / PARENT / name if freezer and self._v2 is None else None

    @staticmethod
    def create(layout: Layout, name: str, quota: Quota) -> "Cgroup":
        """Make the groups and set the limits. Raises `HostError` (`no_limits`) and leaves nothing behind."""
        made: list[Path] = []
        try:
            for group in groups_for(layout, name, quota):
                _make_parent(group.path.parent, layout)
                group.path.mkdir()
                made.append(group.path)
                for file, value in group.limits:
                    if file not in group.optional or (group.path / file).exists():
                        (group.path / file).write_text(value)
        except OSError as error:
            for path in made:
                path.rmdir()
            raise HostError(
                "no_limits",
                f"The limits of a sandbox cannot be set: {error}; is this machine's root restricted?",
            ) from error
        return Cgroup(layout, name)

    @property
    def exists(self) -> bool:
        return any(path.is_dir() for path in self._directories)

    def procs_files(self) -> tuple[Path, ...]:
        """The files that a process writes its id into to join."""
        return tuple(path / "cgroup.procs" for path in self._directories if path.is_dir())

    def pids(self) -> frozenset[int]:
        """Its processes, without zombies."""
        found: set[int] = set()
        for path in self.procs_files():
            with suppress(OSError):
                found.update(int(line) for line in path.read_text().split())
        return frozenset(found)

    def oom_kills(self) -> int:
        """Number of processes that the kernel killed for lack of memory."""
        return _flag(self._read("memory.oom_control", "memory.events"), "oom_kill")

    def memory_bytes(self) -> int:
        """Memory in use; 0 when unknown."""
        return int(self._read("memory.usage_in_bytes", "memory.current") or "0")

    def cpu_seconds(self) -> float:
        """Time of processors used so far; 0 when unknown."""
        if counted := self._read("cpuacct.usage"):
            return int(counted) / 1e9
        return _flag(self._read("cpu.stat"), "usage_usec") / 1e6

    def refused_tasks(self) -> int:
        """How often the limit refused a process or thread."""
        return _flag(self._read("pids.events"), "max")

    def _read(self, *names: str) -> str:
        """The content of the first of these files that can be read; empty without one."""
        for path in (directory / name for directory in self._directories for name in names):
            with suppress(OSError):
                return path.read_text()
        return ""

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Freeze every process during the block. Raises `HostError` (`freeze_failed`)."""
        try:
            try:
                self._set_frozen(True)
                with anyio.fail_after(_PATIENCE_SECONDS):
                    async for _ in _moments():
                        if self._is_frozen():
                            break
            except (OSError, TimeoutError) as error:
                raise HostError(
                    "freeze_failed", "The processes of the sandbox could not be frozen."
                ) from error
            yield
        finally:
            # It may have ended by now.
            with suppress(OSError):
                self._set_frozen(False)

    def kill(self) -> None:
        """Send SIGKILL to every process. Without `cgroup.kill`, one call may miss new processes: call again."""
        if self._v2 is not None:
            with suppress(OSError):
                (self._v2 / "cgroup.kill").write_text("1")
                return
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Under v1 a frozen process dies only when thawed.
        with suppress(OSError):
            self._set_frozen(False)

    async def remove(self) -> None:
        """Kill its processes and remove it. Raises `HostError` (`cgroup_stuck`)."""
        with anyio.move_on_after(_PATIENCE_SECONDS):
            async for _ in _moments():
                self.kill()
                self.discard()
                if not self.exists:
                    return
        if self.exists:
            raise HostError(
                "cgroup_stuck", f"The processes of {self.name} cannot be killed: {sorted(self.pids())}."
            )

    def discard(self) -> None:
        """Remove the groups without processes."""
        for path in self._directories:
            with suppress(OSError):
                path.rmdir()

    def _set_frozen(self, frozen: bool) -> None:
        if self._v2 is not None:
            (self._v2 / "cgroup.freeze").write_text("1" if frozen else "0")
        elif self._freezer is not None:
            (self._freezer / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        elif frozen:
            raise OSError("no freezer")

    def _is_frozen(self) -> bool:
        if self._v2 is not None:
            return _flag((self._v2 / "cgroup.events").read_text(), "frozen") == 1
        if self._freezer is not None:
            return (self._freezer / "freezer.state").read_text().strip() == "FROZEN"
        return False


def _make_parent(parent: Path, layout: Layout) -> None:
    parent.mkdir(exist_ok=True)
    if parent.parent != layout.v2:
        return
    wanted = [c for c in CONTROLLERS if c not in layout.v1 and c in layout.v2_controllers]
    for directory in (parent.parent, parent):
        control = directory / "cgroup.subtree_control"
        if set(wanted) - set(control.read_text().split()):
            control.write_text(" ".join(f"+{c}" for c in wanted))


def _flag(text: str, name: str) -> int:
    """The number after `name` in `name number` lines, or 0."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


async def _moments() -> AsyncIterator[None]:
    """Poll now and after growing pauses: the kernel signals none of these changes."""
    pause = 0.0005
    while True:
        yield
        await anyio.sleep(pause)
        pause = min(pause * 2, 0.02)
