"""Starts the plain host processes of `LocalComputer`. For tests only: nothing here isolates anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.abc


async def start(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> anyio.abc.Process:
    """A process in its own session, so that its whole group can be signalled."""
    return await anyio.open_process(argv, cwd=cwd, env=env, start_new_session=True)
