"""Starts the host programs that the door asks: those that know a secret, and package clients that know their sources."""

import os
import shlex
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL

import anyio

from cloister.system._spawn import begin, ending


class Failed(Exception):
    """It could not be started, took too long, said too much, or did not end well. What it said is not told."""


def inherited() -> Mapping[str, str]:
    """Our own environment, which these programs get; it is passed on, never read for settings."""
    return os.environ


def words(line: str) -> tuple[str, ...]:
    """A command line as an argument list; there is no shell. Raises `Failed`."""
    try:
        return tuple(shlex.split(line))
    except ValueError:
        raise Failed("its command line has an open quote") from None


async def output(
    argv: Sequence[str], *, seconds: float, limit_bytes: int, more_env: Mapping[str, str] | None = None
) -> bytes:
    """What a program prints. Raises `Failed`; whatever happens, its group is gone afterwards."""
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
