"""The `local` provider: the tiers of this machine."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from cloister.core.errors import HostError
from cloister.core.ids import OwnerId, SnapshotId
from cloister.core.requests import TierName
from cloister.sandbox.api import LOCAL, Door, Host, Report, Sandbox, SandboxSpec, SnapshotInfo, TierReport
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.microvm.host import MicrovmHost
from cloister.sandbox.providers import able_to_open, unknown_tier, which
from cloister.sandbox.store.api import Shortage
from cloister.sandbox.store.choose import StoreChoice


class TierHost(Host, Protocol):
    """One tier of this machine."""

    async def report(self, *, again: bool = False, quick: bool = False) -> TierReport:
        """See `Provider.report`."""
        ...

    async def close(self) -> None:
        """See `Provider.close`."""
        ...

    async def shortage(self) -> Shortage | None:
        """See `Provider.shortage`."""
        ...


class Choices(msgspec.Struct, frozen=True):
    """The settings of the same names."""

    runtime: str | None = None
    runsc: str | None = None
    store: StoreChoice = "auto"


def local_provider(data_dir: Path, owner: OwnerId, path: str, choices: Choices) -> "LocalProvider":
    """Every tier that this machine may have, weakest first."""
    return LocalProvider(
        {
            "container": ContainerHost(data_dir, owner, choices.runtime, path, store=choices.store),
            "gvisor": ContainerHost(data_dir, owner, choices.runsc, path, tier="gvisor", store=choices.store),
            "microvm": MicrovmHost(data_dir, owner, None, path),
        }
    )


class LocalProvider:
    """Implements `sandbox.api.Provider`. The hosts share templates, snapshots of files and the names of sandboxes."""

    name = LOCAL

    def __init__(self, hosts: Mapping[TierName, TierHost]) -> None:
        """At least one host, weakest first; the first one prepares templates."""
        self._hosts = dict(hosts)

    @property
    def tiers(self) -> tuple[TierName, ...]:
        return tuple(self._hosts)

    def open(self, spec: SandboxSpec, door: Door | None = None) -> AbstractAsyncContextManager[Sandbox]:
        if spec.tier not in self._hosts:
            raise unknown_tier(spec.tier, self.tiers)
        return self._hosts[spec.tier].open(spec, door)

    async def report(self, tier: TierName, *, again: bool = False, quick: bool = False) -> TierReport:
        return await self._hosts[tier].report(again=again, quick=quick)

    async def prepare(self, template: str, report: Report) -> None:
        await next(iter(self._hosts.values())).prepare(template, report)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        found: dict[SnapshotId, SnapshotInfo] = {}
        for host in self._hosts.values():
            try:
                found |= {info.id: info for info in await host.snapshots()}
            except HostError as error:
                if error.code != "no_runtime":  # a tier that does not work must not hide the others
                    raise
        return tuple(sorted(found.values(), key=lambda info: (info.created_at, info.id)))

    async def delete_snapshot(self, reference: str) -> None:
        kept = which(reference, await self.snapshots())
        able = able_to_open(kept)
        host = next(host for tier, host in self._hosts.items() if tier in able)
        await host.delete_snapshot(kept.id)

    async def sweep(self) -> int:
        return sum([await host.sweep() for host in self._hosts.values()])

    async def shortage(self) -> Shortage | None:
        # Each host, not only the first with a shortage: a read-only store recovers when all have closed it.
        found = [await host.shortage() for host in self._hosts.values()]
        return next((each for each in found if each), None)

    async def close(self) -> None:
        for host in self._hosts.values():
            await host.close()
