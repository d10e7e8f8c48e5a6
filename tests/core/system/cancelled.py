"""Cancels what starts a process at each of the first moments of its life, and sees who is left."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel

MOMENTS = 12
"""Turns of the event loop after which it is cancelled, from before it began to when it is under way."""


def children() -> set[int]:
    """Processes that we began and nobody has waited for, those that have ended included."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(path.parent.name))
    return found


async def left_behind(work: Callable[[], Awaitable[object]]) -> dict[int, set[int]]:
    """Moment → the children that are there when the cancelled `work` has returned. `work` would take for ever."""
    found: dict[int, set[int]] = {}
    for moment in range(MOMENTS):
        before = children()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_do, work)
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        if left := children() - before:
            found[moment] = left
    return found


async def _do(work: Callable[[], Awaitable[object]]) -> None:
    await work()
    raise AssertionError("it was to be cancelled")
