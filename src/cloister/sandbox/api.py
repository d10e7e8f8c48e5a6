"""A disposable computer and the machine that opens it. Tiers implement these; nothing else does."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec
from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.commands import Computer
from cloister.core.ids import SandboxId
from cloister.core.records import Isolation, Quota, Tier

Door = Callable[[SandboxId, ByteStream], Awaitable[None]]
"""Serves one connection that a program inside made to the proxy port, to its end; then it is closed."""

Report = Callable[[float | None, str], None]
"""Progress of something slow: a fraction (None when unknown) and what is being done."""


class SandboxSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to open."""

    template: str = "default"
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

    async def wait_lost(self) -> str:
        """Wait until the sandbox is gone; returns why, in one sentence."""
        ...


class Host(Protocol):
    """This machine as a place for sandboxes."""

    def open(self, spec: SandboxSpec, door: Door | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox; leaving the block destroys it: processes, mounts, cgroups and files.

        Without a `door` every connection to the proxy port is closed at once.
        Raises `HostError` when the tier cannot be enforced here, `UserError` for an unknown template.
        """
        ...

    async def prepare(self, template: str, report: Report) -> None:
        """Build the template if it is missing. Safe to interrupt: a half-built one is never used."""
        ...

    async def sweep(self) -> int:
        """Remove what owners that no longer live left behind; returns how many sandboxes that was."""
        ...
