"""The container tier: an OCI bundle, an OCI runtime in the foreground, and the guest as its first process.

A sandbox is nested lifetimes, each a block: its name (a directory and cgroups), its runtime's process, the
link to its guest. However they are left, by an error or a cancellation too, nothing remains.
"""

import logging
import os
import resource
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import msgspec

from cloister.core import limits
from cloister.core.commands import Command, Entry, Finished, Process
from cloister.core.errors import Bug, CloisterError, HostError, SandboxLost
from cloister.core.ids import OwnerId, SandboxId, new_sandbox_id
from cloister.core.records import Isolation, Quota
from cloister.sandbox import cgroup, guest, plan, selftest
from cloister.sandbox.api import Door, Report, Sandbox, SandboxInfo, SandboxSpec
from cloister.sandbox.cgroup import Cgroup
from cloister.sandbox.owners import Owners
from cloister.sandbox.running import Running, launched
from cloister.sandbox.store.api import Layers
from cloister.sandbox.store.flatten import flatten
from cloister.sandbox.store.overlay import OverlayStore
from cloister.sandbox.templates.about import About, Built
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.wire import Link, open_link

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_END_SECONDS = 120.0
_TRIAL = SandboxSpec(quota=Quota(cpus=1.0, memory_bytes=134_217_728, processes=32), ttl_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one sandbox shall be."""

    spec: SandboxSpec
    door: Door | None
    make_root: Callable[[Path], Awaitable[Layers]]
    template: Built | None = None
    """None for the self-test, which needs none."""
    parent: SandboxId | None = None


@dataclass(frozen=True, slots=True)
class Means:
    """What sandboxes are made with, once a runtime has proved itself."""

    programs: plan.Programs
    isolation: Isolation


class ContainerSandbox:
    """One running container, as the rest of the house sees it."""

    def __init__(
        self, host: "ContainerHost", wish: Wish, info: SandboxInfo, running: Running, link: Link
    ) -> None:
        self.info = info
        self.wish = wish
        self.running = running
        self._host = host
        self._link = link

    def start(self, command: Command) -> AbstractAsyncContextManager[Process]:
        return self._link.start(command)

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        return await self._link.run(command, stdin)

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        return await self._link.read(path, offset=offset, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._link.write(path, data, mode=mode)

    async def list(self, path: str) -> tuple[Entry, ...]:
        return await self._link.list(path)

    def fork(self) -> AbstractAsyncContextManager[Sandbox]:
        return self._host.fork(self)

    def adopt(self, wish: Wish, env: dict[str, str]) -> None:
        """See `Poolable.adopt`."""
        now = time.time()
        self.wish = wish
        self.info = msgspec.structs.replace(self.info, created_at=now, expires_at=now + wish.spec.ttl_seconds)
        self._link.env = env
        self.running.restart_clock(wish.spec.ttl_seconds)

    async def wait_lost(self) -> str:
        await self.running.ended.wait()
        return self.running.reason or self._link.reason or "The sandbox was killed or ended by itself."


class ContainerHost:
    """This machine as a place for containers. Implements `sandbox.api.Host`."""

    def __init__(self, data_dir: Path, owner: OwnerId, runtime: str | None, path: str) -> None:
        """`owner` must be held by this process; `runtime` is a name or path, None tries all; `path` is `PATH`."""
        self._data_dir = data_dir
        self.owner = owner
        self._owners = Owners(data_dir / "owners")
        self._sandboxes = data_dir / "sandboxes"
        self._runtime = runtime
        self._path = path
        self._store = OverlayStore(path)
        self.templates = Templates(data_dir / "templates", path)
        self._layout = cgroup.read_layout()
        self._means: Means | None = None
        self._choosing = anyio.Lock()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` with code `no_root`, `no_template`, `no_runtime` or `start_failed`."""
        plan.check_spec(spec)
        _check_root()
        template = self.templates.built(spec.template)
        if template is None:
            raise HostError(
                "no_template", f"The template {spec.template} is not built yet: prepare it first."
            )
        means = await self._choose()
        make_root = partial(self._store.create, template.rootfs)
        async with self._opened(means, Wish(spec, door, make_root, template)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def fork(self, parent: ContainerSandbox) -> AsyncGenerator[Sandbox]:
        """See `Sandbox.fork`."""
        means = await self._choose()
        wish = parent.wish

        async def copy(at: Path) -> Layers:
            async with parent.running.standing_still():
                return await self._store.fork(parent.running.root, at)

        child = Wish(wish.spec, wish.door, copy, wish.template, parent.info.id)
        async with self._opened(means, child) as sandbox:
            yield sandbox

    def adopt(self, sandbox: Sandbox, spec: SandboxSpec, door: Door | None) -> None:
        """See `Poolable.adopt`. Raises `UserError` (`bad_sandbox`)."""
        plan.check_spec(spec)
        ours = self._ours(sandbox)
        wish = replace(ours.wish, spec=spec, door=door)
        ours.adopt(wish, _environment(wish))

    def memory_of(self, sandbox: Sandbox) -> int:
        """See `Poolable.memory_of`."""
        return self._ours(sandbox).running.cgroup.memory_bytes()

    def version_of(self, template: str) -> str | None:
        """See `Poolable.version_of`."""
        try:
            built = self.templates.built(template)
        except CloisterError:
            return None
        return None if built is None else built.home.name

    def _ours(self, sandbox: Sandbox) -> ContainerSandbox:
        if not isinstance(sandbox, ContainerSandbox):
            raise Bug("a sandbox of another host")
        return sandbox

    async def keep(self, sandbox: Sandbox, at: Path) -> None:
        """The sandbox's whole root filesystem, as it is now, as the new directory `at`."""
        running = self._ours(sandbox).running
        async with running.standing_still():
            await flatten(running.root, at, self._path)

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`; raises as `Templates.prepare`."""
        await self.templates.prepare(template, report)

    async def sweep(self) -> int:
        """See `Host.sweep`."""
        removed = 0
        for name in _names_in(self._sandboxes):
            if self._owners.lives(name.owner):
                continue
            try:
                await self._remove(name)
                removed += 1
            except HostError as error:
                # One that cannot be removed now must not keep anyone from starting; it is tried again next time.
                logger.warning("%s was not removed: %s", name, error)
        self._owners.remove_dead()
        return removed

    async def probe(self) -> tuple[selftest.RuntimeReport, ...]:
        """How each runtime fares on this machine; those that failed before are tried again."""
        names = selftest.candidates(self._runtime)
        return tuple([await self._report(name, again=True) for name in names])

    async def _report(self, name: str, *, again: bool) -> selftest.RuntimeReport:
        memory = self._data_dir / "runtimes.json"
        return await selftest.report(name, self._path, memory, self._try, again=again)

    async def _choose(self) -> Means:
        async with self._choosing:
            if self._means is not None:
                return self._means
            names = selftest.candidates(self._runtime)
            reports = [await self._report(name, again=False) for name in names]
            if not any(report.works for report in reports):
                # What failed before may have been mended since; only a success is worth remembering for long.
                reports = [await self._report(name, again=True) for name in names]
            for report in reports:
                if report.works and report.path is not None:
                    self._means = await self._means_with(
                        report.path, f"{report.name} {report.version or '?'}"
                    )
                    return self._means
            why = " ".join(dict.fromkeys(report.why or "" for report in reports))
            raise HostError("no_runtime", f"No OCI runtime works on this machine: {why}")

    async def _means_with(self, runtime: Path, shown: str) -> Means:
        cache = self._data_dir / "programs"
        programs = plan.Programs(
            await guest.build("launch", cache), await guest.build("guest", cache), runtime
        )
        return Means(programs, Isolation("container", shown, shares_kernel=True, store=self._store.kind))

    async def _try(self, runtime: Path) -> None:
        """The self-test: a sandbox with nothing in it but the guest, which has to write and read a file."""
        _check_root()

        async def make_root(at: Path) -> Layers:
            return await self._store.create(_bare_root(at.parent / "rootfs"), at)

        try:
            with anyio.fail_after(_START_SECONDS):
                means = await self._means_with(runtime, runtime.name)
                async with self._opened(means, Wish(_TRIAL, None, make_root)) as sandbox:
                    await sandbox.write("/work/trial", b"it works")
                    if await sandbox.read("/work/trial") != b"it works":
                        raise HostError("trial_failed", "A file was not read as it was written.")
        except TimeoutError as error:
            raise HostError(
                "trial_failed", f"{runtime.name} did not start within {_START_SECONDS:g} s."
            ) from error

    @asynccontextmanager
    async def _opened(self, means: Means, wish: Wish) -> AsyncGenerator[ContainerSandbox]:
        async with self._used(wish.template), self._named(wish.spec.quota) as (name, group):
            home = self._sandboxes / str(name)
            root = await wish.make_root(home / "files")
            machine = self._machine(means.programs)
            _write_bundle(home, plan.oci_config(machine, name, wish.spec.quota))
            join = () if means.programs.manages_cgroups else group.procs_files()
            argv = plan.launch_argv(means.programs, machine, name, home, root, join)
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
                self._linked(running, name.sandbox, wish) as link,
            ):
                running.ends_with(link.lost)
                yield ContainerSandbox(self, wish, info, running, link)

    @asynccontextmanager
    async def _used(self, template: Built | None) -> AsyncGenerator[None]:
        if template is None:
            yield
            return
        with self.templates.using(template):
            yield

    @asynccontextmanager
    async def _linked(self, running: Running, sandbox: SandboxId, wish: Wish) -> AsyncGenerator[Link]:
        if running.process.stdin is None or running.process.stdout is None:
            raise Bug("a runtime was started without pipes")
        async with AsyncExitStack() as stack:
            try:
                link = await stack.enter_async_context(
                    open_link(
                        running.process.stdin,
                        running.process.stdout,
                        ttl_seconds=wish.spec.ttl_seconds,
                        hostname=plan.HOSTNAME,
                        env=_environment(wish),
                        door=None if wish.door is None else partial(wish.door, sandbox),
                    )
                )
            except SandboxLost as error:
                # The guest never spoke: the reason is what the launcher or the runtime said about it.
                with anyio.move_on_after(1.0):
                    await running.ended.wait()
                raise HostError(
                    "start_failed", f"A sandbox could not be started: {running.last_words or error}"
                ) from error
            yield link

    @asynccontextmanager
    async def _named(self, quota: Quota) -> AsyncGenerator[tuple[plan.Name, Cgroup]]:
        name, group = self._claim(quota)
        try:
            yield name, group
        finally:
            with anyio.move_on_after(_END_SECONDS, shield=True):
                try:
                    await self._remove(name)
                except CloisterError as error:
                    # The next sweep after our end tries again; the caller's own error is the one that matters.
                    logger.error("%s was not removed: %s", name, error)

    def _claim(self, quota: Quota) -> tuple[plan.Name, Cgroup]:
        """A name with ids that no other sandbox on this machine has, its directory and its cgroups."""
        if not self._owners.lives(self.owner):
            raise Bug(f"sandboxes are opened for {self.owner}, which nobody holds")
        self._sandboxes.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            slot = secrets.choice(plan.SLOTS)
            if slot in self._slots():
                continue
            name = plan.Name(new_sandbox_id(), self.owner, slot)
            home = self._sandboxes / str(name)
            # The directory first: a sweep finds cgroups by it.
            home.mkdir(mode=0o700)
            try:
                group = Cgroup.create(self._layout, str(name), quota)
            except CloisterError:
                home.rmdir()
                raise
            if self._slots().count(slot) == 1:
                return name, group
            group.discard()
            home.rmdir()

    def _slots(self) -> list[int]:
        return [name.slot for text in cgroup.names(self._layout) if (name := plan.parse_name(text))]

    async def _remove(self, name: plan.Name) -> None:
        home = self._sandboxes / str(name)
        await Cgroup(self._layout, str(name)).remove()
        await self._store.remove(home / "files")
        shutil.rmtree(home, ignore_errors=True)

    def _machine(self, programs: plan.Programs) -> plan.Machine:
        places = {place for place in plan.PLACES if os.path.isdir(place)}  # noqa: PTH112 - strings, not paths
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return plan.Machine(
            place=plan.mount_point([self._data_dir.resolve(), programs.runtime], places),
            open_files_max=1_048_576 if hard == resource.RLIM_INFINITY else hard,
            refused_tree=self._layout.v2 if self._layout.hybrid else None,
        )


def _environment(wish: Wish) -> dict[str, str]:
    about = wish.template.about if wish.template else About()
    return plan.environment(wish.spec, about.env, about.home)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise HostError("no_root", "Sandboxes need root on this machine: run with sudo.")


def _names_in(directory: Path) -> list[plan.Name]:
    if not directory.is_dir():
        return []
    return [name for path in sorted(directory.iterdir()) if (name := plan.parse_name(path.name))]


def _write_bundle(home: Path, config: bytes) -> None:
    (home / "config.json").write_bytes(config)


def _bare_root(at: Path) -> Path:
    """The smallest root filesystem a runtime accepts: mount points, and a directory to write in."""
    for name in ("proc", "dev", ".cloister", "work"):
        (at / name).mkdir(parents=True)
    (at / ".cloister" / "guest").touch()
    os.chown(at / "work", 1000, 1000)
    return at
