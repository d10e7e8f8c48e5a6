"""Starts and ends processes on the host. The `_spawn.py` of each package defines which ones, and their limits."""

import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import anyio
from anyio.abc import Process

from cloister.core.errors import Bug


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
) -> Process:
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
async def ending(process: Process) -> AsyncGenerator[None]:
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


def kill_group(process: Process) -> None:
    """Kill the rest of the group, even after its leader has ended.

    The group outlives its leader if the program left children behind. The kernel does not reuse a group id
    that has members.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
