"""Begins processes on the host and ends them; the `_spawn.py` of each package says which, and with what bounds."""

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
    """A process in a session of its own, for `ending` right away: there is no point between them to be cancelled at.

    `env` replaces the environment; `pass_fds` stay open in it under the same numbers; as another `user` it has no
    groups but `group`. Raises `OSError` when it cannot be started.
    """
    process: Process | None = None
    # Whoever is cancelled just now must not lose sight of a process that has begun.
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
        raise Bug("A process neither began nor failed to.")
    return process


@asynccontextmanager
async def ending(process: Process) -> AsyncGenerator[None]:
    """However the block is left, the group of `process` is killed and it is waited for."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            kill_group(process)
            await process.aclose()


def kill_group(process: Process) -> None:
    """Kill what is left of the group, also after its leader's own end.

    The group outlives its leader when the program left children behind; a group id is not given to anyone else
    while it has members.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
