"""What every sandbox of this machine has in common: the limits of a spec, its environment, its mount point."""

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from cloister.core import limits
from cloister.core.errors import HostError, UserError
from cloister.core.ids import SandboxId
from cloister.core.requests import Isolation
from cloister.sandbox.api import SandboxInfo, SandboxSpec
from cloister.sandbox.protocol import frames

HOSTNAME = "sandbox"
PROXY_PORT = 3128
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PLACES = ("/srv", "/mnt", "/media", "/opt")
"""Directories that exist almost everywhere and that no runtime needs while it starts."""

_JAVA_PROXY = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PROXY_PORT}" for scheme in ("http", "https")
)
_DISK_BYTES_MIN = 1024**2
_MEMORY_BYTES_MIN = 32 * 1024**2
_OPEN_FILES_MIN = 64
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def silent(_fraction: float | None, _note: str) -> None:
    """A `Report` that drops its input."""


def check_root() -> None:
    """Raises `HostError` (`no_root`)."""
    if os.geteuid() != 0:
        raise HostError("no_root", "Sandboxes need root on this machine: run with sudo.")


def check_ttl(ttl_seconds: float) -> None:
    """Raises `UserError` (`bad_sandbox`)."""
    if not 1 <= ttl_seconds <= limits.TTL_SECONDS_MAX:
        raise UserError(
            "bad_sandbox",
            f"A sandbox lives between 1 and {limits.TTL_SECONDS_MAX:g} seconds, not {ttl_seconds:g}.",
        )


def check_spec(spec: SandboxSpec) -> None:
    """Raises `UserError` (`bad_sandbox`) for a spec that no tier can open."""
    check_ttl(spec.ttl_seconds)
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
            any(not _ENV_NAME.match(name) or "\0" in value for name, value in spec.env.items()),
            "The name of an environment variable has letters, digits and underscores only.",
        ),
    ):
        if wrong:
            raise UserError("bad_sandbox", message)


def environment(
    spec: SandboxSpec,
    image: Mapping[str, str] | None = None,
    home: str = "/home/agent",
    preload: str | None = None,
) -> dict[str, str]:
    """The environment of commands inside; `image` is the template's own, `preload` a library for every program."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    chosen = {**(image or {}), **spec.env}
    return {
        "PATH": SEARCH_PATH,
        # Every program has the C locale built in; with `LANG` each one would open a dozen files to find that out.
        # `LC_CTYPE` overrides `LANG`, so it is left out where a language was chosen.
        **({} if {"LANG", "LC_ALL"} & chosen.keys() else {"LC_CTYPE": "C.UTF-8"}),
        # Otherwise bash looks up its user to learn it.
        "SHELL": "/bin/bash",
        # Python matches bytecode to its source by whole seconds: an edit within the second would not count.
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(("MAVEN_OPTS", "GRADLE_OPTS"), _JAVA_PROXY),
        **(image or {}),
        "HOME": home,
        "USER": "agent",
        **dict.fromkeys(PROXY_NAMES, proxy),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
        # Tools that do not read the variables above.
        "NODE_USE_ENV_PROXY": "1",
        "CARGO_HTTP_PROXY": proxy,
        "YARN_HTTP_PROXY": proxy,
        "YARN_HTTPS_PROXY": proxy,
        **({"LD_PRELOAD": preload} if preload else {}),
        **spec.env,
    }


def mount_point(avoid: Sequence[Path], present: Collection[str]) -> str:
    """Where the launcher puts its private tmpfs: a directory that every user may enter, with none of `avoid` below it.

    The data directory does not qualify: other users may not enter it, and root inside the sandbox is another user.
    Raises `HostError` (`no_mount_point`).
    """
    for place in PLACES:
        if place in present and not any(path.is_relative_to(place) for path in avoid):
            return place
    raise HostError(
        "no_mount_point", "Make one of the directories /srv, /mnt and /media, outside the data directory."
    )


def mount_point_here(avoid: Sequence[Path]) -> str:
    """`mount_point` among the directories of this machine."""
    present = {place for place in PLACES if os.path.isdir(place)}  # noqa: PTH112 - strings, not paths
    return mount_point([*avoid, *(path.resolve() for path in avoid)], present)


def sandbox_info(
    sandbox: SandboxId, spec: SandboxSpec, isolation: Isolation, parent: SandboxId | None = None
) -> SandboxInfo:
    """The record of a sandbox that starts now."""
    now = time.time()
    return SandboxInfo(sandbox, spec.template, isolation, spec.quota, now, now + spec.ttl_seconds, parent)


def with_problem(info: SandboxInfo, problem: str) -> SandboxInfo:
    return msgspec.structs.replace(info, problem=problem)


def setup_frame(spec: SandboxSpec, hostname: str) -> frames.Setup:
    return frames.Setup(max(1, round(spec.ttl_seconds)), PROXY_PORT, hostname)


def no_template(name: str) -> HostError:
    return HostError("no_template", f"The template {name} is not built yet: prepare it first.")
