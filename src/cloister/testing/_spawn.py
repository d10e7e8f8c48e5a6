"""Starts the plain host processes of the fakes. For tests only: nothing here isolates anything."""

import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anyio.abc import Process

from cloister.core.system._spawn import begin, ending


@asynccontextmanager
async def started(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> AsyncGenerator[Process]:
    """A process in its own session, so that its whole group can be signalled; it is gone after the block."""
    process = await begin(argv, cwd=cwd, env=env)
    async with ending(process):
        yield process


def output_of(argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes = b"") -> bytes:
    """What a short command prints. Raises `CalledProcessError` when it fails."""
    done = subprocess.run(argv, cwd=cwd, env=env, input=stdin, capture_output=True, check=True, timeout=60)
    return done.stdout
