"""How each kind of OCI runtime is asked to make a sandbox, and what that costs the host. Pure.

A tier is a list of runtimes; a runtime offers ways; a way that passes the self-test is used from then on.
"""

import re

import msgspec

from cloister.core.requests import TierName

CANDIDATES: dict[TierName, tuple[str, ...]] = {
    "container": ("crun", "runc"),
    "gvisor": ("runsc",),
    "microvm": ("qemu-system-x86_64",),
}
"""The runtimes of each tier in the order of preference: crun starts in a third of runc's time."""

NATIVE = (None, "systrap")
"""Platforms whose speed is called native. gVisor's `ptrace` stops twice in the host for each system call."""

_PLATFORMS = ("systrap", "ptrace")
"""gVisor's platforms in the order of preference. Its `kvm` wants a bare machine and hangs on many others."""

_TASKS_PER_PROCESS = {"systrap": 2, "ptrace": 32}
"""Host threads for one process inside: `ptrace` keeps one for each thread of gVisor's own that ever served it."""

_SENTRY_TASKS = 128
"""Threads of gVisor's own kernel, its file server and its command."""


class Way(msgspec.Struct, frozen=True):
    """One way to start sandboxes with a runtime. The default is that of crun and runc."""

    flags: tuple[str, ...] = ()
    """What stands before the runtime's subcommand."""
    platform: str | None = None
    """How gVisor catches system calls; None where the host's kernel serves them."""
    seccomp: bool = True
    """Whether the guest loads its filter. It never decides that by itself."""
    preload: bool = False
    """Whether programs inside need `guest/compat/automount.c`, without which `ls` fails in an old gVisor."""

    @property
    def native(self) -> bool:
        return self.platform in NATIVE

    def tasks(self, processes: int) -> int:
        """How many tasks of the host `processes` inside may need, beyond the runtime's and the guest's own."""
        if self.platform is None:
            return processes
        return processes * _TASKS_PER_PROCESS.get(self.platform, 2) + _SENTRY_TASKS


def ways(tier: TierName, described: str) -> tuple[Way, ...]:
    """What to try with a runtime whose `flags` command printed `described`, best first.

    Only the flags that are there are given: gVisor's have come and gone, and an unknown one is an error.
    """
    match tier:
        case "container" | "microvm":
            return (Way(),)
        case "gvisor":
            offered = frozenset(re.findall(r"^\s+-([a-zA-Z0-9_-]+)", described, flags=re.MULTILINE))
            shut = tuple(f"--{name}={value}" for name, value in _SHUT if name in offered)
            platforms = [name for name in _PLATFORMS if _offers(described, name)]
            old = "systrap" not in platforms
            return tuple(
                Way((f"--platform={name}", "--ignore-cgroups", *shut), name, seccomp, preload=old)
                for seccomp in (True, False)
                for name in platforms
            )


_SHUT = (
    # No packet leaves the sentry: inside there is loopback and nothing else.
    ("network", "none"),
    # Files go through gVisor's file server, whose ids are the sandbox's own: the sentry itself opens none.
    ("directfs", "false"),
    # Writes belong into our own upper directory, where a fork finds them, not into a layer of gVisor's.
    ("overlay2", "none"),
    ("file-access", "exclusive"),
    ("host-uds", "none"),
    ("host-fifo", "none"),
)


def _offers(described: str, platform: str) -> bool:
    match = re.search(r"which platform to use: ([^.\n]*)", described)
    return match is not None and re.search(rf"\b{platform}\b", match[1]) is not None
