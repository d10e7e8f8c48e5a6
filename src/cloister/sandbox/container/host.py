"""The tiers made by an OCI runtime, `container` and `gvisor`.

A sandbox is three nested blocks: its name (a directory and cgroups), its runtime's process, the link to its guest.
Leaving them removes everything, after an error or a cancellation too.
"""

import logging
import os
import resource
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from cloister.core.errors import CloisterError, HostError, SandboxLost, UserError
from cloister.core.ids import OwnerId
from cloister.core.requests import Isolation, Quota, TierName
from cloister.sandbox.api import Door, Report, Sandbox, SandboxSpec, SnapshotInfo, TierReport
from cloister.sandbox.container import oci
from cloister.sandbox.container.oci import Way, ways
from cloister.sandbox.container.sandbox import ContainerRequest, ContainerSandbox, environment, launched
from cloister.sandbox.local import guest_build, selftest
from cloister.sandbox.local.lifetime import Greeting, linked
from cloister.sandbox.local.names import Claims
from cloister.sandbox.local.selftest import start_many
from cloister.sandbox.local.spec import (
    HOSTNAME,
    check_root,
    check_spec,
    mount_point_here,
    no_template,
    sandbox_info,
    setup_frame,
    with_problem,
)
from cloister.sandbox.snapshots import Origin, Snapshots, Subject, reference_in
from cloister.sandbox.store.api import Root, Shortage, Store, writable
from cloister.sandbox.store.choose import StoreChoice, stores
from cloister.sandbox.store.overlay import OverlayStore, flatten
from cloister.sandbox.templates.building import Built, start_services
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.root import furnish

logger = logging.getLogger(__name__)

_SETTLE_SECONDS = 5.0
_TRIAL_SECONDS = 30.0
_TRIAL = SandboxSpec(quota=Quota(cpus=1.0, memory_bytes=134_217_728, processes=32), ttl_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The programs and the store that make sandboxes, after a runtime passed its self-test."""

    programs: oci.Programs
    isolation: Isolation
    store: Store


class ContainerHost:
    """The `container` or the `gvisor` tier of this machine. Implements `local.provider.TierHost`."""

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
        """This process must hold `owner`; `runtime` is a name or path, None tries all; `path` is `PATH`."""
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
        self._toolchain: Toolchain | None = None
        self._choosing = anyio.Lock()
        self._choosing_store = anyio.Lock()

    async def close(self) -> None:
        """Release the mounts of the store; a later `open` mounts it again."""
        for store in self._stores:
            await store.close()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` with code `no_root`, `no_template`, `no_runtime` or `start_failed`."""
        check_spec(spec)
        check_root()
        if (reference := reference_in(spec.template)) is not None:
            tools = await self._choose()
            found, kept = await Snapshots(tools.store).find(reference)
            make_root = partial(tools.store.restore, kept, limit_bytes=spec.quota.disk_bytes)
            origin = Origin(found.template, found.id)
            template = self._known(found.template)
        else:
            template = self.templates.built(spec.template)
            if template is None:
                raise no_template(spec.template)
            tools = await self._choose()
            make_root = partial(tools.store.create, template.rootfs, limit_bytes=spec.quota.disk_bytes)
            origin = Origin(spec.template)
        async with self._opened(tools, ContainerRequest(spec, door, make_root, origin, template)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def fork(
        self, parent: ContainerSandbox, copied: Callable[[], None] | None = None
    ) -> AsyncGenerator[Sandbox]:
        tools = await self._choose()
        request = parent.request

        async def copy(name: str) -> Root:
            async with parent.running.standing_still():
                root = await tools.store.fork(parent.running.root, name, request.spec.quota.disk_bytes)
            if copied is not None:
                copied()
            return root

        child = ContainerRequest(
            request.spec, request.door, copy, parent.origin, request.template, parent.info.id
        )
        async with self._opened(tools, child) as sandbox:
            yield sandbox

    async def keep(self, sandbox: ContainerSandbox, at: Path, *, shared: bool) -> None:
        tools = await self._choose()
        async with sandbox.running.standing_still():
            if shared:
                await tools.store.keep(sandbox.running.root, at)
            else:
                await flatten(sandbox.running.root, at, self._path)

    def _known(self, template: str) -> Built | None:
        try:
            return self.templates.built(template)
        except CloisterError:
            return None

    async def take_snapshot(self, sandbox: ContainerSandbox, name: str | None) -> SnapshotInfo:
        tools = await self._choose()
        running = sandbox.running
        subject = Subject(sandbox.info.id, self._tier, running.root, sandbox.origin, running.standing_still)
        taken = await Snapshots(tools.store).take(subject, name)
        sandbox.origin = Origin(taken.template, taken.id)
        return taken

    async def used(self, root: Root) -> int | None:
        return await (await self._choose()).store.used(root)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        check_root()
        return await Snapshots((await self._choose()).store).list()

    async def delete_snapshot(self, reference: str) -> None:
        check_root()
        await Snapshots((await self._choose()).store).delete(reference)

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`; raises as `Templates.prepare`, and `HostError` of the store."""
        await self.templates.prepare(template, report)
        if (built := self.templates.find(template)) is not None and os.geteuid() == 0:
            report(None, "putting the template into the store")
            await (await self._choose_stores())[0].adopt(built)

    async def shortage(self) -> Shortage | None:
        """See `TierHost.shortage`."""
        return await self._toolchain.store.shortage() if self._toolchain else None

    async def sweep(self) -> int:
        return await self._claims.sweep()

    async def probe(self) -> tuple[selftest.RuntimeReport, ...]:
        """Test each runtime; repeat the tests that failed before."""
        return (await self._tried(again=True))[1]

    async def _tried(self, *, again: bool) -> tuple[Store, tuple[selftest.RuntimeReport, ...]]:
        """The first store on which a runtime works, else the last one, and what the tests found there."""
        *better, last = await self._choose_stores()
        for store in better:
            reports = await self._reports(store, again=again)
            if any(report.works for report in reports):
                return store, reports
        return last, await self._reports(last, again=again)

    async def report(self, *, again: bool = False, quick: bool = False) -> TierReport:
        return selftest.summed_up(self._tier, (await self._tried(again=again))[1])

    async def _reports(self, store: Store, *, again: bool) -> tuple[selftest.RuntimeReport, ...]:
        bench = selftest.Bench(self._tier, store.kind, self._path, self._data_dir / "runtimes.json")
        names = selftest.candidates(self._tier, self._runtime)
        trial = partial(self._try, store)
        return tuple([await selftest.report(name, bench, trial, again=again) for name in names])

    async def _choose(self) -> Toolchain:
        async with self._choosing:
            if self._toolchain is not None:
                return self._toolchain
            why = ""
            for store in await self._choose_stores():
                reports = await self._reports(store, again=False)
                if not any(report.works for report in reports):
                    # The cause of a failure may be fixed by now: only a success is remembered for long.
                    reports = await self._reports(store, again=True)
                for report in reports:
                    if report.proof is not None and report.path is not None:
                        shown = f"{report.path.name} {report.version or '?'}"
                        self._toolchain = await self._tools_with(report.path, report.proof.way, shown, store)
                        return self._toolchain
                why = " ".join(dict.fromkeys(report.why or "" for report in reports))
            raise HostError("no_runtime", f"No OCI runtime works on this machine: {why}")

    async def _choose_stores(self) -> tuple[Store, ...]:
        """The stores of this machine, best first."""
        async with self._choosing_store:
            if not self._stores:
                self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._stores = (
                    await stores(self._store_choice, self._data_dir, self._path)
                    if os.geteuid() == 0
                    else (self._plain,)
                )
            return self._stores

    async def _tools_with(self, runtime: Path, way: Way, shown: str, store: Store) -> Toolchain:
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
        return Toolchain(programs, isolation, store)

    async def _try(self, store: Store, runtime: Path) -> selftest.Proof:
        """The self-test: the first way of `runtime` that works. Raises `HostError`."""
        check_root()
        described = await selftest.described(runtime, self._path) if self._tier == "gvisor" else ""
        failures: list[HostError] = []
        for way in ways(self._tier, described):
            # A guest without its seccomp filter is weaker: only where this runtime refused the filter itself.
            if not way.seccomp and not any("seccomp" in failure.message for failure in failures):
                continue
            try:
                return await self._try_way(store, runtime, way)
            except HostError as error:
                failures.append(error)
        raise (
            failures[0]
            if failures
            else HostError("trial_failed", f"{runtime.name} offers no known platform.")
        )

    async def _try_way(self, store: Store, runtime: Path, way: Way) -> selftest.Proof:
        """Open a sandbox that holds only the guest, write and read a file in it, and start many programs."""

        async def make_root(name: str) -> Root:
            root = await store.create(None, name, _TRIAL.quota.disk_bytes)
            furnish(writable(root))
            return root

        try:
            with anyio.fail_after(_TRIAL_SECONDS):
                tools = await self._tools_with(runtime, way, runtime.name, store)
                async with self._opened(
                    tools, ContainerRequest(_TRIAL, None, make_root, Origin("trial"))
                ) as sandbox:
                    await sandbox.write("/work/trial", b"it works")
                    if await sandbox.read("/work/trial") != b"it works":
                        raise HostError("trial_failed", "A file read back different from what was written.")
                    return selftest.Proof(way, await start_many(sandbox))
        except (SandboxLost, UserError) as error:
            said = f"{runtime.name} failed its self-test: {error.message}"
            raise HostError("trial_failed", said) from error
        except TimeoutError as error:
            raise HostError(
                "trial_failed", f"{runtime.name} did not pass within {_TRIAL_SECONDS:g} s."
            ) from error

    @asynccontextmanager
    async def _opened(self, tools: Toolchain, request: ContainerRequest) -> AsyncGenerator[ContainerSandbox]:
        way, spec = tools.programs.way, request.spec
        with ExitStack() as used:
            if request.template is not None:
                used.enter_context(self.templates.using(request.template))
            async with self._claims.named(oci.host_quota(spec.quota, way)) as (name, group):
                home = self._claims.home(name)
                root = await request.make_root(str(name))
                machine = self._machine(tools.programs)
                (home / "config.json").write_bytes(oci.oci_config(machine, name, spec.quota, way))
                join = () if tools.programs.manages_cgroups else group.procs_files()
                argv = oci.launch_argv(tools.programs, machine, name, home, root, join)
                info = sandbox_info(name.sandbox, spec, tools.isolation, request.parent)
                greeting = Greeting(
                    name.sandbox, setup_frame(spec, HOSTNAME), environment(request, way), request.door
                )
                async with (
                    launched(argv, self._path, group, root, spec.ttl_seconds) as running,
                    linked(running, running.into, running.out, greeting) as link,
                ):
                    running.ends_with(link.lost)
                    running.tasks.start_soon(_settle, tools.store)
                    sandbox = ContainerSandbox(self, request, info, running, link, way)
                    sandbox.info = with_problem(info, await start_services(sandbox, request.template))
                    yield sandbox

    async def _dispose(self, name: str) -> None:
        for store in (*await self._choose_stores(), self._plain):
            await store.remove(name)

    def _machine(self, programs: oci.Programs) -> oci.HostFacts:
        hard, layout = resource.getrlimit(resource.RLIMIT_NOFILE)[1], self._claims.layout
        return oci.HostFacts(
            place=mount_point_here([self._data_dir, programs.runtime]),
            open_files_max=1_048_576 if hard == resource.RLIM_INFINITY else hard,
            refused_tree=layout.v2 if layout.hybrid else None,
        )


async def _settle(store: Store) -> None:
    """Write the store to disk now and then while a sandbox lives, so that a copy of it need not wait."""
    while True:
        await anyio.sleep(_SETTLE_SECONDS)
        try:
            await store.settle()
        except HostError as error:
            logger.warning("The store could not be written to disk: %s", error)
