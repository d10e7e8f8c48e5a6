"""A disposable computer (`Sandbox`) and the places that offer them (`Provider`)."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec
from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.computer import Computer
from cloister.core.errors import HostError
from cloister.core.ids import SandboxId, SnapshotId
from cloister.core.requests import Isolation, Quota, Tier, TierName
from cloister.sandbox.store.api import Shortage

Door = Callable[[SandboxId, ByteStream], Awaitable[None]]
"""Serves one connection from inside to the proxy port; the connection is closed when it returns."""

Report = Callable[[float | None, str], None]
"""Progress of a slow operation: a fraction (None when unknown) and the current step."""

SNAPSHOT_PREFIX = "snapshot:"
SCRATCH = ".scratch"
"""An empty template, which images are unpacked and built in."""
LOCAL = "local"
"""Name of the provider that is this machine."""


class SandboxSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sandbox to open."""

    template: str = "default"
    """The name of a template, or `snapshot:` and the name or id of a snapshot."""
    tier: Tier = "auto"
    quota: Quota = Quota()
    ttl_seconds: float = limits.TTL_SECONDS
    """The sandbox ends after this time; host and guest both enforce it."""
    env: dict[str, str] = {}
    kept: bool = False
    """True if its files become a template: then it gets a tier whose files the host can read."""


class SandboxInfo(msgspec.Struct, frozen=True):
    """The public record of a sandbox."""

    id: SandboxId
    template: str
    isolation: Isolation
    """Provider, tier and runtime."""
    quota: Quota
    created_at: float
    expires_at: float
    parent: SandboxId | None = None
    """The sandbox it was forked from."""
    fork: Literal["disk", "memory"] | None = None
    """`disk`: the fork copied the files. `memory`: it copied the running processes too. None: not a fork."""
    metadata: dict[str, str] = {}
    """What its maker wrote on it; it means nothing here."""
    paused: bool = False
    """Whether its processes stand still until it is resumed."""
    problem: str = ""
    """Why a service of its template did not start; empty if all did."""
    task_id: str | None = None
    """The task that it was made for; a fork has none."""


class Load(msgspec.Struct, frozen=True):
    """What a sandbox uses, as the host counts it."""

    cpu_seconds: float
    """Time of processors that it has used so far."""
    memory_bytes: int
    """Memory in use now, the cache of files included."""
    disk_bytes: int | None
    """Bytes that it wrote since it was made, as far as they are on the disk; None where they are not counted."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """The public record of a snapshot."""

    id: SnapshotId
    name: str | None
    """Unique per provider. A snapshot without a name is removed when it is old."""
    parent: SnapshotId | None
    """The previous snapshot of the same line."""
    sandbox: SandboxId
    """The sandbox it was taken of, which may have ended."""
    template: str
    """The template that the line started from."""
    created_at: float
    size_bytes: int
    """Bytes the sandbox had written since it was made; deleting the snapshot frees at most these."""
    tier: TierName = "container"
    """Of the sandbox. One of `container` or `gvisor` opens on both; one of `microvm` only there."""
    provider: str = LOCAL
    """Where it is kept, and can be opened."""


class Sandbox(Computer, Protocol):
    """A running sandbox. After it is lost, every method raises `SandboxLost` at once."""

    @property
    def info(self) -> SandboxInfo: ...

    def fork(self, copied: Callable[[], None] | None = None) -> AbstractAsyncContextManager["Sandbox"]:
        """A new sandbox with a copy of the files; leaving the block destroys it.

        The processes of this sandbox are stopped during the copy; then `copied` is called, before the new one runs. If `info.fork` of the new one is `memory`, its
        processes are copies that go on, and their output is discarded. Concurrent forks may share one copy.
        """
        ...

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Keep a copy of the files that outlives the sandbox. Processes are stopped meanwhile.

        Raises `UserError` (`bad_name`, `name_taken`).
        """
        ...

    async def dial(self, port: int) -> ByteStream:
        """Connect to `port` on the loopback inside; the caller closes the connection.

        Raises `UserError` (`no_such_port`, `port_failed`, `bad_port`, `too_many_connections`).
        """
        ...

    async def set_ttl(self, ttl_seconds: float) -> None:
        """Let it live for so long from now on; `info` says so. Raises `UserError` (`bad_sandbox`)."""
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Every process inside stands still during the block; memory and connections stay. The time to live goes on.

        Other calls may wait for the end of the block. Raises `HostError` (`freeze_failed`).
        """
        ...

    async def load(self) -> Load:
        """Return what it uses now."""
        ...

    async def wait_lost(self) -> str:
        """Wait for the end of the sandbox; return the reason in one sentence."""
        ...


@runtime_checkable
class Keepable(Sandbox, Protocol):
    """A sandbox whose files can become a template."""

    async def keep(self, at: Path, *, shared: bool = False) -> None:
        """Copy the whole root filesystem to the new directory `at`. Raises `HostError` (`keep_failed`).

        `shared`: `at` becomes the root filesystem of a template, whose files the store may keep without a copy.
        """
        ...


async def keep(sandbox: Sandbox, at: Path, *, shared: bool = False) -> None:
    """Copy the files of a sandbox to the new directory `at`; see `Keepable`. Raises `HostError` (`cannot_keep`)."""
    if not isinstance(sandbox, Keepable):
        tier = sandbox.info.isolation.tier
        raise HostError("cannot_keep", f"Templates cannot be made from sandboxes of the tier {tier}.")
    await sandbox.keep(at, shared=shared)


@runtime_checkable
class Poolable(Sandbox, Protocol):
    """A sandbox that the pool can hand to a caller."""

    def adopt(self, spec: "SandboxSpec", door: Door | None) -> None:
        """Make this unused sandbox equal to one just opened with `spec` and `door`."""
        ...

    def memory_bytes(self) -> int:
        """Memory of this machine that it uses now."""
        ...


class Host(Protocol):
    """Opens sandboxes and keeps snapshots."""

    def open(self, spec: SandboxSpec, door: Door | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox; leaving the block destroys it: processes, mounts, cgroups and files.

        Without a `door` every connection to the proxy port is closed at once. Raises `HostError` when the tier cannot
        be enforced, `UserError` for an unknown template, tier or snapshot.
        """
        ...

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """All snapshots, oldest first; `snapshot:NAME-OR-ID` opens one."""
        ...

    async def delete_snapshot(self, reference: str) -> None:
        """Delete by name or id; sandboxes made from it stay. Raises `UserError` (`unknown_snapshot`)."""
        ...

    async def prepare(self, template: str, report: Report) -> None:
        """Build the template if it is missing. Safe to interrupt: a half-built one is never used."""
        ...

    async def sweep(self) -> int:
        """Remove the sandboxes of dead owners; return how many."""
        ...


class TierReport(msgspec.Struct, frozen=True):
    """The result of a tier's self-test, which opened a real sandbox."""

    tier: TierName
    works: bool
    native: bool
    """True at, or near, the speed of the machine; `auto` takes no other."""
    found: str
    """The runtime that makes it, or the reason why it does not work."""
    fix: str | None = None
    """How to make it work, or make it native."""
    provider: str = LOCAL


class Provider(Host, Protocol):
    """A named place that offers sandboxes of one or more tiers.

    To add one, pass it to `Providers` (`sandbox/providers.py`), which chooses among all registered ones.
    """

    @property
    def name(self) -> str:
        """Unique among the registered providers; recorded in `Isolation.provider`."""
        ...

    @property
    def tiers(self) -> tuple[TierName, ...]:
        """The tiers offered here, weakest first, working or not. `open` gets a spec with one of these, never `auto`.

        `open` raises `UserError` (`unknown_tier`) for any other.
        """
        ...

    async def report(self, tier: TierName, *, again: bool = False, quick: bool = False) -> TierReport:
        """Test one of `tiers`, or return the earlier result; `again` repeats a failed test. Bounded in time.

        `quick` runs no slow test: it returns the earlier result, or that there is none.
        """
        ...

    async def shortage(self) -> Shortage | None:
        """Return why no sandbox can be opened for lack of disk; None if there is room. Called every second."""
        ...

    async def close(self) -> None:
        """Release resources other than sandboxes, e.g. mounts. A later call takes them again."""
        ...
