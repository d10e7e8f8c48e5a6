"""The emulator's command line. Pure.

Everything that decides what a machine can reach is in this file: a link to the guest, a disk, a console for output.
No network, no monitor visible to the guest, no file of the host by name.
"""

from pathlib import Path
from typing import Literal

import msgspec

Accelerator = Literal["kvm", "tcg"]

EMULATOR = "qemu-system-x86_64"
OVERHEAD_BYTES = 192 * 1024**2
"""Memory of the emulator itself: its code, its heap, translated code."""

TASKS = 160
"""Threads of an emulator: one per processor, one that waits, and a pool that works on the disk."""

MEMORY_STEP = 64 * 1024**2
MEMORY_MIN = 128 * 1024**2

_TRANSLATED_MEGABYTES = 64
# No memory cgroups: the machine's memory is the limit. No huge pages: they would make copies larger.
_COMMON = (
    "console=ttyS0 reboot=t panic=-1 quiet loglevel=3 random.trust_cpu=on"
    " cgroup_disable=memory transparent_hugepage=never"
)
_CMDLINE: dict[Accelerator, str] = {
    "kvm": _COMMON,
    # Without the first four the kernel hangs on a busy host while it measures its clock. The next ones save time:
    # they disable protections against attacks that do not work through an emulator, or that are prevented elsewhere.
    # The last one loads programs at the same addresses each time, so that translated code is reused: they start
    # three times as fast.
    "tcg": _COMMON
    + " no_timer_check lpj=4000000 tsc=nowatchdog tsc_early_khz={khz}"
    + " mitigations=off init_on_alloc=0 lsm=landlock audit=0 psi=0 nowatchdog norandmaps",
}
# Instructions that copy whole strings, or wide registers, are the slowest of all to emulate.
_CPU: dict[Accelerator, str] = {
    "kvm": "host",
    "tcg": "max,-erms,-fsrm,-avx2,-avx,-la57,-smap,-smep,-pku,-umip,-xsave,-rdpid,-fsgsbase",
}


class Boot(msgspec.Struct, frozen=True):
    """Descriptors of the kernel and the initramfs."""

    kernel: int
    initramfs: int
    cmdline: str


class LayerFiles(msgspec.Struct, frozen=True):
    """Descriptors of one disk layer. Only the topmost can be written."""

    read: int
    write: int | None = None


class MachinePlan(msgspec.Struct, frozen=True):
    """Everything a machine is made of, as open descriptors."""

    accelerator: Accelerator
    memory_bytes: int
    ram: int
    ram_shared: bool
    """Whether writes of the machine go to `ram`; else they stay private."""
    link: int
    monitor: int
    disk: tuple[LayerFiles, ...]
    start: Boot | int
    """The kernel to boot, or the descriptor of a saved device state."""


def memory_for(memory_bytes: int) -> int:
    """The memory of a machine with this quota, in steps, because each size needs its own image."""
    return max(MEMORY_MIN, -(-memory_bytes // MEMORY_STEP) * MEMORY_STEP)


def cmdline(accelerator: Accelerator, counter_khz: int) -> str:
    """The kernel command line. An emulated processor uses the host's time stamp counter, so its frequency is known."""
    return _CMDLINE[accelerator].format(khz=counter_khz)


def processor(accelerator: Accelerator) -> str:
    return _CPU[accelerator]


def emulator_argv(emulator: Path, plan: MachinePlan) -> list[str]:
    """The command line that becomes the machine."""
    accelerator = {"kvm": "kvm", "tcg": f"tcg,thread=single,tb-size={_TRANSLATED_MEGABYTES}"}[
        plan.accelerator
    ]
    share = "on" if plan.ram_shared else "off"
    return [
        str(emulator),
        *("-name", "sandbox", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *(
            "-M",
            "microvm,suppress-vmdesc=on,x-option-roms=off,pit=on,pic=on,isa-serial=on,rtc=on,memory-backend=ram",
        ),
        *("-accel", accelerator, "-cpu", _CPU[plan.accelerator]),
        *("-smp", "1", "-m", f"{plan.memory_bytes // 1024**2}M"),
        *(
            "-object",
            f"memory-backend-file,id=ram,size={plan.memory_bytes},mem-path={_by_number(plan.ram)},share={share}",
        ),
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=link,fd={plan.link}"),
        *("-device", "virtio-serial-device", "-device", "virtserialport,chardev=link,name=cloister"),
        *("-chardev", f"socket,id=monitor,fd={plan.monitor}", "-mon", "chardev=monitor,mode=control"),
        *(word for number, files in enumerate(plan.disk) for word in _layer(number, files)),
        *("-device", f"virtio-blk-device,drive={node(len(plan.disk) - 1)},werror=report,rerror=report"),
        *_start(plan),
    ]


def _start(plan: MachinePlan) -> tuple[str, ...]:
    match plan.start:
        case Boot(kernel, initramfs, line):
            files = ("-kernel", _by_number(kernel), "-initrd", _by_number(initramfs))
            return (*files, "-append", line)
        case state:
            # The saved state holds only devices, without the header of a whole migration.
            return ("-global", "migration.send-configuration=off", "-incoming", f"fd:{state}")


def _by_number(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def node(number: int) -> str:
    """The emulator's name of a disk's layer."""
    return f"disk{number}"


def _layer(number: int, files: LayerFiles) -> tuple[str, ...]:
    below = node(number - 1) if number else None
    added = ("-add-fd", f"fd={files.read},set={number}")
    if files.write is not None:
        added += ("-add-fd", f"fd={files.write},set={number}")
    return (
        *added,
        "-blockdev",
        msgspec.json.encode(layer_node(number, below, write=files.write is not None)).decode(),
    )


def layer_node(number: int, below: str | None, *, write: bool) -> dict[str, object]:
    """The block device options of one layer, whose descriptors are in the set of the same number.

    Flushes are ignored: a sandbox does not outlive a crash of its host.
    """
    cache = {"direct": False, "no-flush": True}
    file = {"driver": "file", "filename": f"/dev/fdset/{number}", "locking": "off"}
    common = {"node-name": node(number), "read-only": not write, "cache": cache}
    if number == 0:
        return {"driver": "raw", **common, "file": file}
    return {"driver": "qcow2", **common, "file": file, "backing": below}
