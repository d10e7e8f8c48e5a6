"""Starts the plain host processes of the fakes. For tests only: nothing here isolates anything."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.abc


async def start(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> anyio.abc.Process:
    """A process in its own session, so that its whole group can be signalled."""
    return await anyio.open_process(argv, cwd=cwd, env=env, start_new_session=True)


def output_of(argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes = b"") -> bytes:
    """What a short command prints. Raises `CalledProcessError` when it fails."""
    done = subprocess.run(argv, cwd=cwd, env=env, input=stdin, capture_output=True, check=True, timeout=60)
    return done.stdout
