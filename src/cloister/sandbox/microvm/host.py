"""The microvm tier: QEMU's smallest machine, with hardware where that really works, else in software.

A sandbox is nested lifetimes, each a block: its name (a directory and cgroups), its emulator's process, the link
to its guest. Its memory and its disk are open files without names, so nothing remains however those are left.
"""

import os
import shutil
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import msgspec

from cloister.core.computer import Command
from cloister.core.errors import HostError, SandboxLost, UserError
from cloister.core.ids import OwnerId, SandboxId
from cloister.core.requests import Isolation, Quota
from cloister.sandbox import guest_build, selftest
from cloister.sandbox._spawn import capture
from cloister.sandbox.api import Door, Report, Sandbox, SandboxInfo, SandboxSpec, SnapshotInfo, TierReport
from cloister.sandbox.container import oci
from cloister.sandbox.container.names import Claims
from cloister.sandbox.microvm import boot, command_line, ram, snapshots
from cloister.sandbox.microvm.boot import Awake, Means, Moment, Wish
from cloister.sandbox.microvm.checkpoint import fork_moment, grow
from cloister.sandbox.microvm.disks import Disk, OpenFile, held, new_layer
from cloister.sandbox.microvm.kernel import Kernels
from cloister.sandbox.microvm.template_image import Images, Size, Source, size_for
from cloister.sandbox.protocol.link import Linked
from cloister.sandbox.snapshots import Origin, Snapshots, Subject, reference_in
from cloister.sandbox.store import api
from cloister.sandbox.templates.building import locked
from cloister.sandbox.templates.catalog import Templates

# How fast this machine's time stamp counter runs, measured once and kept: images are made for one speed.


_MEASURE_SECONDS = 30.0
_TOLERANCE = 0.005
"""What two measurements on the same machine may differ by; more than that is another machine."""


async def counter_khz(jail: Path, memory: Path) -> int:
    """The counter's speed. Raises `HostError` (`no_counter`)."""
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
    found="It was not tried yet whether KVM boots a machine here.",
    fix="cloister doctor",
)
_TRIAL = SandboxSpec(
    quota=Quota(cpus=1.0, memory_bytes=command_line.MEMORY_MIN, disk_bytes=16 * 1024**2), ttl_seconds=240.0
)
_SYNC_SECONDS = 60.0
LAYERS_MAX = 200
"""Of a disk: each is a file that the emulator has open, and one more place to look for what was written."""

_INSTALL = "apt-get install --no-install-recommends qemu-system-x86"
_FIX: dict[command_line.Accelerator, str] = {
    "kvm": "use a machine with hardware virtualization, or one whose host passes it on whole",
    "tcg": f"{_INSTALL} e2fsprogs gcc libc6-dev",
}


@dataclass(slots=True)
class _Shared:
    """The moment that those who asked for a fork at the same time share."""

    number: int
    moment: Moment


class MicrovmSandbox(Linked):
    """One running machine, as the rest of the house sees it."""

    def __init__(
        self,
        host: "MicrovmHost",
        wish: Wish,
        info: SandboxInfo,
        awake: Awake,
        base: OpenFile,
        files: ExitStack,
    ) -> None:
        """`files` is what it holds open, and ends with it."""
        super().__init__(awake.link)
        self.info = info
        self.wish = wish
        self.origin = wish.origin
        self.pause_seconds = 0.0
        """How long it stood still for its last fork."""
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

    def fork(self) -> AbstractAsyncContextManager[Sandbox]:
        return self._host.fork(self)

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """See `Sandbox.snapshot`."""
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
                self._check_alive()  # what the end of the machine brought about is its loss
                raise
            self.origin = Origin(taken.template, taken.id)
            return taken

    @asynccontextmanager
    async def _divided(self) -> AsyncGenerator[None]:
        """From the beginning of the block, what was written until then is not written any more."""
        # Most of it while everything still runs; a template without the program pays below.
        with suppress(UserError):
            await self.run(Command(("sync",), cwd="/", seconds=_SYNC_SECONDS))
        top = self._new_top()
        async with self._link.held(quiet=True) as quiet:
            if not quiet:
                raise HostError(
                    "snapshot_failed", "The files of the sandbox could not be brought to its disk."
                )
            await grow(self._awake, len(self._disk.layers) + 1, top)
            self._disk = self._disk.under(top)
        yield

    def _new_top(self) -> OpenFile:
        """A layer for what this machine writes next."""
        if len(self._disk.layers) >= LAYERS_MAX:
            raise HostError(
                "too_many_copies", f"A virtual machine is copied at most {LAYERS_MAX} times: open a new one."
            )
        top = self._host.new_layer(self._disk.base.size)
        # Held whatever comes: the emulator may have it on its disk even where what it is for failed afterwards.
        self._files.enter_context(held(top))
        return top

    def _check_alive(self) -> None:
        if self._awake.machine.ended.is_set() or self._link.lost.is_set():
            raise SandboxLost(
                self._awake.machine.reason
                or self._link.reason
                or "The sandbox was killed or ended by itself."
            )

    async def wait_lost(self) -> str:
        await self._awake.machine.ended.wait()
        return self._awake.machine.reason or self._link.reason or "The sandbox was killed or ended by itself."

    async def moment(self, files: ExitStack) -> Moment:
        """This machine at a moment after the call, held open until `files` ends.

        Those who wait for one at the same time get the same one.
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
            if self._awake.machine.ended.is_set() or self._link.lost.is_set():
                raise SandboxLost(await self.wait_lost()) from error
            raise HostError("fork_failed", f"The sandbox could not be copied: {error}") from error
        self._disk = made.disk
        self.pause_seconds = made.pause_seconds
        return made.moment


class MicrovmHost:
    """This machine as a place for virtual machines. Implements `sandbox.api.Host`."""

    def __init__(
        self,
        data_dir: Path,
        owner: OwnerId,
        runtime: str | None,
        path: str,
        *,
        boot_seconds: Sequence[float] | None = None,
    ) -> None:
        """`owner` must be held by this process; `runtime` is the emulator, None is QEMU's; `path` is `PATH`.

        `boot_seconds` is as for `Images`.
        """
        self._data_dir = data_dir
        self._directory = data_dir / "microvm"
        self._runtime = runtime or command_line.EMULATOR
        self._path = path
        self._claims = Claims(data_dir, owner)
        self._templates = Templates(data_dir / "templates", path)
        self._kernels = Kernels(self._directory / "kernels", path)
        self._images = Images(self._directory / "images", self._claims, boot_seconds)
        self.kept = Snapshots(snapshots.Shelf(self._directory / "snapshots", self._images.directory))
        self._means: Means | None = None
        self._choosing = anyio.Lock()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[Sandbox]:
        """See `Host.open`. Raises `HostError` with code `no_root`, `no_template`, `no_runtime` or `start_failed`."""
        oci.check_spec(spec)
        if (reference := reference_in(spec.template)) is not None:
            found, home = await self.kept.find(reference)
            _check_root()
            means = await self._choose()
            # The room on its disk is what it was then.
            quota = msgspec.structs.replace(spec.quota, disk_bytes=snapshots.disk_bytes(home))
            spec = msgspec.structs.replace(spec, quota=quota)
            origin, moment = Origin(found.template, found.id), await self._kept_moment(means, quota, home)
        else:
            rootfs = self._templates.find(spec.template)
            _check_root()
            if rootfs is None:
                raise HostError(
                    "no_template", f"The template {spec.template} is not built yet: prepare it first."
                )
            means = await self._choose()
            origin, moment = Origin(spec.template), await self._moment(means, rootfs, spec.quota, _silent)
        async with self._opened(means, Wish(spec, door, origin), moment) as sandbox:
            yield sandbox

    async def _moment(self, means: Means, rootfs: Path, quota: Quota, report: Report) -> Moment:
        size = size_for(quota)
        source = self._images.template(rootfs, size, means.path, report)
        return await self._images.moment(means, source, size, report)

    async def _kept_moment(self, means: Means, quota: Quota, home: Path) -> Moment:
        """A machine that has booted what was kept in `home`."""

        async def opened() -> Disk:
            return snapshots.load(home)

        source = Source(home.name, opened, warm_up=(("true",),), settle_seconds=0.0)
        size = Size(command_line.memory_for(quota.memory_bytes), 0)
        return await self._images.moment(means, source, size, _silent)

    @asynccontextmanager
    async def fork(self, parent: MicrovmSandbox) -> AsyncGenerator[Sandbox]:
        """See `Sandbox.fork`."""
        means = await self._choose()
        with ExitStack() as files:
            moment = await parent.moment(files)
            wish = replace(parent.wish, origin=parent.origin)
            async with self._opened(means, wish, moment, parent.info.id) as sandbox:
                yield sandbox

    async def prepare(self, template: str, report: Report) -> None:
        """See `Host.prepare`; raises as `Templates.prepare` and `open`, and `no_kernel`."""
        await self._templates.prepare(template, report)
        await self._kernels.prepare(report)
        rootfs = self._templates.find(template)
        if rootfs is not None:
            await self._moment(await self._choose(), rootfs, Quota(), report)

    async def sweep(self) -> int:
        """See `Host.sweep`."""
        return await self._claims.sweep()

    async def report(self, *, again: bool = False, quick: bool = False) -> TierReport:
        """See `TierHost.report`. Booting takes long, so `quick` believes only a trial of KVM that was made before."""
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
        found += ": a guest boots; software emulation, so only when asked for by name"
        return TierReport("microvm", works=True, native=False, found=found, fix=_FIX["kvm"])

    def _bench(self, accelerator: command_line.Accelerator) -> selftest.Bench:
        return selftest.Bench("microvm", "qcow2", self._path, self._directory / f"{accelerator}.json")

    async def close(self) -> None:
        """Let go of the memory of images. Whatever is opened later loads it again."""
        self._images.unload()

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """See `Host.snapshots`."""
        return await self.kept.list()

    async def delete_snapshot(self, reference: str) -> None:
        """See `Host.delete_snapshot`."""
        found, _ = await self.kept.find(reference)
        await self.kept.delete(found.id)
        self._images.forget(found.id)

    def new_layer(self, size_bytes: int) -> OpenFile:
        """A place for what a machine writes to its disk. Raises `HostError` (`no_disk`)."""
        directory = self._images.directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            api.check_floor(directory, api.floor_of(directory))
            return new_layer(directory, size_bytes)
        except OSError as error:
            raise api.explained(error, "A new disk", directory, api.floor_of(directory)) from error

    @asynccontextmanager
    async def _opened(
        self, means: Means, wish: Wish, moment: Moment, parent: SandboxId | None = None
    ) -> AsyncGenerator[MicrovmSandbox]:
        top = self.new_layer(moment.disk.base.size)
        async with AsyncExitStack() as stack:
            files = stack.enter_context(ExitStack())
            files.enter_context(held(top, *moment.files))
            awake = await stack.enter_async_context(boot.woken(means, self._claims, wish, moment, top))
            now = time.time()
            info = SandboxInfo(
                id=awake.name.sandbox,
                template=wish.spec.template,
                isolation=_isolation(means),
                quota=wish.spec.quota,
                created_at=now,
                expires_at=now + wish.spec.ttl_seconds,
                parent=parent,
                fork=None if parent is None else "memory",
            )
            yield MicrovmSandbox(self, wish, info, awake, moment.ram, files)

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

    async def _choose(self) -> Means:
        async with self._choosing:
            if self._means is not None:
                return self._means
            failed: list[str] = []
            for accelerator in ACCELERATORS:
                report = await self._report(accelerator, again=False)
                if report.works and report.path is not None:
                    self._means = await self._means_with(report.path, report.version or "?", accelerator)
                    return self._means
                failed.append(report.why or "")
            raise HostError("no_runtime", f"No virtual machine works here: {' '.join(failed)}")

    async def _means_with(self, emulator: Path, version: str, accelerator: command_line.Accelerator) -> Means:
        programs = self._data_dir / "programs"
        jail = await guest_build.build("jail", programs)
        return Means(
            emulator=emulator,
            version=version,
            jail=jail,
            guest=await guest_build.build("guest", programs),
            kernel=await self._kernels.prepare(_silent),
            accelerator=accelerator,
            path=self._path,
            counter_khz=await counter_khz(jail, self._directory / "counter_khz"),
            place=_place([self._data_dir, emulator]),
        )

    async def _try(self, emulator: Path, accelerator: command_line.Accelerator) -> None:
        """The self-test: a machine with nothing on its disk, booted, which has to write and read a file."""
        _check_root()
        means = await self._means_with(emulator, "trial", accelerator)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Alone: others may begin on this data directory at the same time.
        async with locked(self._directory / ".lock-trial", _silent):
            await self._try_alone(means)

    async def _try_alone(self, means: Means) -> None:
        rootfs = self._directory / "trial" / "rootfs"
        _bare_root(rootfs)
        try:
            base = await self._images.disk(rootfs, _TRIAL.quota.disk_bytes, self._path, _silent)
            trial = Disk(base, (self.new_layer(base.size),))
            memory = OpenFile(ram.new_ram(command_line.MEMORY_MIN))
            with held(memory, *trial.files):
                async with boot.booted(means, self._claims, Wish(_TRIAL), trial, memory) as awake:
                    await awake.link.write("/work/trial", b"it works")
                    if await awake.link.read("/work/trial") != b"it works":
                        raise HostError("trial_failed", "A file was not read as it was written.")
        finally:
            shutil.rmtree(rootfs.parent, ignore_errors=True)


def _isolation(means: Means) -> Isolation:
    shown = f"{means.emulator.name} {means.version}"
    return Isolation("microvm", shown, shares_kernel=False, store="qcow2", accelerator=means.accelerator)


def _silent(_fraction: float | None, _note: str) -> None:
    return None


def _place(avoid: list[Path]) -> str:
    present = {place for place in oci.PLACES if Path(place).is_dir()}
    return oci.mount_point([path.resolve() for path in avoid], present)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise HostError("no_root", "Sandboxes need root on this machine: run with sudo.")


def _bare_root(at: Path) -> None:
    """The smallest root filesystem a guest accepts: mount points, and a directory to write in."""
    for name in ("proc", "dev", "etc", "work"):
        (at / name).mkdir(parents=True, exist_ok=True)
    os.chown(at / "work", 1000, 1000)
