"""What the self-test of a runtime does: a root with nothing in it but the guest, and many programs at once."""

import os
from pathlib import Path

import anyio

from cloister.core.commands import Command
from cloister.core.errors import HostError
from cloister.sandbox import plan, selftest
from cloister.sandbox.api import Sandbox

_AT_ONCE = 10


async def start_many(sandbox: Sandbox) -> float:
    """How many seconds it takes to start many programs. The only one in a bare root is the guest, which refuses."""
    started = anyio.current_time()

    async def some() -> None:
        for _ in range(selftest.STARTS // _AT_ONCE):
            finished = await sandbox.run(Command((plan.GUEST, "--help"), cwd="/"))
            if b"usage" not in finished.err:
                raise HostError("trial_failed", "A program inside did not run as it should.")

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(some)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return anyio.current_time() - started


def furnish(at: Path) -> None:
    """The least that a runtime accepts as a root filesystem: mount points, and a directory to write in."""
    for name in ("proc", "dev", ".cloister", "work"):
        (at / name).mkdir()
    (at / ".cloister" / "guest").touch()
    os.chown(at / "work", 1000, 1000)
