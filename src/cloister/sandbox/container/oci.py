"""The OCI configuration and the launcher's arguments of one sandbox. Pure.

Everything that decides how strongly a container is isolated is in this file.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cloister.core.requests import Quota, TierName
from cloister.sandbox.local.names import IDS, Name
from cloister.sandbox.local.spec import HOSTNAME, SEARCH_PATH
from cloister.sandbox.store.api import Layers, Root, Tree

# The command-line flags of each OCI runtime, and its cost in host threads. Pure.
#
# A tier has a list of runtimes, a runtime has ways to start it; the first way that passes the self-test is used.


CANDIDATES: dict[TierName, tuple[str, ...]] = {
    "container": ("crun", "runc"),
    "gvisor": ("runsc",),
    "microvm": ("qemu-system-x86_64",),
}
"""The runtimes of each tier, preferred first: crun starts in a third of runc's time."""

NATIVE = (None, "systrap")
"""Platforms at native speed. gVisor's `ptrace` stops twice in the host for each system call."""

_PLATFORMS = ("systrap", "ptrace")
"""gVisor's platforms, preferred first. Its `kvm` needs bare metal and hangs on many other machines."""

_TASKS_PER_PROCESS = {"systrap": 2, "ptrace": 32}
"""Host threads per process inside: `ptrace` keeps one for each gVisor thread that ever served it."""

_SENTRY_TASKS = 128
"""Threads of gVisor's kernel, its file server and its command."""


class Way(msgspec.Struct, frozen=True):
    """One way to start sandboxes with a runtime. The default is that of crun and runc."""

    flags: tuple[str, ...] = ()
    """Options before the runtime's subcommand."""
    platform: str | None = None
    """How gVisor intercepts system calls; None where the host's kernel serves them."""
    seccomp: bool = True
    """Whether the guest loads its seccomp filter. The guest never decides that itself."""
    preload: bool = False
    """Whether programs need `guest/compat/automount.c`, without which `ls` fails in an old gVisor."""

    @property
    def native(self) -> bool:
        return self.platform in NATIVE

    def tasks(self, processes: int) -> int:
        """Host threads that `processes` inside may need, without those of the runtime and the guest."""
        if self.platform is None:
            return processes
        return processes * _TASKS_PER_PROCESS.get(self.platform, 2) + _SENTRY_TASKS


def ways(tier: TierName, described: str) -> tuple[Way, ...]:
    """The ways to try, best first; `described` is the output of the runtime's `flags` command.

    A flag that this version of gVisor does not know would be an error, so only known ones are used.
    """
    if tier != "gvisor":
        return (Way(),)
    offered = frozenset(re.findall(r"^[ \t]+-([a-zA-Z0-9_-]+)", described, flags=re.MULTILINE))
    shut = tuple(f"--{name}={value}" for name, value in _SHUT if name in offered)
    platforms = [name for name in _PLATFORMS if _offers(described, name)]
    old = "systrap" not in platforms
    return tuple(
        Way((f"--platform={name}", "--ignore-cgroups", *shut), name, seccomp, preload=old)
        for seccomp in (True, False)
        for name in platforms
    )


_SHUT = (
    # No packet leaves the sentry: inside there is only loopback.
    ("network", "none"),
    # Files go through gVisor's file server, whose ids are the sandbox's own: the sentry itself opens none.
    ("directfs", "false"),
    # Writes go to our upper directory, where a fork finds them, not to an overlay of gVisor.
    ("overlay2", "none"),
    ("file-access", "exclusive"),
    ("host-uds", "none"),
    ("host-fifo", "none"),
)


def _offers(described: str, platform: str) -> bool:
    match = re.search(r"which platform to use: ([^.\n]*)", described)
    return match is not None and re.search(rf"\b{platform}\b", match[1]) is not None


GUEST = "/.cloister/guest"
"""Where the guest program is mounted inside."""

PRELOAD = "/.cloister/preload"
"""Mount point of the library that every program inside loads, if a way needs one."""

CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID"),
    *("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP"),
)
"""Capabilities of root inside, within its own user namespace. Commands run as `agent`, which has none."""

MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/proc/kallsyms", "/proc/kmsg", "/proc/cmdline"),
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
NAMESPACES = ("user", "pid", "mount", "network", "ipc", "uts", "cgroup")


class HostFacts(msgspec.Struct, frozen=True):
    """Facts of this host that hold for every sandbox."""

    place: str
    """Where the launcher makes its mounts, see `spec.mount_point`."""
    open_files_max: int
    """The host's hard limit."""
    refused_tree: Path | None = None
    """A v2 tree beside v1 controllers; the launcher unmounts it, because crun refuses the mixture."""


class Programs(msgspec.Struct, frozen=True):
    """The programs that make a sandbox, by path."""

    launch: Path
    guest: Path
    runtime: Path
    way: Way = Way()
    preload: Path | None = None
    """The library, if `way` needs one."""

    @property
    def is_crun(self) -> bool:
        return self.way.platform is None and self.runtime.name == "crun"

    @property
    def manages_cgroups(self) -> bool:
        """True if the runtime joins cgroups itself; crun and runsc have an option that turns it off."""
        return self.way.platform is None and not self.is_crun


def host_quota(quota: Quota, way: Way) -> Quota:
    """The limits on the host that give a sandbox its `quota`."""
    return msgspec.structs.replace(quota, processes=way.tasks(quota.processes))


def oci_config(machine: HostFacts, name: Name, quota: Quota, way: Way) -> bytes:
    """The `config.json` of one sandbox."""
    ids = [{"containerID": 0, "hostID": name.first_id, "size": IDS}]
    open_files = min(quota.open_files, machine.open_files_max)
    return msgspec.json.encode(
        {
            "ociVersion": "1.0.0",
            "root": {"path": f"{machine.place}/root", "readonly": False},
            "hostname": HOSTNAME,
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "cwd": "/",
                "args": [GUEST] if way.seccomp else [GUEST, "--no-seccomp"],
                "env": [f"PATH={SEARCH_PATH}"],
                "capabilities": {
                    "bounding": CAPABILITIES,
                    "permitted": CAPABILITIES,
                    "effective": CAPABILITIES,
                    "inheritable": (),
                    "ambient": (),
                },
                "noNewPrivileges": True,
                # When this machine runs out of memory, the kernel kills sandboxes first.
                "oomScoreAdj": 300,
                "rlimits": [
                    {"type": "RLIMIT_NOFILE", "soft": open_files, "hard": open_files},
                    {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
                ],
            },
            "mounts": _mounts(quota, machine.place, way),
            "linux": {
                "namespaces": [{"type": kind} for kind in NAMESPACES],
                "uidMappings": ids,
                "gidMappings": ids,
                "cgroupsPath": f"/cloister/{name}",
                "rootfsPropagation": "private",
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
            },
        }
    )


def _mounts(quota: Quota, place: str, way: Way) -> list[Mapping[str, object]]:
    def mount(destination: str, kind: str, source: str, *options: str) -> Mapping[str, object]:
        options = ("nosuid", *options)
        return {"destination": destination, "type": kind, "source": source, "options": options}

    shared = f"size={quota.memory_bytes // 4}"
    return [
        mount("/proc", "proc", "proc", "noexec", "nodev"),
        mount("/dev", "tmpfs", "tmpfs", "noexec", "strictatime", "mode=755", "size=64k"),
        mount("/dev/pts", "devpts", "devpts", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        mount("/dev/shm", "tmpfs", "shm", "noexec", "nodev", "mode=1777", shared),  # noqa: S108 - inside
        mount(GUEST, "bind", f"{place}/guest", "bind", "ro", "nodev"),
        *([mount(PRELOAD, "bind", f"{place}/preload", "bind", "ro", "nodev")] if way.preload else []),
    ]


def launch_argv(
    programs: Programs, machine: HostFacts, name: Name, home: Path, root: Root, join: Sequence[Path]
) -> list[str]:
    """The command line that becomes the sandbox called `name`, whose bundle is in `home`."""
    runtime = [str(programs.runtime), *programs.way.flags, "--root", str(home / "state")]
    detach: tuple[str, ...] = ()
    if programs.is_crun:
        runtime.insert(1, "--cgroup-manager=disabled")
        detach = ("-d", str(machine.refused_tree)) if machine.refused_tree else ()
    return [
        str(programs.launch),
        *("-b", str(name.first_id)),
        *_root_arguments(root),
        *("-x", str(programs.guest)),
        *(("-p", str(programs.preload)) if programs.preload else ()),
        *(("-V",) if programs.way.platform else ()),
        *("-m", machine.place),
        *(argument for path in join for argument in ("-g", str(path))),
        *detach,
        *("--", *runtime, "run", "--bundle", str(home), str(name.sandbox)),
    ]


def _root_arguments(root: Root) -> tuple[str, ...]:
    match root:
        case Layers():
            return ("-l", str(root.lower), "-f", str(root.upper.parent))
        case Tree(device=None):
            return ("-r", str(root.path))
        case Tree():
            return ("-v", str(root.device), "-r", root.subvolume)
