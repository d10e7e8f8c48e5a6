"""Build templates from Debian packages, with mmdebstrap and this host's package sources."""

import re
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import anyio
import msgspec

from cloister.core.addresses import without_userinfo
from cloister.core.errors import HostError
from cloister.core.text import one_line
from cloister.sandbox.templates import root
from cloister.sandbox.templates.building import About, Build
from cloister.sandbox.templates.recipes import Packages

_OPTIONS = re.compile(r"^(deb)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$")
_FIELDS = {"signed-by": "signed-by", "architectures": "arch", "trusted": "trusted"}
_KEPT_OPTIONS = frozenset(_FIELDS.values())


class PackageSource(msgspec.Struct, frozen=True):
    """One package source of one suite."""

    uri: str
    suite: str
    components: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def line(self) -> str:
        """The source in apt's one-line style."""
        options = f"[{' '.join(f'{k}={v}' for k, v in self.options)}] " if self.options else ""
        return " ".join(["deb", f"{options}{self.uri}", self.suite, *self.components])

    def public_line(self) -> str:
        """As `line`, without a user and password in the address and without paths of this host."""
        return msgspec.structs.replace(self, uri=without_userinfo(self.uri), options=()).line()


def codename(os_release: str) -> str | None:
    """`VERSION_CODENAME` in the text of `/etc/os-release`."""
    for line in os_release.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "VERSION_CODENAME":
            return value.strip().strip("\"'") or None
    return None


def parse_sources(files: Mapping[str, str], release: str) -> tuple[PackageSource, ...]:
    """The binary package sources of `release` and its pockets, without repetition.

    `files` maps names to texts: `*.sources` are in the deb822 style, everything else in the one-line style.
    """
    found: dict[PackageSource, None] = {}
    for name, text in sorted(files.items()):
        parse = _deb822 if name.endswith(".sources") else _one_line
        for source in parse(text):
            if source.suite == release or source.suite.startswith(f"{release}-"):
                found[source] = None
    return tuple(found)


def _one_line(text: str) -> Iterable[PackageSource]:
    for raw in text.splitlines():
        match = _OPTIONS.match(raw.partition("#")[0].strip())
        if match is None or match[3].startswith("cdrom:"):
            continue
        pairs = (option.partition("=") for option in (match[2] or "").split())
        kept = tuple((key, value) for key, _, value in pairs if key in _KEPT_OPTIONS)
        yield PackageSource(match[3], match[4], tuple(match[5].split()), kept)


def _deb822(text: str) -> Iterable[PackageSource]:
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = _stanza(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in (
            "no",
            "false",
        ):
            continue
        if "-----BEGIN" in fields.get("signed-by", ""):
            continue  # An inline key has no one-line form, and a source without its key cannot be verified.
        options = tuple((to, ",".join(fields[of].split())) for of, to in _FIELDS.items() if fields.get(of))
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield PackageSource(uri, suite, tuple(fields.get("components", "").split()), options)


def _stanza(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t"):
            if last:
                fields[last] += "\n" + line.strip()
            continue
        key, colon, value = line.partition(":")
        if colon:
            last = key.strip().lower()
            fields[last] = value.strip()
    return fields


_APT = Path("/etc/apt")
_OS_RELEASE = Path("/etc/os-release")
_UNWANTED = ("man", "doc", "info", "locale")
_MANUALS = 'mkdir -p "$1/usr/share/man/man1" "$1/usr/share/man/man7"'
"""Some packages (Java's) fail to install without these directories."""


class BuildProgress:
    """Progress from mmdebstrap's output: each package is fetched, unpacked and set up, in two rounds."""

    _STEP = re.compile(r"^(Get:\d+ \S+ \S+ \S+|Unpacking|Setting up) ([a-z0-9][a-z0-9.+-]*)")
    _ROUND = re.compile(r"(?<!\d)(\d{1,9}) newly installed")
    _VERBS = {"Unpacking": "unpacking", "Setting up": "setting up"}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        self._rounds: list[int] = []
        self._done = 0
        self._shown = 0.0

    def feed(self, line: str) -> tuple[float, str] | None:
        """The fraction done, which never falls, and the current step; None when `line` shows no progress."""
        if found := self._ROUND.search(line):
            self._rounds.append(int(found[1]))
            return None
        if not self._rounds or not (step := self._STEP.match(line)):
            return None
        self._done += 1
        # The size of the second round is printed late; until then assume twice the first.
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
        # In a private mount namespace, so that a killed mmdebstrap leaves no mounts behind.
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

    work.tell(0.0, "reading the package lists")
    await work.run(argv, hear, useful_lines)
    settled = await anyio.to_thread.run_sync(_finish, work.rootfs, sources)
    return About(kind="packages", env=recipe.env, home=settled.home, git=settled.git, bash=settled.bash)


def host_release() -> str:
    """This host's Debian release. Raises `HostError` (`no_sources`)."""
    try:
        release = codename(_OS_RELEASE.read_text())
    except OSError:
        release = None
    if release is None:
        raise HostError(
            "no_sources", "This template is built from Debian packages, and this machine does not run Debian."
        )
    return release


def read_sources(release: str, apt_dir: Path = _APT) -> tuple[PackageSource, ...]:
    """This host's package sources for `release`. Raises `HostError` (`no_sources`)."""
    paths = [apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))]
    files = {
        p.name: p.read_text(errors="replace")
        for p in paths
        if p.suffix in (".list", ".sources") and p.is_file()
    }
    sources = parse_sources(files, release)
    if not sources:
        raise HostError(
            "no_sources", f"{apt_dir} names no package source for {release}: add one and try again."
        )
    return sources


def useful_lines(tail: "deque[str]") -> str:
    """The error lines of a failed build, as one line."""
    errors = [line for line in tail if line.startswith(("E:", "W:", "dpkg: error", "Err:"))]
    return one_line(" ".join((errors or list(tail))[-3:]) or "mmdebstrap printed nothing", 400)


def _finish(rootfs: Path, sources: tuple[PackageSource, ...]) -> root.Settled:
    """Remove traces of this host's mirrors, and turn the tree into a template."""
    lists = rootfs / "etc" / "apt"
    shutil.rmtree(lists / "sources.list.d", ignore_errors=True)
    root.put_file(lists / "sources.list", "".join(f"{source.public_line()}\n" for source in sources))
    return root.settle(rootfs, None)
