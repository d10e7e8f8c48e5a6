"""Templates: the root filesystems that sandboxes start from, built once and never written again.

A template is the directory `NAME-HASH` with `rootfs` and, written last, a marker. It appears by one rename,
so whatever has that name is complete; builders that died leave only names that start with a dot.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from anyio.streams.text import TextReceiveStream

from cloister.core.errors import HostError, UserError
from cloister.core.text import one_line
from cloister.sandbox import apt
from cloister.sandbox._spawn import capture, spawn
from cloister.sandbox.api import Report

NEEDED_BYTES = 3 * 1024**3
"""Free disk space a build asks for."""

MARKER = "complete"
_BUILD_SECONDS = 3_600.0
_REMOVE_SECONDS = 300.0
_APT = Path("/etc/apt")
_OS_RELEASE = Path("/etc/os-release")


class Recipe(msgspec.Struct, frozen=True):
    """Everything that decides what is in a template; its hash is part of the template's name."""

    name: str
    release: str
    packages: tuple[str, ...]
    version: int = 1
    """Raised when the finishing touches below change."""

    @property
    def directory(self) -> str:
        return f"{self.name}-{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]}"


PACKAGES = {
    "default": (
        *("python3", "python3-pytest", "python3-venv", "python3-pip", "python-is-python3", "git", "ripgrep"),
        *("build-essential", "ca-certificates", "curl", "less", "procps", "patch"),
    )
}
"""Template → Debian packages."""


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


class Templates:
    """The templates below one directory, which several processes may share."""

    def __init__(self, directory: Path, path: str) -> None:
        self._directory = directory
        self._path = path

    def find(self, name: str) -> Path | None:
        """The root filesystem of a template that is ready. Raises `UserError` (`unknown_template`)."""
        home = self._directory / _recipe(name).directory
        return home / "rootfs" if (home / MARKER).is_file() else None

    async def prepare(self, name: str, report: Report) -> None:
        """Build `name` if it is missing; waits for another process that is building it.

        Raises `UserError` (`unknown_template`) and `HostError` with code `no_root`, `no_mmdebstrap`,
        `no_sources`, `no_disk` or `template_failed`.
        """
        if self.find(name) is not None:
            return
        recipe = _recipe(name)
        self._check_host()
        async with locked(self._directory / f".lock-{recipe.directory}", report):
            if self.find(name) is None:
                await self._remove_leftovers(recipe)
                await self._build(recipe, report)

    def _check_host(self) -> None:
        if os.geteuid() != 0:
            raise HostError("no_root", "Building a template needs root on this machine: run with sudo.")
        if shutil.which("mmdebstrap", path=self._path) is None:
            raise HostError("no_mmdebstrap", "mmdebstrap is not installed: run `apt-get install mmdebstrap`.")
        self._directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._directory).free
        if free < NEEDED_BYTES:
            raise HostError(
                "no_disk",
                f"A template needs {NEEDED_BYTES >> 30} GiB of free disk and {self._directory} has "
                f"{free / 2**30:.1f} GiB: free some space or choose another data directory.",
            )

    async def _remove_leftovers(self, recipe: Recipe) -> None:
        # We hold the lock of this recipe, so whoever made these is dead.
        left = [str(path) for path in self._directory.glob(f".building-{recipe.directory}-*")]
        if left:
            await capture(["rm", "-rf", "--", *left], env=self._env(), seconds=_REMOVE_SECONDS)

    async def _build(self, recipe: Recipe, report: Report) -> None:
        sources = read_sources(recipe.release)
        home = self._directory / f".building-{recipe.directory}-{secrets.token_hex(4)}"
        home.mkdir(mode=0o755)
        try:
            await self._mmdebstrap(recipe, sources, home / "rootfs", report)
            await anyio.to_thread.run_sync(_finish, home, sources)
            # On disk before it has its name: a machine that crashes must not find an empty template either.
            await capture(["sync", "-f", str(home)], env=self._env(), seconds=_REMOVE_SECONDS)
            home.rename(self._directory / recipe.directory)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._remove_leftovers(recipe)
            raise
        report(1.0, "the template is ready")

    async def _mmdebstrap(
        self, recipe: Recipe, sources: tuple[apt.Source, ...], rootfs: Path, report: Report
    ) -> None:
        unwanted = ("man", "doc", "info", "locale")
        argv = [
            *("mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory"),
            f"--include={','.join(recipe.packages)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in unwanted),
            *(recipe.release, str(rootfs), *(source.line() for source in sources)),
        ]
        tail: deque[str] = deque(maxlen=60)
        report(0.0, "asking the package sources")
        with anyio.move_on_after(_BUILD_SECONDS) as deadline:
            async with spawn(argv, env=self._env()) as process:
                if process.stdin is not None:
                    await process.stdin.aclose()
                await _follow(process.stderr, tail, report)
                code = await process.wait()
            if code == 0:
                return
        why = f"it took more than {_BUILD_SECONDS:g} s" if deadline.cancelled_caught else useful_lines(tail)
        raise HostError("template_failed", f"The template {recipe.name} could not be built: {why}")

    def _env(self) -> dict[str, str]:
        return {"PATH": self._path, "LC_ALL": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}


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


def _recipe(name: str) -> Recipe:
    if name not in PACKAGES:
        raise UserError(
            "unknown_template", f"There is no template {name!r}; there is: {', '.join(PACKAGES)}."
        )
    try:
        release = apt.codename(_OS_RELEASE.read_text())
    except OSError:
        release = None
    if release is None:
        raise HostError(
            "no_sources", "Templates are built from Debian packages, and this is not a Debian release."
        )
    return Recipe(name, release, PACKAGES[name])


async def _follow(stream: "anyio.abc.ByteReceiveStream | None", tail: "deque[str]", report: Report) -> None:
    if stream is None:
        return
    progress, rest = BuildProgress(), ""
    async for piece in TextReceiveStream(stream, errors="replace"):
        *lines, rest = (rest + piece).split("\n")
        rest = rest[-4096:]
        for line in lines:
            tail.append(line[:500])
            if news := progress.feed(line):
                report(*news)


@asynccontextmanager
async def locked(path: Path, report: Report) -> AsyncGenerator[None]:
    """Be the only process that builds what `path` stands for."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with anyio.fail_after(_BUILD_SECONDS + _REMOVE_SECONDS):
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    report(None, "another process is building the template")
                    await anyio.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _finish(home: Path, sources: tuple[apt.Source, ...]) -> None:
    """What makes it a template: the agent's user, no trace of this host, and the marker."""
    rootfs = home / "rootfs"
    etc = rootfs / "etc"
    _append(etc / "passwd", "agent:x:1000:1000::/home/agent:/bin/bash\n")
    _append(etc / "group", "agent:x:1000:\n")
    _append(etc / "shadow", "agent:!:19000:0:99999:7:::\n")
    shutil.copytree(etc / "skel", rootfs / "home" / "agent")
    (rootfs / "work").mkdir()
    for path in (rootfs / "work", rootfs / "home" / "agent", *(rootfs / "home" / "agent").rglob("*")):
        os.chown(path, 1000, 1000, follow_symlinks=False)
    # Where the runtime mounts the guest: made here, so that it is not made in each sandbox.
    (rootfs / ".cloister").mkdir(mode=0o755)
    (rootfs / ".cloister" / "guest").touch(mode=0o555)
    for name, text in {
        "hostname": "sandbox\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "resolv.conf": "",
        "gitconfig": "[safe]\n\tdirectory = *\n",
        "apt/sources.list": "".join(f"{source.public_line()}\n" for source in sources),
    }.items():
        (etc / name).unlink(missing_ok=True)
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)
    for path in (etc / "apt" / "sources.list.d").glob("*"):
        path.unlink()
    (home / MARKER).touch()


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)
