"""Templates from Debian packages, made with mmdebstrap from this host's own package sources."""

import re
import shutil
from collections import deque
from pathlib import Path

import anyio

from cloister.core.errors import HostError
from cloister.core.text import one_line
from cloister.sandbox import apt
from cloister.sandbox.templates import root
from cloister.sandbox.templates.about import About
from cloister.sandbox.templates.building import Build
from cloister.sandbox.templates.recipes import Packages

_APT = Path("/etc/apt")
_OS_RELEASE = Path("/etc/os-release")
_UNWANTED = ("man", "doc", "info", "locale")
_MANUALS = 'mkdir -p "$1/usr/share/man/man1" "$1/usr/share/man/man7"'
"""Some packages (Java's) cannot be set up where they have no place for the links to their manuals."""


class BuildProgress:
    """Counts mmdebstrap's output: each package is fetched, unpacked and set up, in two rounds."""

    _STEP = re.compile(r"^(Get:\d+ \S+ \S+ \S+|Unpacking|Setting up) ([a-z0-9][a-z0-9.+-]*)")
    _ROUND = re.compile(r"(\d+) newly installed")
    _VERBS = {"Unpacking": "unpacking", "Setting up": "setting up"}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        self._rounds: list[int] = []
        self._done = 0
        self._shown = 0.0

    def feed(self, line: str) -> tuple[float, str] | None:
        """The fraction done, which never falls, and what is being done; None when `line` says nothing new."""
        if found := self._ROUND.search(line):
            self._rounds.append(int(found[1]))
            return None
        if not self._rounds or not (step := self._STEP.match(line)):
            return None
        self._done += 1
        # The second round is announced late; until then it is taken to be twice the first.
        packages = sum(self._rounds) if len(self._rounds) > 1 else 3 * self._rounds[0]
        self._shown = min(0.99, max(self._shown, self._done / (3 * packages)))
        return self._shown, f"{self._VERBS.get(step[1], 'fetching')} {step[2]}"


async def build(work: Build, recipe: Packages) -> About:
    """Install the packages into `work.rootfs`."""
    work.need("mmdebstrap", "mmdebstrap")
    work.need("unshare", "util-linux")
    release = host_release()
    sources = read_sources(release)
    argv = [
        # What it mounts goes with it, however it ends: on the host a killed one would leave its mounts behind.
        *("unshare", "--mount", "--propagation=private", "--"),
        *("mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory"),
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED),
        f"--setup-hook={_MANUALS}",
        *(release, str(work.rootfs), *(source.line() for source in sources)),
    ]
    progress = BuildProgress()

    def hear(line: str) -> None:
        if news := progress.feed(line):
            work.report(*news)

    work.tell(0.0, "asking the package sources")
    await work.run(argv, hear, useful_lines)
    settled = await anyio.to_thread.run_sync(_finish, work.rootfs, sources)
    return About(kind="packages", env=recipe.env, home=settled.home, git=settled.git, bash=settled.bash)


def host_release() -> str:
    """This host's Debian release. Raises `HostError` (`no_sources`)."""
    try:
        release = apt.codename(_OS_RELEASE.read_text())
    except OSError:
        release = None
    if release is None:
        raise HostError(
            "no_sources", "This template is built from Debian packages, and this is not a Debian release."
        )
    return release


def read_sources(release: str, apt_dir: Path = _APT) -> tuple[apt.Source, ...]:
    """This host's package sources for `release`. Raises `HostError` (`no_sources`)."""
    paths = [apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))]
    files = {
        p.name: p.read_text(errors="replace")
        for p in paths
        if p.suffix in (".list", ".sources") and p.is_file()
    }
    sources = apt.parse_sources(files, release)
    if not sources:
        raise HostError(
            "no_sources", f"{apt_dir} names no package source for {release}: add one and try again."
        )
    return sources


def useful_lines(tail: "deque[str]") -> str:
    """What a person needs to see of a failed build, as one line."""
    errors = [line for line in tail if line.startswith(("E:", "W:", "dpkg: error", "Err:"))]
    return one_line(" ".join((errors or list(tail))[-3:]) or "mmdebstrap said nothing", 400)


def _finish(rootfs: Path, sources: tuple[apt.Source, ...]) -> root.Settled:
    """No trace of this host's mirrors, and everything else that makes it a template."""
    lists = rootfs / "etc" / "apt"
    shutil.rmtree(lists / "sources.list.d", ignore_errors=True)
    root.put_file(lists / "sources.list", "".join(f"{source.public_line()}\n" for source in sources))
    return root.settle(rootfs, None)
