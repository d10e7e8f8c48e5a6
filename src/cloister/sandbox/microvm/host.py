"""The microvm tier: QEMU's smallest machine, with KVM where it boots a guest, else by software emulation.

A sandbox is three nested blocks: its name (a directory and cgroups), its emulator's process, the link to its guest.
Its memory and disk are open files without names, so leaving the blocks removes everything.
"""

import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import msgspec

from cloister.core.computer import Command
from cloister.core.errors import HostError, SandboxLost, UserError
from cloister.core.ids import OwnerId, SandboxId
from cloister.core.requests import Isolation, Quota
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import (
    Door,
    Load,
    Report,
    Sandbox,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    TierReport,
)
from cloister.sandbox.local import guest_build, selftest
from cloister.sandbox.local.names import Claims
from cloister.sandbox.local.spec import (
    check_root,
    check_spec,
    check_ttl,
    mount_point_here,
    no_template,
    sandbox_info,
    silent,
    with_problem,
)
from cloister.sandbox.microvm import boot, command_line, ram, snapshots
from cloister.sandbox.microvm.boot import Awake, Kernels, MachineRequest, Moment, VmTools
from cloister.sandbox.microvm.disks import Disk, OpenFile, held, new_layer
from cloister.sandbox.microvm.snapshots import fork_moment, grow
from cloister.sandbox.microvm.template_image import BootSource, Images, Size, size_for
from cloister.sandbox.protocol.link import Link
from cloister.sandbox.snapshots import Origin, Snapshots, Subject, reference_in
from cloister.sandbox.store import api
from cloister.sandbox.store.api import Shortage, shortage
from cloister.sandbox.templates.building import Built, locked, start_services
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.root import furnish

_MEASURE_SECONDS = 30.0
_TOLERANCE = 0.005
"""How far two measurements on the same machine may differ; a larger difference means another machine."""


async def counter_khz(jail: Path, memory: Path) -> int:
    """The frequency of this machine's time stamp counter, measured once. Images are made for one frequency.

    Raises `HostError` (`no_counter`).
    """
    shown = await capture([str(jail), "-t"], env={}, seconds=_MEASURE_SECONDS)
    if not shown.ok or not shown.out.strip().isdigit():
        raise HostError("no_counter", "The speed of this machine's time stamp counter could not be measured.")
    return _remember(int(shown.out), memory)


def _remember(measured: int, memory: Path) -> int:
    with suppress(OSError, ValueError):
        known = int(memory.read_text())
        if abs(known - measured) <= _TOLERANCE * measured:
            return known
    memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    memory.write_text(f"{measured}\n")
    return measured


ACCELERATORS: tuple[command_line.Accelerator, ...] = ("kvm", "tcg")
"""In the order of preference."""

_KVM = Path("/dev/kvm")
_NOT_TRIED = TierReport(
    "microvm",
    works=False,
    native=False,
    found="Not tested yet: whether KVM boots a machine here.",
    fix="cloister doctor",
)
_TRIAL = SandboxSpec(
    quota=Quota(cpus=1.0, memory_bytes=command_line.MEMORY_MIN, disk_bytes=16 * 1024**2), ttl_seconds=240.0
)
_SYNC_SECONDS = 60.0
LAYERS_MAX = 200
"""Of one disk. Each layer is an open file of the emulator and one more lookup for every read."""

_INSTALL = "apt-get install --no-install-recommends qemu-system-x86"
_FIX: dict[command_line.Accelerator, str] = {
    "kvm": "use a machine with hardware virtualization, or one whose host passes it on whole",
    "tcg": f"{_INSTALL} e2fsprogs gcc libc6-dev",
}


@dataclass(slots=True)
class _Shared:
    """One moment for all forks that were requested at the same time."""

    number: int
    moment: Moment


class MicrovmSandbox(Link):
    """One running machine. Implements `Sandbox`."""

    def __init__(
        self,
        host: "MicrovmHost",
        request: MachineRequest,
        info: SandboxInfo,
        awake: Awake,
        base: OpenFile,
        files: ExitStack,
    ) -> None:
        """`files` holds its files open and ends with it."""
        super().__init__(awake.link.env, awake.link.mux)
        self.info = info
        self.request = request
        self.origin = request.origin
        self.pause_seconds = 0.0
        """How long its last fork stopped it."""
        self._host = host
        self._awake = awake
        self._base = base
        self._disk: Disk = awake.disk
        self._began_with = len(awake.disk.layers) - 1
        self._files = files
        self._copying = anyio.Lock()
        self._begun = 0
        self._waiting = 0
        self._shared: _Shared | None = None

    def fork(self, copied: Callable[[], None] | None = None) -> AbstractAsyncContextManager[Sandbox]:
        return self._host.fork(self, copied)

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        async with self._copying:
            self._check_alive()
            below = self._disk
            written = snapshots.Written(
                below, len(below.layers) - self._began_with, self.info.quota.disk_bytes
            )
            subject = Subject(self.info.id, "microvm", written, self.origin, self._divided)
            try:
                taken = await self._host.kept.take(subject, name)
            except HostError:
                self._check_alive()  # report the loss of the machine rather than its consequence
                raise
            self.origin = Origin(taken.template, taken.id)
            return taken

    @asynccontextmanager
    async def _divided(self) -> AsyncGenerator[None]:
        """Put a new layer on the disk, so that the ones below no longer change."""
        # Flush most of it while everything still runs; a template without `sync` flushes all of it below.
        with suppress(UserError):
            await self.run(Command(("sync",), cwd="/", seconds=_SYNC_SECONDS))
        top = self._new_top()
        async with self.held(quiet=True) as quiet:
            if not quiet:
                raise HostError(
                    "snapshot_failed", "The files of the sandbox could not be written to its disk."
                )
            await grow(self._awake, len(self._disk.layers) + 1, top)
            self._disk = self._disk.under(top)
        yield

    def _new_top(self) -> OpenFile:
        """A layer for the next writes of this machine."""
        if len(self._disk.layers) >= LAYERS_MAX:
            raise HostError(
                "too_many_copies", f"A virtual machine is copied at most {LAYERS_MAX} times: open a new one."
            )
        top = self._host.new_layer(self._disk.base.size)
        # Held in any case: the emulator may have it on its disk even if the copy fails later.
        self._files.enter_context(held(top))
        return top

    def _check_alive(self) -> None:
        if self._awake.machine.ended.is_set() or self.lost.is_set():
            raise SandboxLost(self._why_lost())

    def _why_lost(self) -> str:
        return self._awake.machine.reason or self.reason or "The sandbox was killed or ended by itself."

    async def set_ttl(self, ttl_seconds: float) -> None:
        check_ttl(ttl_seconds)
        await self.tell_ttl(ttl_seconds)
        self._awake.machine.restart_clock(ttl_seconds)
        self.info = msgspec.structs.replace(self.info, expires_at=time.time() + ttl_seconds)

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        async with self._copying:
            self._check_alive()
            async with snapshots.stopped(self._awake):
                with self.mux.stillness.lasting():
                    yield

    async def load(self) -> Load:
        group = self._awake.machine.cgroup
        used = snapshots.written_bytes(self._disk, len(self._disk.layers) - self._began_with)
        return Load(group.cpu_seconds(), group.memory_bytes(), used)

    async def wait_lost(self) -> str:
        await self._awake.machine.ended.wait()
        return self._why_lost()

    async def moment(self, files: ExitStack) -> Moment:
        """Save this machine at a moment after the call; the result stays open until `files` ends.

        Callers that wait at the same time share one moment.
        """
        wanted = self._begun + 1
        self._waiting += 1
        try:
            async with self._copying:
                shared = self._shared
                if shared is None or shared.number < wanted:
                    self._begun += 1
                    shared = _Shared(self._begun, await self._take_moment())
                    self._share(shared)
                files.enter_context(held(*shared.moment.files))
                return shared.moment
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._share(None)

    def _share(self, shared: _Shared | None) -> None:
        for file in shared.moment.files if shared else ():
            file.hold()
        for file in self._shared.moment.files if self._shared else ():
            file.let_go()
        self._shared = shared

    async def _take_moment(self) -> Moment:
        self._check_alive()
        top = self._new_top()
        try:
            made = await fork_moment(self._awake, self._disk, self._base, top)
        except (HostError, LookupError, OSError) as error:
            if self._awake.machine.ended.is_set() or self.lost.is_set():
                raise SandboxLost(await self.wait_lost()) from error
            raise HostError("fork_failed", f"The sandbox could not be copied: {error}") from error
        self._disk = made.disk
        self.pause_seconds = made.pause_seconds
        return made.moment


class MicrovmHost:
    """The `microvm` tier of this machine. Implements `local.provider.TierHost`."""

    def __init__(
        self,
        data_dir: Path,
        owner: OwnerId,
        runtime: str | None,
        path: str,
        *,
        boot_seconds: Sequence[float] | None = None,
    ) -> None:
        """This process must hold `owner`; `runtime` is the emulator, None is QEMU's; `path` is `PATH`.

        `boot_seconds` is as for `Images`.
        """
        self._data_dir = data_dir
        self._directory = data_dir / "microvm"
        self._runtime = runtime or command_line.EMULATOR
        self._path = path
        self._claims = Claims(data_dir, owner)
        self._templates = Templates(data_dir / "templates", path)
        self._kernels = Kernels(self._directory / "kernels", path)
        self._images = Images(self._directory / "images", self._claims, path, boot_seconds)
        self.kept = Snapshots(snapshots.Shelf(self._directory / "snapshots", self._images.directory))
        self._tools: VmTools | None = None
        self._choosing = anyio.Lock()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` with code `no_root`, `no_template`, `no_runtime` or `start_failed`."""
        check_spec(spec)
        built: Built | None = None
        if (reference := reference_in(spec.template)) is not None:
            found, home = await self.kept.find(reference)
            check_root()
            tools = await self._choose()
            # A snapshot keeps the size of its disk.
            quota = msgspec.structs.replace(spec.quota, disk_bytes=snapshots.disk_bytes(home))
            spec = msgspec.structs.replace(spec, quota=quota)
            origin, moment = Origin(found.template, found.id), await self._kept_moment(tools, quota, home)
        else:
            template = self._templates.built(spec.template)
            check_root()
            if template is None:
                raise no_template(spec.template)
            tools = await self._choose()
            built, origin = template, Origin(spec.template)
            spec = msgspec.structs.replace(spec, env={**template.about.env, **spec.env})
            moment = await self._moment(tools, template, spec.quota, silent)
        async with self._opened(tools, MachineRequest(spec, door, origin), moment) as sandbox:
            sandbox.info = with_problem(sandbox.info, await start_services(sandbox, built))
            yield sandbox

    async def _moment(self, tools: VmTools, template: Built, quota: Quota, report: Report) -> Moment:
        size = size_for(quota)
        source = self._images.template(template, size, report)
        return await self._images.moment(tools, source, size, report)

    async def _kept_moment(self, tools: VmTools, quota: Quota, home: Path) -> Moment:
        """A machine that booted the snapshot in `home`."""

        async def opened() -> Disk:
            return snapshots.load(home)

        source = BootSource(home.name, opened, warm_up=(("true",),), settle_seconds=0.0)
        size = Size(command_line.memory_for(quota.memory_bytes), 0)
        return await self._images.moment(tools, source, size, silent)

    @asynccontextmanager
    async def fork(
        self, parent: MicrovmSandbox, copied: Callable[[], None] | None = None
    ) -> AsyncGenerator[Sandbox]:
        tools = await self._choose()
        with ExitStack() as files:
            moment = await parent.moment(files)
            if copied is not None:
                copied()
            request = replace(parent.request, origin=parent.origin)
            async with self._opened(tools, request, moment, parent.info.id) as sandbox:
                yield sandbox

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`; raises as `Templates.prepare` and `open`, and `no_kernel`."""
        await self._templates.prepare(template, report)
        await self._kernels.prepare(report)
        if (built := self._templates.built(template)) is not None:
            await self._moment(await self._choose(), built, Quota(), report)

    async def shortage(self) -> Shortage | None:
        """See `Provider.shortage`."""
        return shortage(self._data_dir)

    async def sweep(self) -> int:
        return await self._claims.sweep()

    async def report(self, *, again: bool = False, quick: bool = False) -> TierReport:
        """See `TierHost.report`. Booting is slow, so `quick` only reads the result of an earlier test of KVM."""
        if quick:
            known = selftest.remembered(self._runtime, self._bench("kvm"))
            return self._summed_up("kvm", known) if known and known.works else _NOT_TRIED
        reports: list[tuple[command_line.Accelerator, selftest.RuntimeReport]] = []
        for name in ACCELERATORS:
            reports.append((name, await self._report(name, again=again)))
            if reports[-1][1].works:
                break
        for name, made in reports:
            if made.works:
                return self._summed_up(name, made)
        why = " ".join(dict.fromkeys(made.why or "" for _, made in reports))
        return TierReport("microvm", works=False, native=False, found=why, fix=reports[-1][1].fix)

    def _summed_up(self, accelerator: command_line.Accelerator, made: selftest.RuntimeReport) -> TierReport:
        found = f"{Path(self._runtime).name} {(made.version or '?').strip('()')} on {accelerator}, self-test passed"
        if accelerator == "kvm":
            return TierReport("microvm", works=True, native=True, found=found)
        found += ": a guest boots; software emulation, so used only when asked for by name"
        return TierReport("microvm", works=True, native=False, found=found, fix=_FIX["kvm"])

    def _bench(self, accelerator: command_line.Accelerator) -> selftest.Bench:
        return selftest.Bench("microvm", "qcow2", self._path, self._directory / f"{accelerator}.json")

    async def close(self) -> None:
        """Release the memory of images; a later `open` loads it again."""
        self._images.unload()

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return await self.kept.list()

    async def delete_snapshot(self, reference: str) -> None:
        found, _ = await self.kept.find(reference)
        await self.kept.delete(found.id)
        self._images.forget(found.id)

    def new_layer(self, size_bytes: int) -> OpenFile:
        """An empty layer of a disk. Raises `HostError` (`no_disk`)."""
        directory = self._images.directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            api.check_floor(directory, api.floor_of(directory))
            return new_layer(directory, size_bytes)
        except OSError as error:
            raise api.explained(error, "A new disk", directory, api.floor_of(directory)) from error

    @asynccontextmanager
    async def _opened(
        self, tools: VmTools, request: MachineRequest, moment: Moment, parent: SandboxId | None = None
    ) -> AsyncGenerator[MicrovmSandbox]:
        top = self.new_layer(moment.disk.base.size)
        async with AsyncExitStack() as stack:
            files = stack.enter_context(ExitStack())
            files.enter_context(held(top, *moment.files))
            awake = await stack.enter_async_context(boot.woken(tools, self._claims, request, moment, top))
            info = sandbox_info(awake.name.sandbox, request.spec, _isolation(tools), parent)
            if parent is not None:
                info = msgspec.structs.replace(info, fork="memory")
            yield MicrovmSandbox(self, request, info, awake, moment.ram, files)

    async def _report(self, accelerator: command_line.Accelerator, *, again: bool) -> selftest.RuntimeReport:
        if accelerator == "kvm" and not os.access(_KVM, os.R_OK | os.W_OK):
            return selftest.RuntimeReport(
                "kvm", None, None, works=False, why="There is no usable /dev/kvm.", fix=_FIX["kvm"]
            )

        async def trial(emulator: Path) -> selftest.Proof:
            await self._try(emulator, accelerator)
            return selftest.Proof()

        made = await selftest.report(self._runtime, self._bench(accelerator), trial, again=again)
        fix = None if made.works else _INSTALL if made.path is None else _FIX[accelerator]
        version = None if made.version is None else made.version.strip("()")
        name = f"{Path(self._runtime).name} ({accelerator})"
        return msgspec.structs.replace(made, name=name, version=version, fix=fix)

    async def _choose(self) -> VmTools:
        async with self._choosing:
            if self._tools is not None:
                return self._tools
            failed: list[str] = []
            for accelerator in ACCELERATORS:
                report = await self._report(accelerator, again=False)
                if report.works and report.path is not None:
                    self._tools = await self._tools_with(report.path, report.version or "?", accelerator)
                    return self._tools
                failed.append(report.why or "")
            raise HostError("no_runtime", f"No virtual machine works here: {' '.join(failed)}")

    async def _tools_with(
        self, emulator: Path, version: str, accelerator: command_line.Accelerator
    ) -> VmTools:
        programs = self._data_dir / "programs"
        jail = await guest_build.build("jail", programs)
        return VmTools(
            emulator=emulator,
            version=version,
            jail=jail,
            guest=await guest_build.build("guest", programs),
            kernel=await self._kernels.prepare(silent),
            accelerator=accelerator,
            path=self._path,
            counter_khz=await counter_khz(jail, self._directory / "counter_khz"),
            place=mount_point_here([self._data_dir, emulator]),
        )

    async def _try(self, emulator: Path, accelerator: command_line.Accelerator) -> None:
        """The self-test: boot a machine with an empty disk, then write and read a file in it."""
        check_root()
        tools = await self._tools_with(emulator, "trial", accelerator)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Other processes may test on this data directory at the same time.
        async with locked(self._directory / ".lock-trial", silent):
            await self._try_alone(tools)

    async def _try_alone(self, tools: VmTools) -> None:
        rootfs = self._directory / "trial" / "rootfs"
        furnish(rootfs)
        try:
            base = await self._images.disk("trial", rootfs, _TRIAL.quota.disk_bytes, silent)
            trial = Disk(base, (self.new_layer(base.size),))
            memory = OpenFile(ram.new_ram(command_line.MEMORY_MIN))
            with held(memory, *trial.files):
                async with boot.booted(tools, self._claims, MachineRequest(_TRIAL), trial, memory) as awake:
                    await awake.link.write("/work/trial", b"it works")
                    if await awake.link.read("/work/trial") != b"it works":
                        raise HostError("trial_failed", "A file read back different from what was written.")
        finally:
            shutil.rmtree(rootfs.parent, ignore_errors=True)


def _isolation(tools: VmTools) -> Isolation:
    shown = f"{tools.emulator.name} {tools.version}"
    return Isolation("microvm", shown, shares_kernel=False, store="qcow2", accelerator=tools.accelerator)
