"""The tiers made by an OCI runtime, `container` and `gvisor`: a bundle, a runtime in the foreground, the guest in it.

A sandbox is nested lifetimes, each a block: its name (a directory and cgroups), its runtime's process, the
link to its guest. However they are left, by an error or a cancellation too, nothing remains.
"""

import logging
import os
import resource
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from cloister.core.errors import CloisterError, HostError, SandboxLost, UserError
from cloister.core.ids import OwnerId, SandboxId
from cloister.core.requests import Isolation, Quota, TierName
from cloister.sandbox import guest_build, selftest
from cloister.sandbox.api import Door, Report, Sandbox, SandboxInfo, SandboxSpec, SnapshotInfo, TierReport
from cloister.sandbox.container import oci
from cloister.sandbox.container.names import Claims
from cloister.sandbox.container.process import Running, launched
from cloister.sandbox.container.runtimes import Way, ways
from cloister.sandbox.container.sandbox import ContainerSandbox, Wish, environment
from cloister.sandbox.protocol.link import Link, open_link
from cloister.sandbox.selftest import furnish, start_many
from cloister.sandbox.snapshots import Origin, Snapshots, Subject, reference_in
from cloister.sandbox.store.api import Root, Store, writable
from cloister.sandbox.store.choose import StoreChoice, stores
from cloister.sandbox.store.flatten import flatten
from cloister.sandbox.store.overlay import OverlayStore
from cloister.sandbox.templates.building import Built
from cloister.sandbox.templates.catalog import Templates

logger = logging.getLogger(__name__)

_SETTLE_SECONDS = 5.0
_TRIAL_SECONDS = 30.0
_LAST_WORDS_SECONDS = 5.0
_TRIAL = SandboxSpec(quota=Quota(cpus=1.0, memory_bytes=134_217_728, processes=32), ttl_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Means:
    """What sandboxes are made with, once a runtime has proved itself."""

    programs: oci.Programs
    isolation: Isolation
    store: Store


class ContainerHost:
    """This machine as a place for the sandboxes of one tier. Implements `sandbox.api.TierHost`."""

    def __init__(
        self,
        data_dir: Path,
        owner: OwnerId,
        runtime: str | None,
        path: str,
        *,
        tier: TierName = "container",
        store: StoreChoice = "auto",
    ) -> None:
        """`owner` must be held by this process; `runtime` is a name or path, None tries all; `path` is `PATH`."""
        self._tier: TierName = tier
        self._data_dir = data_dir
        self.owner = owner
        self._claims = Claims(data_dir, owner, self._dispose)
        self._runtime = runtime
        self._path = path
        self._store_choice: StoreChoice = store
        self._plain = OverlayStore(data_dir, path)
        self._stores: tuple[Store, ...] = ()
        self.templates = Templates(data_dir / "templates", path)
        self._means: Means | None = None
        self._choosing = anyio.Lock()
        self._choosing_store = anyio.Lock()

    async def close(self) -> None:
        """Let go of the store's mounts. Whatever is opened later takes them again."""
        for store in self._stores:
            await store.close()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` with code `no_root`, `no_template`, `no_runtime` or `start_failed`."""
        oci.check_spec(spec)
        _check_root()
        if (reference := reference_in(spec.template)) is not None:
            means = await self._choose()
            found, kept = await Snapshots(means.store).find(reference)
            make_root = partial(means.store.restore, kept, limit_bytes=spec.quota.disk_bytes)
            origin = Origin(found.template, found.id)
            template = self._known(found.template)
        else:
            template = self.templates.built(spec.template)
            if template is None:
                raise HostError(
                    "no_template", f"The template {spec.template} is not built yet: prepare it first."
                )
            means = await self._choose()
            make_root = partial(means.store.create, template.rootfs, limit_bytes=spec.quota.disk_bytes)
            origin = Origin(spec.template)
        async with self._opened(means, Wish(spec, door, make_root, origin, template)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def fork(self, parent: ContainerSandbox) -> AsyncGenerator[Sandbox]:
        """See `Sandbox.fork`."""
        means = await self._choose()
        wish = parent.wish

        async def copy(name: str) -> Root:
            async with parent.running.standing_still():
                return await means.store.fork(parent.running.root, name, wish.spec.quota.disk_bytes)

        child = Wish(wish.spec, wish.door, copy, parent.origin, wish.template, parent.info.id)
        async with self._opened(means, child) as sandbox:
            yield sandbox

    async def keep(self, sandbox: ContainerSandbox, at: Path) -> None:
        """See `Keepable.keep`."""
        async with sandbox.running.standing_still():
            await flatten(sandbox.running.root, at, self._path)

    def _known(self, template: str) -> Built | None:
        try:
            return self.templates.built(template)
        except CloisterError:
            return None

    async def take_snapshot(self, sandbox: ContainerSandbox, name: str | None) -> SnapshotInfo:
        """See `Sandbox.snapshot`."""
        means = await self._choose()
        running = sandbox.running
        subject = Subject(sandbox.info.id, self._tier, running.root, sandbox.origin, running.standing_still)
        taken = await Snapshots(means.store).take(subject, name)
        sandbox.origin = Origin(taken.template, taken.id)
        return taken

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """See `Host.snapshots`."""
        _check_root()
        return await Snapshots((await self._choose()).store).list()

    async def delete_snapshot(self, reference: str) -> None:
        """See `Host.delete_snapshot`."""
        _check_root()
        await Snapshots((await self._choose()).store).delete(reference)

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`; raises as `Templates.prepare`, and `HostError` of the store."""
        await self.templates.prepare(template, report)
        if (built := self.templates.find(template)) is not None and os.geteuid() == 0:
            report(None, "putting the template into the store")
            await (await self._choose_stores())[0].adopt(built)

    async def sweep(self) -> int:
        """See `Host.sweep`."""
        return await self._claims.sweep()

    async def probe(self) -> tuple[selftest.RuntimeReport, ...]:
        """How each runtime fares on this machine; those that failed before are tried again."""
        reports: tuple[selftest.RuntimeReport, ...] = ()
        for store in await self._choose_stores():
            reports = await self._reports(store, again=True)
            if any(report.works for report in reports):
                break
        return reports

    async def report(self, *, again: bool = False, quick: bool = False) -> TierReport:
        """See `TierHost.report`."""
        made = TierReport(self._tier, works=False, native=False, found="There is no store for its files.")
        for store in await self._choose_stores():
            made = selftest.summed_up(self._tier, await self._reports(store, again=again))
            if made.works:
                break
        return made

    async def _reports(self, store: Store, *, again: bool) -> tuple[selftest.RuntimeReport, ...]:
        bench = selftest.Bench(self._tier, store.kind, self._path, self._data_dir / "runtimes.json")
        names = selftest.candidates(self._tier, self._runtime)
        trial = partial(self._try, store)
        return tuple([await selftest.report(name, bench, trial, again=again) for name in names])

    async def _choose(self) -> Means:
        async with self._choosing:
            if self._means is not None:
                return self._means
            why = ""
            for store in await self._choose_stores():
                reports = await self._reports(store, again=False)
                if not any(report.works for report in reports):
                    # What failed before may have been mended since; only a success is worth remembering for long.
                    reports = await self._reports(store, again=True)
                for report in reports:
                    if report.proof is not None and report.path is not None:
                        shown = f"{report.path.name} {report.version or '?'}"
                        self._means = await self._means_with(report.path, report.proof.way, shown, store)
                        return self._means
                why = " ".join(dict.fromkeys(report.why or "" for report in reports))
            raise HostError("no_runtime", f"No OCI runtime works on this machine: {why}")

    async def _choose_stores(self) -> tuple[Store, ...]:
        """The stores of this machine, the best first."""
        async with self._choosing_store:
            if not self._stores:
                self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._stores = (
                    await stores(self._store_choice, self._data_dir, self._path)
                    if os.geteuid() == 0
                    else (self._plain,)
                )
            return self._stores

    async def _means_with(self, runtime: Path, way: Way, shown: str, store: Store) -> Means:
        cache = self._data_dir / "programs"
        programs = oci.Programs(
            await guest_build.build("launch", cache),
            await guest_build.build("guest", cache),
            runtime,
            way,
            await guest_build.build("automount", cache) if way.preload else None,
        )
        isolation = Isolation(
            self._tier,
            shown,
            shares_kernel=self._tier == "container",
            store=store.kind,
            platform=way.platform,
            seccomp=way.seccomp,
        )
        return Means(programs, isolation, store)

    async def _try(self, store: Store, runtime: Path) -> selftest.Proof:
        """The self-test: the first way of `runtime` that works. Raises `HostError`."""
        _check_root()
        described = await selftest.described(runtime, self._path) if self._tier == "gvisor" else ""
        failures: list[HostError] = []
        for way in ways(self._tier, described):
            # Without its filter a guest is weaker: only where the filter itself is what was refused.
            if not way.seccomp and not any("seccomp" in failure.message for failure in failures):
                continue
            try:
                return await self._try_way(store, runtime, way)
            except HostError as error:
                failures.append(error)
        raise (
            failures[0]
            if failures
            else HostError("trial_failed", f"{runtime.name} offers no platform that we know.")
        )

    async def _try_way(self, store: Store, runtime: Path, way: Way) -> selftest.Proof:
        """A sandbox with nothing in it but the guest, which has to keep a file and to start many programs."""

        async def make_root(name: str) -> Root:
            root = await store.create(None, name, _TRIAL.quota.disk_bytes)
            furnish(writable(root))
            return root

        try:
            with anyio.fail_after(_TRIAL_SECONDS):
                means = await self._means_with(runtime, way, runtime.name, store)
                async with self._opened(means, Wish(_TRIAL, None, make_root, Origin("trial"))) as sandbox:
                    await sandbox.write("/work/trial", b"it works")
                    if await sandbox.read("/work/trial") != b"it works":
                        raise HostError("trial_failed", "A file was not read as it was written.")
                    return selftest.Proof(way, await start_many(sandbox))
        except (SandboxLost, UserError) as error:
            said = f"{runtime.name} failed its self-test: {error.message}"
            raise HostError("trial_failed", said) from error
        except TimeoutError as error:
            raise HostError(
                "trial_failed", f"{runtime.name} did not pass within {_TRIAL_SECONDS:g} s."
            ) from error

    @asynccontextmanager
    async def _opened(self, means: Means, wish: Wish) -> AsyncGenerator[ContainerSandbox]:
        way = means.programs.way
        async with (
            self._used(wish.template),
            self._claims.named(oci.host_quota(wish.spec.quota, way)) as (name, group),
        ):
            home = self._claims.home(name)
            root = await wish.make_root(str(name))
            machine = self._machine(means.programs)
            _write_bundle(home, oci.oci_config(machine, name, wish.spec.quota, way))
            join = () if means.programs.manages_cgroups else group.procs_files()
            argv = oci.launch_argv(means.programs, machine, name, home, root, join)
            now = time.time()
            info = SandboxInfo(
                id=name.sandbox,
                template=wish.spec.template,
                isolation=means.isolation,
                quota=wish.spec.quota,
                created_at=now,
                expires_at=now + wish.spec.ttl_seconds,
                parent=wish.parent,
            )
            async with (
                launched(argv, self._path, group, root, wish.spec.ttl_seconds) as running,
                self._linked(running, name.sandbox, wish, way) as link,
            ):
                running.ends_with(link.lost)
                running.tasks.start_soon(_settle, means.store)
                yield ContainerSandbox(self, wish, info, running, link, way)

    @asynccontextmanager
    async def _used(self, template: Built | None) -> AsyncGenerator[None]:
        if template is None:
            yield
            return
        with self.templates.using(template):
            yield

    @asynccontextmanager
    async def _linked(
        self, running: Running, sandbox: SandboxId, wish: Wish, way: Way
    ) -> AsyncGenerator[Link]:
        async with AsyncExitStack() as stack:
            try:
                link = await stack.enter_async_context(
                    open_link(
                        running.into,
                        running.out,
                        ttl_seconds=wish.spec.ttl_seconds,
                        hostname=oci.HOSTNAME,
                        env=environment(wish, way),
                        door=None if wish.door is None else partial(wish.door, sandbox),
                    )
                )
            except SandboxLost as error:
                # The guest never spoke: the reason is what the launcher or the runtime said about it.
                with anyio.move_on_after(_LAST_WORDS_SECONDS):
                    await running.ended.wait()
                raise HostError(
                    "start_failed", f"A sandbox could not be started: {running.last_words or error}"
                ) from error
            yield link

    async def _dispose(self, name: str) -> None:
        for store in (*await self._choose_stores(), self._plain):
            await store.remove(name)

    def _machine(self, programs: oci.Programs) -> oci.Machine:
        places = {place for place in oci.PLACES if os.path.isdir(place)}  # noqa: PTH112 - strings, not paths
        hard, layout = resource.getrlimit(resource.RLIMIT_NOFILE)[1], self._claims.layout
        return oci.Machine(
            place=oci.mount_point([self._data_dir.resolve(), programs.runtime], places),
            open_files_max=1_048_576 if hard == resource.RLIM_INFINITY else hard,
            refused_tree=layout.v2 if layout.hybrid else None,
        )


def _check_root() -> None:
    if os.geteuid() != 0:
        raise HostError("no_root", "Sandboxes need root on this machine: run with sudo.")


def _write_bundle(home: Path, config: bytes) -> None:
    (home / "config.json").write_bytes(config)


async def _settle(store: Store) -> None:
    """For as long as a sandbox lives: a copy of it shall not have to wait for all that it wrote."""
    while True:
        await anyio.sleep(_SETTLE_SECONDS)
        try:
            await store.settle()
        except HostError as error:
            logger.warning("The store could not be brought to the disk: %s", error)
