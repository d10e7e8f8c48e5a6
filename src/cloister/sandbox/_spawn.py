"""The only file of this package that starts processes on the host."""

import resource
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from cloister.core.errors import Bug, HostError
from cloister.core.system._spawn import begin, ended, ending
from cloister.core.text import decode, one_line

CAPTURE_BYTES = 16_777_216
"""Limit of `capture` per stream; a program that prints more is killed."""


_TREE_SECONDS = 900.0


class Captured(msgspec.Struct, frozen=True):
    """The result of a host program. `code` is negative when a signal ended it."""

    code: int
    out: bytes
    err: bytes

    @property
    def ok(self) -> bool:
        return self.code == 0


@asynccontextmanager
async def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    stdin: int = PIPE,
    stdout: int = PIPE,
) -> AsyncGenerator[Process]:
    """Run `argv` with three pipes in a new session; leaving the block kills its process group and reaps it.

    `env` replaces the environment; `pass_fds` stay open under the same numbers. Raises `HostError` (`no_program`).
    """
    try:
        process = await begin(argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, pass_fds=pass_fds)
    except OSError as error:
        raise HostError(
            "no_program",
            f"{argv[0]} cannot be started: {error.strerror or error}; install it or fix its path.",
        ) from error
    async with ending(process):
        yield process


def pipes(process: Process) -> tuple[ByteSendStream, ByteReceiveStream, ByteReceiveStream]:
    """The stdin, stdout and stderr of a process that `spawn` started."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise Bug("A spawned process lacks a pipe.")
    return process.stdin, process.stdout, process.stderr


async def capture(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float,
    stdin: bytes = b"",
) -> Captured:
    """Run `argv` and collect its output; its process group is killed on timeout and cancellation.

    A non-zero exit is a result. Raises `HostError` (`no_program`, `program_timeout`, `program_output`).
    """
    out, err = bytearray(), bytearray()
    code: int | None = None
    with anyio.move_on_after(seconds) as deadline:
        async with spawn(argv, env=env, cwd=cwd) as process, anyio.create_task_group() as tasks:
            into, from_out, from_err = pipes(process)
            tasks.start_soon(_feed, into, stdin)
            tasks.start_soon(_collect, from_out, out, tasks.cancel_scope)
            tasks.start_soon(_collect, from_err, err, tasks.cancel_scope)
            code = await process.wait()
    if max(len(out), len(err)) > CAPTURE_BYTES:
        raise HostError(
            "program_output", f"{argv[0]} printed more than {CAPTURE_BYTES:,} bytes and was killed."
        )
    if code is None or deadline.cancelled_caught:
        raise HostError(
            "program_timeout", f"{argv[0]} did not finish within {seconds:g} seconds and was killed."
        )
    return Captured(code, bytes(out), bytes(err))


async def copy_tree(source: str, target: str, path: str, how: str = "--reflink=auto") -> str | None:
    """Copy with `cp -a`; return why it failed, or None. `path` is `PATH`.

    `-a` keeps owners, links, times, whiteouts (character devices 0:0) and the attributes of an overlay.
    """
    return await _failure(["cp", "-a", how, "--", source, target], path)


async def remove_tree(at: Path, path: str) -> str | None:
    """Remove with `rm -rf`; return why it failed, or None. `path` is `PATH`.

    The guest chose every name and depth below: `rm` neither follows links nor recurses in memory.
    """
    return await _failure(["rm", "-rf", "--one-file-system", "--", str(at)], path)


async def _failure(argv: Sequence[str], path: str) -> str | None:
    done = await capture(argv, env={"PATH": path, "LC_ALL": "C"}, seconds=_TREE_SECONDS)
    return None if done.ok else one_line(decode(done.err), 300) or f"{argv[0]} {ended(done.code)}"


async def _feed(stream: ByteSendStream, data: bytes) -> None:
    # A program that closes its input unread is not an error.
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        if data:
            await stream.send(data)
    await stream.aclose()


async def _collect(stream: ByteReceiveStream, into: bytearray, whole: anyio.CancelScope) -> None:
    async for data in stream:
        into += data
        if len(into) > CAPTURE_BYTES:
            whole.cancel()
            return


def allow_many_files() -> None:
    """Raise the limit of open files to its maximum: each sandbox takes several, and the default is low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
