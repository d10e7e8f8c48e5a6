"""Starts and ends processes on the host. The `_spawn.py` of each package defines which ones, and their limits."""

import os
import resource
import signal
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import anyio

from cloister.core.errors import Bug

if TYPE_CHECKING:
    from anyio.abc import Process

NOISE_BYTES = 16_777_216
"""Errors after which a process is killed: a server can send them without end."""
_READ_BYTES = 65_536


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
    """The last bytes of its errors: a message ends with its reason."""
    cut: bool
    """True if it printed more than allowed and was killed."""
    late: bool
    """True if it took longer than allowed and was killed."""
    noisy: bool
    """True if it sent more than `NOISE_BYTES` of errors and was killed."""


def blocking(  # noqa: PLR0913  (as `begin`, with limits)
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes | None,
    *,
    seconds: float,
    out_bytes: int,
    limits: Mapping[int, int | None],
    user: int | None = None,
    group: int | None = None,
) -> Blocked:
    """Run a process to its end and block this thread: for commands without an event loop. Raises `OSError`."""
    late, noisy, err = threading.Event(), threading.Event(), bytearray()

    def end(why: threading.Event) -> None:
        why.set()
        kill_group(process)

    def drain(pipe: IO[bytes]) -> None:
        size = 0
        while part := os.read(pipe.fileno(), _READ_BYTES):
            err[:] = (err + part)[-_READ_BYTES:]
            size += len(part)
            if size > NOISE_BYTES:
                return end(noisy)
        return None

    def feed(pipe: IO[bytes]) -> None:
        with suppress(OSError), pipe:  # if it stops reading, its exit status says why
            pipe.write(stdin or b"")

    with Popen(
        argv,
        stdin=DEVNULL if stdin is None else PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
        cwd="/",
        start_new_session=True,
        user=user,
        group=group,
        extra_groups=None if user is None else (),
    ) as process:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101  (pipes were asked for)
        timer = threading.Timer(seconds, end, (late,))
        errors = threading.Thread(target=drain, args=(process.stderr,), daemon=True)
        try:
            limit(process.pid, limits)
            timer.start()
            errors.start()
            if process.stdin is not None:
                threading.Thread(target=feed, args=(process.stdin,), daemon=True).start()
            out = process.stdout.read(out_bytes + 1)
            if len(out) <= out_bytes:
                process.wait()
        finally:
            timer.cancel()
            kill_group(process)  # also descendants that hold a pipe open
        errors.join()
    return Blocked(
        process.returncode, out[:out_bytes], bytes(err), len(out) > out_bytes, late.is_set(), noisy.is_set()
    )
