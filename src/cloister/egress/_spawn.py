"""Start host programs for the proxy: commands that print a secret, and package clients that name their sources."""

import os
import shlex
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL

import anyio

from cloister.core.system._spawn import begin, ending


class Failed(Exception):
    """Failed to start, timed out, exceeded its output limit, or exited non-zero. Output is withheld: it may contain a secret."""


def inherited() -> Mapping[str, str]:
    """This process's environment, passed on to these programs and never read for settings."""
    return os.environ


def words(line: str) -> tuple[str, ...]:
    """Split a command line into arguments, without a shell. Raises `Failed`."""
    try:
        return tuple(shlex.split(line))
    except ValueError:
        raise Failed("its command line has an unclosed quote") from None


async def output(
    argv: Sequence[str], *, seconds: float, limit_bytes: int, more_env: Mapping[str, str] | None = None
) -> bytes:
    """Return the output of a program. Raises `Failed`. Its process group is always gone afterwards."""
    try:
        process = await begin(
            argv, stdin=DEVNULL, stderr=DEVNULL, cwd="/", env={**inherited(), **(more_env or {})}
        )
    except OSError as error:
        raise Failed(f"{argv[0]} cannot be started: {error.strerror}") from None
    out = bytearray()
    try:
        async with ending(process):
            with anyio.fail_after(seconds):
                if process.stdout is not None:
                    async for data in process.stdout:
                        out += data
                        if len(out) > limit_bytes:
                            raise Failed(f"{argv[0]} printed more than {limit_bytes:,} bytes")
                code = await process.wait()
    except TimeoutError:
        raise Failed(f"{argv[0]} took longer than {seconds:g} seconds") from None
    if code != 0:
        raise Failed(f"{argv[0]} ended with status {code}")
    return bytes(out)
