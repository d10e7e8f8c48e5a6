"""From what was asked to what is done: the OCI configuration, the launcher's arguments, the names. Pure.

Everything that decides how strongly a container is shut is on this page; nothing else changes it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.ids import OwnerId, SandboxId, is_id
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.runtimes import Way
from cloister.sandbox.store.api import Layers, Root, Tree

IDS = 65_536
"""User and group ids per sandbox."""

SLOTS = range(0x7000, 0xFFFE)
"""First id / `IDS`: above the ids of people, services and other container tools, below the kernel's `nobody`s."""

GUEST = "/.cloister/guest"
"""Where the guest program is mounted inside."""

PRELOAD = "/.cloister/preload"
"""Where the library is mounted that every program inside loads, if a way needs one."""

PLACES = ("/srv", "/mnt", "/media", "/opt")
"""Directories that exist nearly everywhere and that nobody needs while a runtime starts."""

PROXY_PORT = 3128
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_JAVA_PROXY = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PROXY_PORT}" for scheme in ("http", "https")
)
HOSTNAME = "sandbox"

CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID"),
    *("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP"),
)
"""What root inside can do, within its own user namespace. Commands run as `agent`, which has none of it."""

MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/proc/kallsyms", "/proc/kmsg", "/proc/cmdline"),
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
NAMESPACES = ("user", "pid", "mount", "network", "ipc", "uts", "cgroup")

_DISK_BYTES_MIN = 1024**2
_MEMORY_BYTES_MIN = 32 * 1024**2
_OPEN_FILES_MIN = 64
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Name(msgspec.Struct, frozen=True):
    """The one name of a sandbox's directory and of its cgroups: who it is, whose it is, which ids it has.

    Because the name says it all, there is no moment in which a directory exists and its owner is unknown.
    """

    sandbox: SandboxId
    owner: OwnerId
    slot: int

    def __str__(self) -> str:
        return f"{self.sandbox}.{self.owner}.{self.slot:x}"

    @property
    def first_id(self) -> int:
        return self.slot * IDS


class Machine(msgspec.Struct, frozen=True):
    """What is the same for every sandbox on this host."""

    place: str
    """Where the launcher makes its mounts, see `mount_point`."""
    open_files_max: int
    """The host's own hard limit, which cannot be raised everywhere."""
    refused_tree: Path | None = None
    """A v2 tree beside v1 controllers, which crun refuses to see and the launcher therefore takes away."""


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
        """Whether the runtime insists on joining cgroups itself; crun and runsc can be told not to."""
        return self.way.platform is None and not self.is_crun


def parse_name(text: str) -> Name | None:
    """The name of ours that `text` is, or None."""
    parts = text.split(".")
    if (
        len(parts) != 3
        or not is_id(parts[0])
        or not is_id(parts[1])
        or not re.fullmatch("[0-9a-f]{4}", parts[2])
    ):
        return None
    return Name(SandboxId(parts[0]), OwnerId(parts[1]), int(parts[2], 16))


def check_spec(spec: SandboxSpec) -> None:
    """Raises `UserError` (`bad_sandbox`) for what cannot be opened anywhere."""
    quota = spec.quota
    for wrong, message in (
        (not 0.01 <= quota.cpus <= 1024, f"A sandbox needs between 0.01 and 1,024 cpus, not {quota.cpus:g}."),
        (
            quota.memory_bytes < _MEMORY_BYTES_MIN,
            f"A sandbox needs at least {_MEMORY_BYTES_MIN:,} bytes of memory.",
        ),
        (quota.disk_bytes < _DISK_BYTES_MIN, f"A sandbox needs at least {_DISK_BYTES_MIN:,} bytes of disk."),
        (quota.processes < 4, "A sandbox needs at least 4 processes."),
        (quota.open_files < _OPEN_FILES_MIN, f"A sandbox needs at least {_OPEN_FILES_MIN} open files."),
        (
            not 1 <= spec.ttl_seconds <= limits.TTL_SECONDS_MAX,
            f"A sandbox lives between 1 and {limits.TTL_SECONDS_MAX:g} seconds, not {spec.ttl_seconds:g}.",
        ),
        (
            any(not _ENV_NAME.match(name) or "\0" in value for name, value in spec.env.items()),
            "The name of an environment variable has letters, digits and underscores only.",
        ),
    ):
        if wrong:
            raise UserError("bad_sandbox", message)


def host_quota(quota: Quota, way: Way) -> Quota:
    """What the host has to grant so that a sandbox gets its `quota`."""
    return msgspec.structs.replace(quota, processes=way.tasks(quota.processes))


def environment(
    spec: SandboxSpec, way: Way, image: Mapping[str, str] | None = None, home: str = "/home/agent"
) -> dict[str, str]:
    """What commands inside find in their environment; `image` is the template's own."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    chosen = {**(image or {}), **spec.env}
    return {
        "PATH": _SEARCH_PATH,
        # In what else makes up a locale, C.UTF-8 is the C that every program has built in: with `LANG` each one
        # would open a dozen files to find that out. It stands over `LANG`, so it is not there beside one.
        **({} if {"LANG", "LC_ALL"} & chosen.keys() else {"LC_CTYPE": "C.UTF-8"}),
        # Or bash would look up its user to learn it.
        "SHELL": "/bin/bash",
        # Bytecode is matched to its source by whole seconds: an edit within the second would not count.
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(("MAVEN_OPTS", "GRADLE_OPTS"), _JAVA_PROXY),
        **(image or {}),
        "HOME": home,
        "USER": "agent",
        **dict.fromkeys(PROXY_NAMES, proxy),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
        # Tools that do not look at the variables above by themselves.
        "NODE_USE_ENV_PROXY": "1",
        "CARGO_HTTP_PROXY": proxy,
        "YARN_HTTP_PROXY": proxy,
        "YARN_HTTPS_PROXY": proxy,
        **({"LD_PRELOAD": PRELOAD} if way.preload else {}),
        **spec.env,
    }


def mount_point(avoid: Sequence[Path], present: Collection[str]) -> str:
    """Where the launcher puts its private tmpfs: a directory everyone may pass, with nothing below it we need.

    A data directory cannot be that place, because others may not pass it and the sandbox's root is an "other".
    Raises `HostError` (`no_mount_point`).
    """
    for place in PLACES:
        if place in present and not any(path.is_relative_to(place) for path in avoid):
            return place
    raise HostError(
        "no_mount_point", "Make one of the directories /srv, /mnt and /media, outside the data directory."
    )


def oci_config(machine: Machine, name: Name, quota: Quota, way: Way) -> bytes:
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
                "env": [f"PATH={_SEARCH_PATH}"],
                "capabilities": {
                    "bounding": CAPABILITIES,
                    "permitted": CAPABILITIES,
                    "effective": CAPABILITIES,
                    "inheritable": (),
                    "ambient": (),
                },
                "noNewPrivileges": True,
                # When the machine itself runs out of memory, sandboxes go first.
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
    programs: Programs, machine: Machine, name: Name, home: Path, root: Root, join: Sequence[Path]
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
        *(("-t",) if programs.way.platform else ()),
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
