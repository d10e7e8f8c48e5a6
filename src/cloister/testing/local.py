"""A `Computer` made of plain host processes in a directory. No isolation: for tests only.

`/work` is a directory under the given root and other absolute paths of file operations are mapped in
the same way; the arguments of commands are not mapped, so scripts use paths relative to `/work`.
"""

import os
import shutil
import signal as signals
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath

import anyio
import anyio.abc
import msgspec
from anyio import to_thread
from anyio.abc import ByteStream, SocketAttribute

from cloister.core import limits
from cloister.core.computer import (
    WORK_DIR,
    Change,
    Command,
    Entry,
    Exited,
    Finished,
    Killed,
    Output,
    Pty,
    Sink,
    Stream,
)
from cloister.core.errors import CloisterError, SandboxLost, UserError
from cloister.core.ids import SandboxId
from cloister.core.requests import Isolation, TierName
from cloister.sandbox.api import Door, Load, Report, SandboxInfo, SandboxSpec, SnapshotInfo, TierReport
from cloister.sandbox.local.spec import check_ttl
from cloister.sandbox.protocol import requests
from cloister.sandbox.providers import unknown_tier
from cloister.testing import _spawn

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_BYTES = 65_536


_MARKED = 2_048
"""More files than this are too many to look at."""


class LocalComputer:
    """Runs what it is given on this machine, as this user. Both `User`s are this user; there is no pty.

    It reports `extra_seconds` more than each command took, as a slower computer would.
    """

    def __init__(self, root: Path, *, extra_seconds: float = 0.0) -> None:
        self._root = root
        self._extra_seconds = extra_seconds
        self.work = self._host_path(WORK_DIR)
        """Where `/work` really is."""
        self.work.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator["LocalProcess"]:
        if command.pty is not None:
            raise UserError("no_pty", "A local computer has no terminals: leave `pty` out.")
        env = {"PATH": _PATH, "HOME": str(self._root), "LANG": "C.UTF-8", **command.env}
        began = time.monotonic() - self._extra_seconds
        async with AsyncExitStack() as stack:
            try:
                process = await stack.enter_async_context(
                    _spawn.started(command.argv, self._host_path(command.cwd), env)
                )
            except (FileNotFoundError, NotADirectoryError):
                raise UserError("not_found", f"There is no program {command.argv[0]}.") from None
            except PermissionError:
                raise UserError("denied", f"{command.argv[0]} is not executable.") from None
            send, receive = anyio.create_memory_object_stream[Output](16)
            stack.callback(receive.close)
            local = LocalProcess(process, command, began, receive)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pump, "out", process.stdout, send.clone())
                tasks.start_soon(_pump, "err", process.stderr, send.clone())
                tasks.start_soon(local.end_after, command.seconds)
                send.close()
                yield local
                tasks.cancel_scope.cancel()

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        parts: dict[Stream, list[bytes]] = {"out": [], "err": []}
        exited = Exited(None)
        async with self.start(command) as process, anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process, stdin)
            async for item in process:
                match item:
                    case Output():
                        parts[item.stream].append(item.data)
                    case Exited():
                        exited = item
            tasks.cancel_scope.cancel()  # a command need not read all of its input
        return Finished(exited, b"".join(parts["out"]), b"".join(parts["err"]))

    async def read(self, path: str, *, offset: int = 0, limit_bytes: int = limits.FILE_BYTES) -> bytes:
        return await to_thread.run_sync(_read, self._host_path(path), path, offset, limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await to_thread.run_sync(_write, self._host_path(path), path, data, mode)

    async def list(self, path: str) -> tuple[Entry, ...]:
        return await to_thread.run_sync(_list, self._host_path(path), path)

    async def stat(self, path: str) -> Entry:
        with _failing(path):
            return _entry(self._host_path(path))

    async def mark(self, path: str, *, without: str = "") -> int | None:
        with _failing(path):
            return await to_thread.run_sync(_mark, self._host_path(path), without)

    async def move(self, source: str, target: str) -> None:
        with _failing(source):
            real = self._host_path(target)
            real.parent.mkdir(parents=True, exist_ok=True)
            await to_thread.run_sync(shutil.move, self._host_path(source), real)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        with _failing(path):
            real = self._host_path(path)
            if recursive and not real.is_symlink() and real.is_dir():
                await to_thread.run_sync(shutil.rmtree, real)
            elif real.is_dir() and not real.is_symlink():
                real.rmdir()
            else:
                real.unlink()

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        with _failing(path):
            self._host_path(path).mkdir(mode, parents=True, exist_ok=True)

    @asynccontextmanager
    async def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        most = limits.FILE_BYTES if limit_bytes is None else limit_bytes
        data = await self.read(path, offset=offset, limit_bytes=most)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(data), _READ_BYTES):
                yield data[start : start + _READ_BYTES]

        yield pieces()

    @asynccontextmanager
    async def write_stream(self, path: str, *, mode: int = 0o644) -> AsyncGenerator[Sink]:
        kept = _Kept()
        yield kept
        await self.write(path, bytes(kept.data), mode=mode)

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncGenerator[AsyncIterator[Change]]:
        raise UserError("no_watch", f"A local computer cannot watch {path}: look at it again instead.")
        yield  # it is a context manager all the same

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return requests.download(self, path)

    def upload(self, path: str) -> AbstractAsyncContextManager[Sink]:
        return requests.upload(self, path)

    def _host_path(self, path: str) -> Path:
        absolute = PurePosixPath(WORK_DIR) / path
        return self._root.joinpath(*absolute.parts[1:])


class _Kept:
    """Takes bytes and keeps them."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def send(self, data: bytes) -> None:
        self.data += data


class LocalProcess:
    """Implements `Process` over a host process."""

    def __init__(
        self,
        process: anyio.abc.Process,
        command: Command,
        began: float,
        output: anyio.abc.ObjectReceiveStream[Output],
    ) -> None:
        self._process = process
        self._limit_bytes = command.limit_bytes
        self._began = began
        self._output = output
        self._killed: Killed | None = None

    async def __aiter__(self) -> AsyncIterator[Output | Exited]:
        size = 0
        async for item in self._output:
            size += len(item.data)
            if size > self._limit_bytes:
                self._end("output")
                break
            yield item
        code = await self._process.wait()
        seconds = time.monotonic() - self._began
        yield Exited(code if code >= 0 else None, -code if code < 0 else None, self._killed, seconds)

    async def send(self, data: bytes) -> None:
        try:
            if self._process.stdin is not None:
                await self._process.stdin.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def send_eof(self) -> None:
        if self._process.stdin is not None:
            await self._process.stdin.aclose()

    async def signal(self, number: int) -> None:
        _signal_group(self._process, number)

    async def resize(self, size: Pty) -> None:
        """There is no terminal whose size could change."""

    async def kill(self) -> None:
        self._end("cancelled")

    async def end_after(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._end("time")

    def _end(self, why: Killed) -> None:
        self._killed = why
        _signal_group(self._process, signals.SIGKILL)


async def _pump(
    stream: Stream,
    source: anyio.abc.ByteReceiveStream | None,
    target: anyio.abc.ObjectSendStream[Output],
) -> None:
    async with target:
        try:
            while source is not None:
                await target.send(Output(stream, await source.receive(_READ_BYTES)))
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return


def _signal_group(process: anyio.abc.Process, number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


async def _feed(process: LocalProcess, data: bytes) -> None:
    for start in range(0, len(data), _READ_BYTES):
        await process.send(data[start : start + _READ_BYTES])
    await process.send_eof()


def _file_error(path: str, error: OSError) -> UserError:
    match error:
        case FileNotFoundError():
            return UserError("not_found", f"There is no {path}.")
        case PermissionError():
            return UserError("denied", f"{path} may not be opened.")
        case IsADirectoryError():
            return UserError("not_a_file", f"{path} is a directory.")
        case NotADirectoryError():
            return UserError("not_a_directory", f"{path} is not a directory.")
        case _:
            return UserError("file_failed", f"{path}: {error.strerror}.")


@contextmanager
def _failing(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _file_error(path, error) from None


def _read(real: Path, path: str, offset: int, limit_bytes: int) -> bytes:
    try:
        if real.exists() and not real.is_file():
            raise UserError("not_a_file", f"{path} is not a regular file.")
        with real.open("rb") as file:
            file.seek(offset)
            return file.read(limit_bytes)
    except OSError as error:
        raise _file_error(path, error) from None


def _write(real: Path, path: str, data: bytes, mode: int) -> None:
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        half = real.with_name(f".{real.name}.half")
        half.write_bytes(data)
        half.chmod(mode)
        half.replace(real)
    except OSError as error:
        raise _file_error(path, error) from None


def _list(real: Path, path: str) -> tuple[Entry, ...]:
    try:
        return tuple(_entry(child) for child in sorted(real.iterdir()))
    except OSError as error:
        raise _file_error(path, error) from None


def _mark(real: Path, without: str) -> int | None:
    found: list[tuple[object, ...]] = []
    newest = 0
    for child in real.iterdir():
        for path in [] if child.name == without else [child, *child.rglob("*")]:
            about = path.lstat()
            newest = max(newest, about.st_ctime_ns)
            facts = (about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
            found.append((str(path), *facts))
    if len(found) > _MARKED:
        return None
    return 0 if newest > time.time_ns() - 20_000_000 else hash(tuple(sorted(found)))


def _entry(path: Path) -> Entry:
    status = path.lstat()
    kind = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "dir"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
    return Entry(path.name, kind, status.st_size, stat.S_IMODE(status.st_mode), status.st_mtime)


# A `Provider` whose sandboxes are directories and plain processes of this machine. No isolation: for tests only.
#
# A fork is a copy of the directory. Tests can lose a sandbox on purpose. A door listens on loopback, and programs find
# it in `http_proxy`.


ISOLATION = Isolation("container", "none", shares_kernel=True, store="directory", provider="directories")


class LocalSandbox(LocalComputer):
    """One directory as a `Sandbox`."""

    def __init__(
        self, host: "LocalHost", root: Path, spec: SandboxSpec, door: Door | None, parent: SandboxId | None
    ) -> None:
        super().__init__(root)
        self.root = root
        self.env = dict(spec.env)
        self._host = host
        self._spec = spec
        self._door = door
        self._parent = parent
        self._name = SandboxId(f"s-{root.name}")
        self._lost = anyio.Event()
        self._still = anyio.Lock()

    @property
    def info(self) -> SandboxInfo:
        now = time.time()
        ends = now + self._spec.ttl_seconds
        return SandboxInfo(
            self._name, self._spec.template, ISOLATION, self._spec.quota, now, ends, self._parent
        )

    @asynccontextmanager
    async def start(self, command: Command) -> AsyncGenerator[LocalProcess]:
        known = msgspec.structs.replace(command, env={**self.env, **command.env})
        async with self._still:
            pass
        async with super().start(known) as process:
            yield process

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        if self._lost.is_set():
            raise SandboxLost("The sandbox was lost on purpose.")
        return await super().run(command, stdin)

    def lose(self) -> None:
        """From now on it is gone."""
        self._lost.set()

    @asynccontextmanager
    async def fork(self, copied: Callable[[], None] | None = None) -> AsyncGenerator["LocalSandbox"]:
        if self._lost.is_set():
            raise SandboxLost("The sandbox was lost on purpose.")
        async with self._host.opened(self._spec, self._door, self) as made:
            if copied is not None:
                copied()
            yield made

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        raise UserError("no_snapshots", "A local sandbox keeps no snapshots.")

    async def dial(self, port: int) -> ByteStream:
        raise UserError("no_such_port", "A local sandbox has no ports.")

    async def set_ttl(self, ttl_seconds: float) -> None:
        check_ttl(ttl_seconds)
        self._spec = msgspec.structs.replace(self._spec, ttl_seconds=ttl_seconds)

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """No program starts meanwhile; those that run are not stopped."""
        if self._lost.is_set():
            raise SandboxLost("The sandbox was lost on purpose.")
        async with self._still:
            yield

    async def load(self) -> Load:
        """Only the disk: its programs are those of this machine."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return Load(0.0, 0, sum(path.stat().st_size for path in files))

    async def wait_lost(self) -> str:
        await self._lost.wait()
        return "The sandbox was lost on purpose."


@asynccontextmanager
async def _listening(sandbox: LocalSandbox, door: Door | None) -> AsyncGenerator[None]:
    if door is None:
        yield
        return
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(door, sandbox.info.id))
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610  (no database)
        sandbox.env["http_proxy"] = f"http://127.0.0.1:{port}"
        yield
        tasks.cancel_scope.cancel()


class LocalHost:
    """Opens directories below `root`. Implements `sandbox.api.Provider`."""

    name = ISOLATION.provider
    tiers = (ISOLATION.tier,)

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = count(1)
        self.living: list[LocalSandbox] = []
        self.refused: dict[int, CloisterError] = {}
        """Which sandboxes, counted from 1, cannot be opened, and why."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec, door: Door | None = None) -> AsyncGenerator[LocalSandbox]:
        async with self.opened(spec, door, None) as made:
            yield made

    @asynccontextmanager
    async def opened(
        self, spec: SandboxSpec, door: Door | None, parent: LocalSandbox | None
    ) -> AsyncGenerator[LocalSandbox]:
        """A sandbox with the files of `parent`, if there is one."""
        if spec.tier not in ("auto", *self.tiers):
            raise unknown_tier(spec.tier, self.tiers)
        number = next(self._numbers)
        if number in self.refused:
            raise self.refused[number]
        at = self._root / f"{number:04}"
        if parent is not None:
            await to_thread.run_sync(lambda: shutil.copytree(parent.root, at, symlinks=True))
        made = LocalSandbox(self, at, spec, door, parent and parent.info.id)
        self.living.append(made)
        try:
            async with _listening(made, door):
                yield made
        finally:
            self.living.remove(made)
            made.lose()
            shutil.rmtree(at, ignore_errors=True)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return ()

    async def delete_snapshot(self, reference: str) -> None:
        raise UserError("unknown_snapshot", "A local host keeps no snapshots.")

    async def prepare(self, template: str, report: Report) -> None:
        return None

    async def shortage(self) -> None:
        return None

    async def sweep(self) -> int:
        return 0

    async def report(self, tier: TierName, *, again: bool = False, quick: bool = False) -> TierReport:
        return TierReport(
            tier, works=True, native=True, found="directories and plain processes", provider=self.name
        )

    async def close(self) -> None:
        return None
