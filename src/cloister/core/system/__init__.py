"""Processes, locks and threads of the host.

A quick command runs a verb without an event loop, whose start-up would take half of its time. `looped` is False there,
and what otherwise waits in a thread or for a process blocks instead.
"""

import sys
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Args = TypeVarTuple("Args")


class NeedsLoop(Exception):
    """Raised without an event loop by work that cannot do without."""


def looped() -> bool:
    """True if an event loop runs in this thread."""
    loops = sys.modules.get("asyncio")
    return loops is not None and loops._get_running_loop() is not None


async def in_thread(work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """Call `work` in a worker thread; without an event loop, in this one."""
    if not looped():
        return work(*args)
    from anyio import to_thread  # noqa: PLC0415  (quick commands need no event loop)

    return await to_thread.run_sync(work, *args)
