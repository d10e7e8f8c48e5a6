"""Starts git on the host: bounded in time, output and memory; its process group ends with it."""

import os
import re
import resource
import shutil
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

import anyio
import msgspec

from cloister.core.errors import HostError, OutsideError
from cloister.core.system import looped
from cloister.core.system._spawn import begin, blocking, ending, kill_group, limit

if TYPE_CHECKING:
    import anyio.abc

_READ_BYTES = 65_536
_ERROR_BYTES = 65_536
_NOISE_BYTES = 16_777_216
"""Progress and errors after which the process is killed: a server can send them without end."""
_TOO_NOISY = f"\nfatal: it sent more than {_NOISE_BYTES >> 20} MiB of messages\n".encode()
_END_SECONDS = 2.0
"""How long a server may take to end after its client."""
_PAUSES = (0.5, 2.0, 0.0)
"""Seconds to wait after each time that git was killed; after the last it is an error."""
_SHELL_CODES = frozenset(128 + number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV))
_DIED = re.compile(rb"died of signal ([0-9]{1,2})")


class Who(msgspec.Struct, frozen=True):
    """The user a process runs as, if we are root and work on that user's files."""

    uid: int
    gid: int


class Spec(msgspec.Struct, frozen=True):
    """One process to run."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """The whole environment; nothing is inherited."""
    seconds: float
    limit_bytes: int
    """Standard output after which the process is killed and the result is `cut`."""
    who: Who | None = None
    memory_bytes: int | None = None
    """Limit of its data segment, against decompression bombs."""
    file_bytes: int | None = None
    """Limit of each file it writes."""


class Result(msgspec.Struct, frozen=True):
    """A process that ended."""

    code: int
    """Exit status; negative for a signal."""
    out: bytes
    err: bytes
    cut: bool = False
    """True if it printed more than allowed and was killed; `out` holds the beginning."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.cut


def inherited() -> Mapping[str, str]:
    """Our own environment, from which a child's is chosen. Passed on, never read for settings."""
    return os.environ


def _check_program(spec: Spec) -> None:
    if shutil.which(spec.argv[0], path=spec.env.get("PATH", "")) is None:
        raise HostError("no_git", "git is not installed on this machine: install it (apt install git).")


@asynccontextmanager
async def _started(
    spec: Spec, stdin: int | socket.socket, stdout: int | socket.socket, fds: Sequence[int]
) -> AsyncGenerator["anyio.abc.Process"]:
    """The process of `spec`; its group is killed when the block ends."""
    _check_program(spec)
    who = spec.who
    try:
        process = await begin(
            spec.argv,
            stdin=stdin if isinstance(stdin, int) else stdin.fileno(),
            stdout=stdout if isinstance(stdout, int) else stdout.fileno(),
            cwd="/",
            env=spec.env,
            pass_fds=fds,
            user=who.uid if who else None,
            group=who.gid if who else None,
        )
    except OSError as error:
        raise _not_started(error) from None
    async with ending(process):
        # Before it gets the input that could make it grow; its own children inherit the limits.
        limit(process.pid, _limits(spec))
        yield process


def _limits(spec: Spec) -> dict[int, int | None]:
    return {resource.RLIMIT_DATA: spec.memory_bytes, resource.RLIMIT_FSIZE: spec.file_bytes}


async def _feed(process: "anyio.abc.Process", data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - we asked for a pipe
    try:
        for start in range(0, len(data), _READ_BYTES):
            await process.stdin.send(data[start : start + _READ_BYTES])
        await process.stdin.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it ended before it read everything; its exit status says why


async def _collect(stream: "anyio.abc.ByteReceiveStream", limit: int) -> tuple[bytes, bool]:
    """Up to `limit` bytes of `stream`, and True if there were more."""
    parts: list[bytes] = []
    size = 0
    try:
        while size <= limit:
            part = await stream.receive(_READ_BYTES)
            parts.append(part)
            size += len(part)
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    return b"".join(parts)[:limit], size > limit


async def _drain(stream: "anyio.abc.ByteReceiveStream", into: list[bytes]) -> bool:
    """Keep the last bytes of `stream`: an error message ends with its reason. True if there are too many."""
    size = 0
    try:
        while size <= _NOISE_BYTES:
            part = await stream.receive(_READ_BYTES)
            into[:] = [(b"".join([*into, part]))[-_ERROR_BYTES:]]
            size += len(part)
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return False
    return True


def _verb(spec: Spec) -> str:
    words = iter(spec.argv[1:])
    for word in words:
        if word in ("-c", "-C", "--git-dir", "--work-tree"):
            next(words, None)
        elif not word.startswith(("-", "/")):
            return word
    return spec.argv[0]


def _not_started(error: OSError) -> HostError:
    return HostError("git_failed", f"git cannot be started on this machine: {error.strerror}.")


def _deadline(spec: Spec) -> OutsideError:
    return OutsideError(
        "git_timeout",
        f"git {_verb(spec)} took longer than {spec.seconds:.0f} seconds and was killed.",
        retryable=True,
    )


async def run(spec: Spec, stdin: bytes | None = None) -> Result:
    """Run to the end, again if a signal kills it, e.g. for lack of memory.

    Raises `HostError` (`no_git`, `git_killed`) and `OutsideError` (`git_timeout`).
    """
    return await _retried(spec, lambda: _once(spec, stdin))


async def _retried(spec: Spec, attempt: Callable[[], Awaitable[Result]]) -> Result:
    number = 0
    for pause in _PAUSES:
        result = await attempt()
        if not (number := _signal(result)):
            return result
        if looped():
            await anyio.sleep(pause)
    raise HostError(
        "git_killed",
        f"git {_verb(spec)} was killed by signal {number}, {len(_PAUSES)} times: "
        "this machine may lack memory; try again.",
    )


def _signal(result: Result) -> int:
    """The signal that killed git or a program that it started; 0 if none did."""
    if result.cut or result.code == 0:
        return 0
    if result.code < 0:
        return -result.code
    if result.code in _SHELL_CODES:  # a shell reports the signal of its child
        return result.code - 128
    died = _DIED.findall(result.err)
    return int(died[-1]) if died else 0


def _blocked(spec: Spec, stdin: bytes | None) -> Result:
    """As `_once`, without an event loop."""
    _check_program(spec)
    who = {"user": spec.who.uid, "group": spec.who.gid, "extra_groups": ()} if spec.who else {}
    seconds, most = spec.seconds, spec.limit_bytes
    try:
        done = blocking(
            spec.argv, spec.env, stdin, seconds=seconds, out_bytes=most, limits=_limits(spec), **who
        )
    except OSError as error:
        raise _not_started(error) from None
    if done.late:
        raise _deadline(spec)
    return Result(done.code, done.out, done.err[-_ERROR_BYTES:], done.cut)


async def _once(spec: Spec, stdin: bytes | None = None, fds: Sequence[int] = ()) -> Result:
    if not looped():
        return _blocked(spec, stdin)
    try:
        with anyio.fail_after(spec.seconds):
            async with _started(spec, DEVNULL if stdin is None else PIPE, PIPE, fds) as process:
                return await _to_end(process, stdin, spec.limit_bytes)
    except TimeoutError:
        raise _deadline(spec) from None


async def _to_end(process: "anyio.abc.Process", stdin: bytes | None, limit_bytes: int) -> Result:
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - we asked for pipes
    errors, err = process.stderr, list[bytes]()
    out, cut, noisy, code = b"", False, False, 0

    async def drain() -> None:
        nonlocal noisy
        if await _drain(errors, err):
            noisy = True
            kill_group(process)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drain)
        if stdin is not None:
            tasks.start_soon(_feed, process, stdin)
        out, cut = await _collect(process.stdout, limit_bytes)
        if cut:
            kill_group(process)
        code = await process.wait()
        kill_group(process)  # a descendant that holds a pipe open would block us
    if noisy:
        return Result(1, out, b"".join(err) + _TOO_NOISY)
    return Result(code, out, b"".join(err), cut)


async def converse(server: Spec, client: Spec, url_at: int) -> Result:
    """Run `client` while it talks to `server` over a socket, each with its own rights.

    `client.argv[url_at]` becomes the address of that socket in git's spelling. Returns the client's
    result, with the server's errors before its own. Both run again if a signal kills one of them; raises as `run`.
    """
    return await _retried(client, lambda: _conversation(server, client, url_at))


async def _conversation(server: Spec, client: Spec, url_at: int) -> Result:
    ours, theirs = socket.socketpair()
    err: list[bytes] = []
    with ours, theirs:
        url = f"fd::{ours.fileno()}"
        argv = (*client.argv[:url_at], url, *client.argv[url_at + 1 :])
        async with _started(server, theirs, theirs, ()) as process:
            theirs.close()  # so that the client notices when the server ends
            result = await _once(msgspec.structs.replace(client, argv=argv), fds=(ours.fileno(),))
            ours.close()
            code = 0
            with anyio.move_on_after(_END_SECONDS):
                code = await process.wait()
            kill_group(process)
            assert process.stderr is not None  # noqa: S101 - we asked for a pipe
            await _drain(process.stderr, err)
    if code < 0 and not result.ok:
        return msgspec.structs.replace(result, code=code)
    return msgspec.structs.replace(result, err=b"".join(err) + result.err)
