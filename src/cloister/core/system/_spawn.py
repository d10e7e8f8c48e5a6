"""Starts and ends processes on the host. The `_spawn.py` of each package defines which ones, and their limits."""

import os
import resource
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import anyio

from cloister.core.errors import Bug

if TYPE_CHECKING:
    from anyio.abc import Process


async def begin(  # noqa: PLR0913  (each is one of those of `open_process`)
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    stdin: int = PIPE,
    stdout: int = PIPE,
    stderr: int | IO[Any] = PIPE,
    pass_fds: Sequence[int] = (),
    user: int | None = None,
    group: int | None = None,
) -> "Process":
    """Start a process in its own session. Pass it to `ending` at once: there is no cancellation point in between.

    `env` replaces the environment; `pass_fds` stay open under the same numbers; another `user` has no groups but
    `group`. Raises `OSError` when it cannot be started.
    """
    process: Process | None = None
    # A cancelled caller must not lose a process that was just started.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            start_new_session=True,
            pass_fds=pass_fds,
            user=user,
            group=group,
            extra_groups=None if user is None else (),
        )
    if process is None:
        raise Bug("A process neither started nor failed to start.")
    return process


@asynccontextmanager
async def ending(process: "Process") -> AsyncGenerator[None]:
    """Kill the process group and wait for it when the block ends, in whatever way."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            kill_group(process)
            await process.aclose()


def ended(code: int) -> str:
    """How a process ended, in words, from its exit status; negative is a signal."""
    return f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"


def kill_group(process: "Process | Popen[bytes]") -> None:
    """Kill the rest of the group, even after its leader has ended.

    The group outlives its leader if the program left children behind. The kernel does not reuse a group id
    that has members.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def limit(pid: int, kinds: Mapping[int, int | None]) -> None:
    """Set limits of a process and of the children that it will have: `RLIMIT_…` → bytes, None for no limit."""
    for kind, most in kinds.items():
        if most is not None:
            with suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(pid, kind, (most, most))


class Blocked(NamedTuple):
    """A process that ended while its caller's thread waited."""

    code: int
    out: bytes
    err: bytes
    cut: bool
    """True if it printed more than allowed, which killed it."""
    late: bool
    """True if it took longer than allowed and was killed."""


def blocking(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes | None,
    *,
    seconds: float,
    out_bytes: int,
    limits: Mapping[int, int | None],
    **who: Any,
) -> Blocked:
    """Run a process to its end and block this thread: for commands without an event loop. Raises `OSError`.

    It prints into memory, and the kernel ends it at `out_bytes` of output or of errors. `who` is as for `begin`.
    """
    files, late = [os.memfd_create(name) for name in ("out", "err")], False
    try:
        stdout, stderr = files
        pipe = DEVNULL if stdin is None else PIPE
        bounds = {**limits, resource.RLIMIT_FSIZE: out_bytes + 1}
        # In the child before it can print or start others; without an event loop there is no other thread.
        given: dict[str, Any] = {"env": env, "cwd": "/", "preexec_fn": lambda: limit(0, bounds), **who}
        process = Popen[bytes](
            argv, stdin=pipe, stdout=stdout, stderr=stderr, start_new_session=True, **given
        )
        try:
            process.communicate(stdin, timeout=seconds)
        except TimeoutExpired:
            late = True
        finally:
            kill_group(process)
            process.wait()
        cut = any(os.fstat(file).st_size > out_bytes for file in files)
        out, err = (os.pread(file, out_bytes, 0) for file in files)
        return Blocked(process.returncode, out, err, cut, late)
    finally:
        for file in files:
            os.close(file)
