"""The command-line flags of each OCI runtime, and its cost in host threads. Pure.

A tier has a list of runtimes, a runtime has ways to start it; the first way that passes the self-test is used.
"""

import re

import msgspec

from cloister.core.requests import TierName

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
