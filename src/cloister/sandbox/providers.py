"""Choose where a sandbox runs: the tier asked for or an error, never a weaker one; `auto` is the strongest that is native.

A *provider* is a place (this machine is `local`), a *tier* is a strength. Rules and requests name tiers.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec

from cloister.core.errors import Bug, HostError, UserError
from cloister.core.requests import Tier, TierName
from cloister.core.text import one_line
from cloister.sandbox.api import (
    SCRATCH,
    Door,
    Provider,
    Report,
    Sandbox,
    SandboxSpec,
    SnapshotInfo,
    TierReport,
)
from cloister.sandbox.local.spec import check_spec
from cloister.sandbox.snapshots import matching, reference_in, unknown
from cloister.sandbox.store.api import Shortage

STRENGTH: tuple[TierName, ...] = ("container", "gvisor", "microvm")
"""The tiers that `auto` chooses from, weakest first. Any other tier is used only when it is asked for by name."""

_OF_FILES: frozenset[TierName] = frozenset(("container", "gvisor"))
"""Each of these opens the snapshots of the others."""


class Providers:
    """The registered providers as one place for sandboxes. Implements `sandbox.api.Host`."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        """At least one, with unique names; of two that offer the same tier the first one is taken."""
        self._providers = {provider.name: provider for provider in providers}
        if len(self._providers) != len(providers):
            raise Bug("two sandbox providers have the same name")
        self._chosen: dict[tuple[Tier, frozenset[TierName], str | None], TierReport] = {}
        self._choosing = anyio.Lock()

    @property
    def tiers(self) -> tuple[TierName, ...]:
        """Every tier that a provider offers."""
        return tuple(dict.fromkeys(tier for each in self._providers.values() for tier in each.tiers))

    def check_tier(self, tier: Tier) -> None:
        """Raises `UserError` (`unknown_tier`)."""
        if tier != "auto" and tier not in self.tiers:
            raise unknown_tier(tier, self.tiers)

    async def close(self) -> None:
        """Release resources other than sandboxes."""
        for provider in self._providers.values():
            await provider.close()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` (`no_tier`) when the tier does not work here."""
        check_spec(spec)
        self.check_tier(spec.tier)
        able, wanted, at = frozenset(self.tiers), spec.tier, None
        if (reference := reference_in(spec.template)) is not None:
            kept = which(reference, await self.snapshots(), spec.tier)
            able, at = able_to_open(kept), kept.provider
            # Only a virtual machine opens the snapshot of one, so this is a request for that tier by name.
            wanted = wanted if kept.tier in _OF_FILES else kept.tier
        elif spec.template == SCRATCH or (spec.kept and spec.tier == "auto"):
            able = able & _OF_FILES  # the files of a build are kept
        chosen = await self._choose(wanted, able, at)
        spec = msgspec.structs.replace(spec, tier=chosen.tier)
        async with self._providers[chosen.provider].open(spec, door) as sandbox:
            yield sandbox

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`. Every provider gets the template, because `auto` may choose any of them."""
        for provider in self._providers.values():
            await provider.prepare(template, report)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        found = [info for provider in self._providers.values() for info in await provider.snapshots()]
        return tuple(sorted(found, key=lambda info: (info.created_at, info.id)))

    async def delete_snapshot(self, reference: str) -> None:
        """See `Host.delete_snapshot`. Raises `UserError` (`ambiguous_snapshot`) when two have that name."""
        kept = which(reference, await self.snapshots())
        await self._providers[kept.provider].delete_snapshot(kept.id)

    async def shortage(self) -> Shortage | None:
        """See `Provider.shortage`."""
        for provider in self._providers.values():
            if found := await provider.shortage():
                return found
        return None

    async def sweep(self) -> int:
        return sum([await provider.sweep() for provider in self._providers.values()])

    async def reports(self, *, again: bool = False) -> tuple[TierReport, ...]:
        """Every tier of every provider, weakest first."""
        return await self._reports("auto", frozenset(self.tiers), None, again=again)

    async def _reports(
        self,
        tier: Tier,
        able: frozenset[TierName],
        at: str | None,
        *,
        again: bool = False,
        quick: bool = False,
    ) -> tuple[TierReport, ...]:
        return tuple(
            [
                await provider.report(name, again=again, quick=quick)
                for provider in self._providers.values()
                if at in (None, provider.name)
                for name in provider.tiers
                if tier in ("auto", name) and name in able
            ]
        )

    async def _choose(self, tier: Tier, able: frozenset[TierName], at: str | None) -> TierReport:
        key = tier, able, at
        async with self._choosing:
            if key not in self._chosen:
                # Booting a machine to see whether it works is slow: only when it is asked for by name.
                quick = tier == "auto"
                try:
                    self._chosen[key] = choose(tier, await self._reports(tier, able, at, quick=quick))
                except HostError:
                    # The cause of a failure may be fixed by now: only a success is remembered for long.
                    again = await self._reports(tier, able, at, again=True, quick=quick)
                    self._chosen[key] = choose(tier, again)
            return self._chosen[key]


def unknown_tier(tier: Tier, known: Iterable[TierName]) -> UserError:
    names = ", ".join(("auto", *known))
    return UserError("unknown_tier", f"There is no tier {one_line(tier, 40)!r} here: use one of {names}.")


def able_to_open(kept: SnapshotInfo) -> frozenset[TierName]:
    """The tiers that can open a snapshot."""
    return _OF_FILES if kept.tier in _OF_FILES else frozenset((kept.tier,))


def which(reference: str, known: Sequence[SnapshotInfo], tier: Tier = "auto") -> SnapshotInfo:
    """The one snapshot that `reference` names.

    Raises `UserError` (`unknown_snapshot`, `ambiguous_snapshot`, `wrong_tier`).
    """
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
            raise UserError("ambiguous_snapshot", f"{reference} names {ids}: use the id of one.")


def choose(tier: Tier, reports: Sequence[TierReport]) -> TierReport:
    """The tier to use, given the self-tests of the candidates. Raises `HostError` (`no_tier`)."""
    working = [report for report in reports if report.works]
    if tier == "auto":
        native = [report for report in working if report.native and report.tier in STRENGTH]
        if native:
            # `max` takes the first of equals, and so the provider that was registered first.
            return max(native, key=lambda report: STRENGTH.index(report.tier))
        why = " ".join(f"{report.tier}: {report.found}" for report in reports)
        raise HostError("no_tier", f"No tier can be enforced at native speed on this machine. {why}")
    if working:
        return working[0]
    why = " ".join(f"{report.found}{f' Try: {report.fix}.' if report.fix else ''}" for report in reports)
    raise HostError("no_tier", f"The tier {tier} cannot be enforced on this machine: {why}".rstrip(": "))
