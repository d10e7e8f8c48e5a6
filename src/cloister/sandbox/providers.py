"""Which tier a sandbox gets: the one that was asked for or none at all; `auto` is the strongest at native speed."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.ids import OwnerId, SnapshotId
from cloister.core.requests import Tier, TierName
from cloister.sandbox.api import Door, Report, Sandbox, SandboxSpec, SnapshotInfo, TierHost, TierReport
from cloister.sandbox.container import oci
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.microvm.host import MicrovmHost
from cloister.sandbox.snapshots import matching, reference_in, unknown
from cloister.sandbox.store.choose import StoreChoice

STRENGTH: tuple[TierName, ...] = ("container", "gvisor", "microvm")
"""Weakest first."""

_OF_FILES: frozenset[TierName] = frozenset(("container", "gvisor"))
"""What one of these kept, each of them can open."""


class Choices(msgspec.Struct, frozen=True):
    """What the settings of these names say."""

    runtime: str | None = None
    runsc: str | None = None
    store: StoreChoice = "auto"


def local_tiers(data_dir: Path, owner: OwnerId, path: str, choices: Choices) -> "Tiers":
    """Every tier that this machine might have."""
    return Tiers(
        {
            "container": ContainerHost(data_dir, owner, choices.runtime, path, store=choices.store),
            "gvisor": ContainerHost(data_dir, owner, choices.runsc, path, tier="gvisor", store=choices.store),
            "microvm": MicrovmHost(data_dir, owner, None, path),
        }
    )


class Tiers:
    """The tiers of this machine as one place for sandboxes. Implements `sandbox.api.Host`."""

    def __init__(self, hosts: Mapping[TierName, TierHost]) -> None:
        """At least one host; what one of them prepares or keeps, all can use."""
        self._hosts: dict[TierName, TierHost] = {tier: hosts[tier] for tier in STRENGTH if tier in hosts}
        self._first = next(iter(self._hosts.values()))
        self._chosen: dict[tuple[Tier, frozenset[TierName]], TierName] = {}
        self._choosing = anyio.Lock()

    async def close(self) -> None:
        """Let go of what the hosts hold beyond their sandboxes."""
        for host in self._hosts.values():
            await host.close()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` (`no_tier`) when the tier that was asked for does not work here."""
        oci.check_spec(spec)
        able, wanted = frozenset(STRENGTH), spec.tier
        if (reference := reference_in(spec.template)) is not None:
            kept = which(reference, await self.snapshots(), spec.tier)
            able = able_to_open(kept)
            # Only a virtual machine opens what one left: who asks for that asks for a virtual machine.
            wanted = wanted if kept.tier in _OF_FILES else kept.tier
        tier = await self._choose(wanted, able)
        async with self._hosts[tier].open(spec, door) as sandbox:
            yield sandbox

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`."""
        await self._first.prepare(template, report)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """See `Host.snapshots`."""
        found: dict[SnapshotId, SnapshotInfo] = {}
        for host in self._hosts.values():
            try:
                found |= {info.id: info for info in await host.snapshots()}
            except HostError as error:
                if error.code != "no_runtime":  # a tier that does not work here keeps nobody from the others
                    raise
        return tuple(sorted(found.values(), key=lambda info: (info.created_at, info.id)))

    async def delete_snapshot(self, reference: str) -> None:
        """See `Host.delete_snapshot`. Raises `UserError` (`ambiguous_snapshot`) when two have that name."""
        kept = which(reference, await self.snapshots())
        able = able_to_open(kept)
        host = next(host for tier, host in self._hosts.items() if tier in able)
        await host.delete_snapshot(kept.id)

    async def sweep(self) -> int:
        """See `Host.sweep`."""
        return sum([await host.sweep() for host in self._hosts.values()])

    async def reports(self, *, again: bool = False) -> tuple[TierReport, ...]:
        """Every tier, weakest first."""
        return tuple([await host.report(again=again) for host in self._hosts.values()])

    async def _choose(self, tier: Tier, able: frozenset[TierName]) -> TierName:
        key = tier, able
        async with self._choosing:
            if key not in self._chosen:
                wanted = [
                    host for name, host in self._hosts.items() if tier in ("auto", name) and name in able
                ]
                # Nobody who did not ask for a machine waits while one is booted to see whether it could be.
                quick = tier == "auto"
                try:
                    self._chosen[key] = choose(tier, [await host.report(quick=quick) for host in wanted])
                except HostError:
                    # What failed before may have been mended since; only a success is worth remembering for long.
                    again = [await host.report(again=True, quick=quick) for host in wanted]
                    self._chosen[key] = choose(tier, again)
            return self._chosen[key]


def able_to_open(kept: SnapshotInfo) -> frozenset[TierName]:
    """The tiers that can open a snapshot."""
    return _OF_FILES if kept.tier in _OF_FILES else frozenset((kept.tier,))


def which(reference: str, known: Sequence[SnapshotInfo], tier: Tier = "auto") -> SnapshotInfo:
    """The one snapshot that is meant. Raises `UserError` (`unknown_snapshot`, `ambiguous_snapshot`, `wrong_tier`)."""
    found = matching(known, reference)
    fitting = [info for info in found if tier == "auto" or tier in able_to_open(info)]
    match fitting:
        case [kept]:
            return kept
        case []:
            if not found:
                raise unknown(reference)
            tiers = " or ".join(sorted(able_to_open(found[0])))
            raise UserError("wrong_tier", f"The snapshot {reference} opens on {tiers}, not on {tier}.")
        case _:
            ids = " and ".join(info.id for info in fitting)
            raise UserError("ambiguous_snapshot", f"{reference} names {ids}: say which one by its id.")


def choose(tier: Tier, reports: Sequence[TierReport]) -> TierName:
    """The tier to use, given how those in question fare. Raises `HostError` (`no_tier`)."""
    if tier == "auto":
        able = [report.tier for report in reports if report.works and report.native]
        for strongest in reversed(STRENGTH):
            if strongest in able:
                return strongest
        why = " ".join(f"{report.tier}: {report.found}" for report in reports)
        raise HostError("no_tier", f"No tier can be enforced at native speed on this machine. {why}")
    for report in reports:
        if report.works:
            return report.tier
    why = " ".join(f"{report.found}{f' Try: {report.fix}.' if report.fix else ''}" for report in reports)
    raise HostError("no_tier", f"The tier {tier} cannot be enforced on this machine: {why}".rstrip(": "))
