"""One build of a template: its lock, directory, log and tools, and the record of the result.

A build works in a directory whose name starts with a dot; one rename gives it its real name once everything is on
disk. A builder that died leaves only such a directory, and the next builder removes it.
"""

import logging
import os
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
from anyio.streams.text import TextReceiveStream

from cloister.core import limits
from cloister.core.computer import Command, Computer, Output
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import HostError, UserError
from cloister.core.system.locks import lock_within
from cloister.core.text import decode, harmless, inert, one_line
from cloister.sandbox._spawn import capture, pipes, remove_tree, spawn
from cloister.sandbox.api import Report

logger = logging.getLogger(__name__)

NEEDED_BYTES = 3 * 1024**3
RESERVE_BYTES = 1024**3

BUILD_SECONDS = 3_600.0
REMOVE_SECONDS = 300.0
START_SECONDS = 120.0
_LOG_BYTES = 67_108_864
_LINE_CHARS = 4_096
_LOOK_SECONDS = 0.5

Hear = Callable[[str], None]
"""Gets each line that a tool prints."""


@dataclass(frozen=True, slots=True)
class DiskReserve:
    """How much of the disk a build leaves free."""

    needed_bytes: int = NEEDED_BYTES
    """Free bytes needed to start a build."""
    reserve_bytes: int = RESERVE_BYTES
    """Free bytes at which a build is aborted: the stated size of an image cannot be trusted."""


@dataclass(slots=True)
class Build:
    """A build under way."""

    name: str
    home: Path
    path: str
    report: Report
    log: Path
    reserve_bytes: int = RESERVE_BYTES
    _written: int = 0
    _began: float = field(default_factory=time.monotonic)

    @property
    def rootfs(self) -> Path:
        return self.home / "rootfs"

    @property
    def env(self) -> dict[str, str]:
        return tool_env(self.path)

    def note(self, text: str) -> None:
        """Append a line to the log."""
        line = harmless(text).encode("utf-8", errors="replace") + b"\n"
        self._written += len(line)
        if self._written <= _LOG_BYTES:
            with self.log.open("ab") as file:
                file.write(line)

    def tell(self, fraction: float | None, text: str) -> None:
        """Report progress to the caller, and with the seconds since the start to the log."""
        self.note(f"== {time.monotonic() - self._began:.1f} s: {text}")
        self.report(fraction, text)

    def need(self, program: str, package: str) -> str:
        """The path of a tool. Raises `HostError` (`no_PROGRAM`)."""
        found = shutil.which(program, path=self.path)
        if found is None:
            raise HostError(f"no_{program}", f"{program} is not installed: run `apt-get install {package}`.")
        return found

    async def run(
        self,
        argv: Sequence[str],
        hear: Hear | None = None,
        explain: "Explain | None" = None,
        *,
        cwd: Path | None = None,
    ) -> None:
        """Run a tool in the build's directory, or without a home directory in `cwd`.

        Raises `HostError` (`template_failed`, `no_disk`).
        """
        tail: deque[str] = deque(maxlen=60)

        def take(line: str) -> None:
            self.note(line)
            tail.append(line[:500])
            if hear is not None:
                hear(line)

        code: int | None = None
        env = self.env if cwd is None else {**self.env, "HOME": "/nonexistent"}
        with anyio.move_on_after(BUILD_SECONDS):
            async with (
                self.watching_disk(),
                spawn(argv, env=env, cwd=cwd or self.home) as process,
                anyio.create_task_group() as readers,
            ):
                into, out, err = pipes(process)
                await into.aclose()
                readers.start_soon(_lines, out, take)
                readers.start_soon(_lines, err, take)
                code = await process.wait()
        if code != 0:
            why = f"it took more than {BUILD_SECONDS:g} s" if code is None else (explain or last_lines)(tail)
            raise HostError(
                "template_failed",
                f"The template {self.name} could not be built: {why} (`cloister template log {self.name}`)",
            )

    @asynccontextmanager
    async def watching_disk(self) -> AsyncGenerator[None]:
        """Abort the block when the disk is almost full. Raises `HostError` (`no_disk`)."""
        full, failed = False, None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                nonlocal full
                while shutil.disk_usage(self.home).free > self.reserve_bytes:  # noqa: ASYNC110  a disk signals nothing
                    await anyio.sleep(_LOOK_SECONDS)
                full = True
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                yield
            except Exception as error:
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if full:
            raise HostError(
                "no_disk",
                f"The build of template {self.name} filled the disk and was aborted: free some space.",
            )

    async def remove(self, path: Path) -> None:
        await remove_tree(path, self.path)

    async def run_inside(self, computer: Computer, command: Command, hear: Hear | None = None) -> str:
        """Run a command in a sandbox with its output in the log. Return `(STATUS): ERRORS`; empty if it succeeded.

        The sandbox is gone when the reason is read: logs that the output names are copied into the build's log.
        """
        end = bytearray()
        why = ""
        async with computer.start(msgspec.structs.replace(command, limit_bytes=limits.FILE_BYTES)) as process:
            await process.send_eof()
            async for item in process:
                if isinstance(item, Output):
                    text = decode(item.data).rstrip("\n")
                    self.note(text)
                    if hear is not None and (last := text.rpartition("\n")[2].strip()):
                        hear(last)
                    end = (end + item.data)[-_END_BYTES:]
                elif not item.ok:
                    why = item.killed or f"status {item.code}"
        if not why:
            return ""
        lines = inert(decode(bytes(end))).split("\n")
        inner: list[str] = []
        for path in dict.fromkeys(found for line in lines for found in _LOG_FILE.findall(line)[:4]):
            if len(inner) < _LOG_LINES and not _NPM_LOG.search(path):  # npm's repeats its output
                inner += await self._log_inside(computer, command, path)
        return f"({why}): {told_errors(lines, inner)}"

    async def _log_inside(self, computer: Computer, command: Command, path: str) -> list[str]:
        tail = msgspec.structs.replace(
            command, argv=("tail", "-n", str(_LOG_LINES), "--", path), seconds=10.0, limit_bytes=_END_BYTES
        )
        with suppress(UserError):
            read = await computer.run(tail)
            if read.ok:
                self.note(f"== the end of {path} in the sandbox\n{decode(read.out)}")
                return inert(decode(read.out)).split("\n")
        return []


_END_BYTES = 65_536
_LOG_LINES = 60
_LOG_FILE = re.compile(r"(?<![\w./@+-])/?[\w.@+-][\w./@+-]*\.log\b")
_NPM_LOG = re.compile(r"/_logs/|npm-debug\.log")
_POINTS = re.compile(r"(?i)\b(?:see|found|full|complete|detailed|debug|more|saved|written|check)\b")
_LOG = re.compile(r"\blogs?\b")
_NOISE = re.compile(
    r"(?i)^(?:npm (?:notice|err(?:or|!)\s*$)|\[notice\]|note: this error originates|hint: see above|"
    r"\[ERROR\]\s*(?:$|\[Help|For more information|Re-run Maven|To see the full|The project .* has \d+ errors?$|\[ERROR\] Some problems)|"
    r"chruby not|First, try this link|If there aren't any reports|Unfortunately, an unexpected error)"
)
_ERROR = re.compile(
    r"(?i)error|fail|fatal|cannot|can't|could ?n[o']t|unable|not found|no such|not installed|denied|refused|missing|"
    r"invalid|unsupported|panic|exception|conflict|killed|^E: "
)


def told_errors(lines: Iterable[str], inner: Iterable[str] = ()) -> str:
    """The errors at the end of a failed tool's output, then those of its own log, without the paths of logs."""
    said = [*_errors(lines), *_errors(inner)]
    return one_line("; ".join(dict.fromkeys(said)) or "it printed nothing", 600)


def _errors(lines: Iterable[str]) -> list[str]:
    kept = [line for line in map(_without_log, lines) if line and not _NOISE.match(line)]
    return [line for line in kept if _ERROR.search(line)][-4:] or kept[-3:]


def _without_log(line: str) -> str:
    """The line without the part that only says where a log is."""
    line = line[:500].strip()
    log = _LOG.search(line)
    if log is not None and (_NPM_LOG.search(line) or _POINTS.search(line)):
        return line[: max(line.rfind(mark, 0, log.start()) for mark in ",;(:") + 1].rstrip(",;(: ")
    return line


Explain = Callable[["deque[str]"], str]
"""Makes one sentence of the last lines of a failed tool."""


def last_lines(tail: "deque[str]") -> str:
    return told_errors(tail)


def tool_env(path: str) -> dict[str, str]:
    return {"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}


async def sync(path: Path, search: str) -> None:
    """Flush to disk: after a crash no template may have its real name and lack its files."""
    await capture(["sync", "-f", str(path)], env=tool_env(search), seconds=REMOVE_SECONDS)


def check_host(directory: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raises `HostError` (`no_root`, `no_disk`)."""
    if os.geteuid() != 0:
        raise HostError("no_root", "Building a template needs root on this machine: run with sudo.")
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise HostError(
            "no_disk",
            f"A template needs {needed_bytes >> 30} GiB of free disk and {directory} has "
            f"{free / 2**30:.1f} GiB: free some space or choose another data directory.",
        )


def locked(path: Path, report: Report) -> AbstractAsyncContextManager[None]:
    """Build one template at a time among all processes; wait for the one that builds it now."""
    return lock_within(
        path,
        BUILD_SECONDS + REMOVE_SECONDS,
        poll_seconds=0.2,
        waiting=lambda: report(None, "another process is building the template"),
    )


def building_name(stem: str) -> str:
    """A directory name for a build of `stem` that cannot be mistaken for a template."""
    return f".building-{stem}-{secrets.token_hex(4)}"


async def remove_leftovers(directory: Path, stem: str, search: str) -> None:
    """Remove the directories of dead builders of `stem`; the caller holds its lock."""
    async for left in anyio.Path(directory).glob(f".building-{stem}-*"):
        await remove_tree(Path(left), search)


async def _lines(stream: anyio.abc.ByteReceiveStream, take: Hear) -> None:
    rest = ""
    async for piece in TextReceiveStream(stream, errors="replace"):
        *lines, rest = (rest + piece.replace("\r", "\n")).split("\n")
        rest = rest[-_LINE_CHARS:]
        for line in lines:
            if line:
                take(line[:_LINE_CHARS])
    if rest:
        take(rest)


async def start_services(computer: Computer, built: "Built | None") -> str:
    """Run the template's `start` script. Return why a service did not start, for the sandbox's `info`."""
    if built is None or not built.about.start:
        return ""
    argv = ("/bin/sh", "-c", built.about.start)
    done = await computer.run(Command(argv, cwd="/", user="root", seconds=START_SECONDS))
    if done.ok:
        return ""
    why = told_errors(inert(decode(done.out + done.err)).split("\n"))
    logger.warning("a service of %s did not start: %s", built.name, why)
    return why


MARKER = "complete"
ABOUT = "about.json"
HOME = "/home/agent"


class About(msgspec.Struct, frozen=True):
    """Facts about a built template, stored beside its root filesystem."""

    kind: str = "packages"
    built_at: float = 0.0
    """Unix seconds."""
    seconds: float = 0.0
    env: dict[str, str] = {}
    """The environment of the image, passed to commands."""
    home: str = HOME
    """The agent's home directory."""
    git: bool = True
    """Whether git is installed; runs need it."""
    bash: bool = True
    digest: str | None = None
    """Digest of the image it was made from."""
    commit: str | None = None
    """Commit of the repository that is cloned in it."""
    base: str | None = None
    """Version of the template it was made from."""
    checks: tuple[str, ...] = ()
    baseline: tuple[Diagnosis, ...] = ()
    """The result of `checks` on `commit` in it."""
    reached: tuple[str, ...] = ()
    """What its set-up reached through the proxy, as `HOST:PORT`; that of the layers below, too."""
    notes: tuple[str, ...] = ()
    """Sentences about its set-up for each run that starts from it."""
    start: str = ""
    """A script that root runs in each sandbox that is opened from it or forked without its processes."""


@dataclass(frozen=True, slots=True)
class Built:
    """A template that is ready: an artefact that never changes, named by its `version`.

    A provider on this machine uses it as the directory `rootfs`.
    """

    name: str
    home: Path
    about: About

    @property
    def version(self) -> str:
        """`NAME-DIGEST`, with the digest of the recipe; `.N` follows when the recipe was built again."""
        return self.home.name

    @property
    def rootfs(self) -> Path:
        return self.home / "rootfs"


def load(name: str, home: Path) -> Built | None:
    """The template in `home`, or None when it is incomplete."""
    if not (home / MARKER).is_file():
        return None
    try:
        about = msgspec.json.decode((home / ABOUT).read_bytes(), type=About)
    except FileNotFoundError:
        about = About()
    except (OSError, msgspec.MsgspecError):
        return None
    return Built(name, home, about)


def complete(home: Path, about: About) -> None:
    """Mark the template in `home` as complete; the marker is written last."""
    (home / ABOUT).write_bytes(msgspec.json.encode(about))
    (home / MARKER).touch()
