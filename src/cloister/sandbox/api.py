"""A disposable computer and the machine that opens it. Tiers implement these; nothing else does."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec
from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.computer import Computer
from cloister.core.ids import SandboxId, SnapshotId
from cloister.core.requests import Isolation, Quota, Tier, TierName

Door = Callable[[SandboxId, ByteStream], Awaitable[None]]
"""Serves one connection that a program inside made to the proxy port, to its end; then it is closed."""

Report = Callable[[float | None, str], None]
"""Progress of something slow: a fraction (None when unknown) and what is being done."""


SNAPSHOT_PREFIX = "snapshot:"


class SandboxSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to open."""

    template: str = "default"
    """The name of a template, or `snapshot:` and the name or id of a snapshot."""
    tier: Tier = "auto"
    quota: Quota = Quota()
    ttl_seconds: float = limits.TTL_SECONDS
    """The sandbox ends by itself after this; the guest holds the clock too."""
    env: dict[str, str] = {}


class SandboxInfo(msgspec.Struct, frozen=True):
    """A sandbox as others see it."""

    id: SandboxId
    template: str
    isolation: Isolation
    quota: Quota
    created_at: float
    expires_at: float
    parent: SandboxId | None = None
    """The sandbox it was forked from."""
    fork: Literal["disk", "memory"] | None = None
    """What the fork took along: the files, or with `memory` everything that runs as well. None: it is no fork."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """A snapshot as others see it."""

    id: SnapshotId
    name: str | None
    """Unique on this machine; a snapshot without one is removed when it is old."""
    parent: SnapshotId | None
    """The snapshot that came before it in its line."""
    sandbox: SandboxId
    """Which it was taken of; it need not live any more."""
    template: str
    """Where the line began."""
    created_at: float
    size_bytes: int
    """What the sandbox had written since it was made, and deleting the snapshot may therefore free."""
    tier: TierName = "container"
    """Of the sandbox. Of files alone, it opens on `container` and `gvisor`; of a virtual machine, on `microvm`."""


class Sandbox(Computer, Protocol):
    """A running sandbox. Once it is lost, every method raises `SandboxLost` at once; nothing hangs."""

    @property
    def info(self) -> SandboxInfo: ...

    def fork(self) -> AbstractAsyncContextManager["Sandbox"]:
        """A new sandbox whose files are as they are here at this moment; both go on independently.

        This sandbox's processes stand still while its files are copied. `info.fork` of the new one says whether
        its processes are copies that go on too (`memory`); what they print then reaches nobody. Forks that are
        asked for at the same time may share one moment. Leaving the block destroys the fork.
        """
        ...

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Keep the files as they are at this moment; they outlive the sandbox.

        This sandbox's processes stand still meanwhile. Raises `UserError` (`bad_name`, `name_taken`).
        """
        ...

    async def dial(self, port: int) -> ByteStream:
        """A connection to what listens on `port` of the loopback inside; closing it is the caller's.

        Raises `UserError` with code `no_such_port`, `port_failed`, `bad_port` or `too_many_connections`.
        """
        ...

    async def wait_lost(self) -> str:
        """Wait until the sandbox is gone; returns why, in one sentence."""
        ...


@runtime_checkable
class Keepable(Sandbox, Protocol):
    """A sandbox whose files can become a template."""

    async def keep(self, at: Path) -> None:
        """Its whole root filesystem, as it is now, as the new directory `at`. Raises `HostError` (`keep_failed`)."""
        ...


@runtime_checkable
class Poolable(Sandbox, Protocol):
    """A sandbox that can be handed on."""

    def adopt(self, spec: "SandboxSpec", door: Door | None) -> None:
        """From now on it is as if it, which nobody has used, had just been opened with these."""
        ...

    def memory_bytes(self) -> int:
        """What it uses of this machine's memory now."""
        ...


class Host(Protocol):
    """This machine as a place for sandboxes."""

    def open(self, spec: SandboxSpec, door: Door | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox; leaving the block destroys it: processes, mounts, cgroups and files.

        Without a `door` every connection to the proxy port is closed at once.
        Raises `HostError` when the tier cannot be enforced here, `UserError` for an unknown template or snapshot.
        """
        ...

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """What can be opened as `snapshot:NAME-OR-ID`, the oldest first."""
        ...

    async def delete_snapshot(self, reference: str) -> None:
        """By name or id; what was made from it stays. Raises `UserError` (`unknown_snapshot`)."""
        ...

    async def prepare(self, template: str, report: Report) -> None:
        """Build the template if it is missing. Safe to interrupt: a half-built one is never used."""
        ...

    async def sweep(self) -> int:
        """Remove what owners that no longer live left behind; returns how many sandboxes that was."""
        ...


class TierReport(msgspec.Struct, frozen=True):
    """How one tier fares on this machine, by a self-test that really ran something."""

    tier: TierName
    works: bool
    native: bool
    """Whether it runs programs at, or near, the speed of the machine; `auto` takes no other."""
    found: str
    """What makes it; or why it does not work."""
    fix: str | None = None
    """What would make it work, or make it native."""


class TierHost(Host, Protocol):
    """A place for the sandboxes of one tier."""

    async def report(self, *, again: bool = False, quick: bool = False) -> TierReport:
        """Try the tier or remember how it went; `again` does not remember failures. Bounded in time.

        `quick` makes no trial that takes long: a tier whose trials do is only as good as it is remembered.
        """
        ...

    async def close(self) -> None:
        """Let go of what it holds beyond its sandboxes, e.g. mounts of its store."""
        ...
