"""A runtime's process for as long as its sandbox lives, and how its sandbox is held still and ended."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import Process

from cloister.core.errors import SandboxLost
from cloister.sandbox._spawn import spawn
from cloister.sandbox.container.cgroup import Cgroup
from cloister.sandbox.container.lifetime import PARTING_SECONDS, Lifetime
from cloister.sandbox.protocol.outbox import PipeReceiver, PipeSender, open_pipe
from cloister.sandbox.store.api import Root

_KILLED = 137
"""What a runtime exits with when SIGKILL ended the guest."""

_PANICKED = 2
"""What gVisor's command exits with when its kernel cannot go on."""


@dataclass(slots=True, kw_only=True)
class Running(Lifetime):
    """One container as the host sees it from outside."""

    root: Root
    into: PipeSender
    out: PipeReceiver
    _copying: anyio.Lock = field(default_factory=anyio.Lock)

    @asynccontextmanager
    async def standing_still(self) -> AsyncGenerator[None]:
        """Nothing inside moves. One at a time, for the first to leave would set the others in motion."""
        async with self._copying:
            if self.ended.is_set():
                raise SandboxLost(self.reason or "The sandbox is gone.")
            async with self.cgroup.frozen():
                yield

    async def close(self) -> None:
        """End it from our side."""
        self.reason = self.reason or "The sandbox was closed."
        await self.into.aclose()
        # The guest ends with its stream and the runtime reaps it; a kill of both would leave that to others.
        with anyio.move_on_after(PARTING_SECONDS):
            await self.process.wait()
        self.cgroup.kill()
        await self.out.aclose()

    def explain(self) -> str:
        kills = self.cgroup.oom_kills()
        if kills and self.process.returncode == _KILLED:
            return f"The sandbox ran out of memory: the kernel killed {kills} of its processes."
        if self.process.returncode == _PANICKED and self.cgroup.refused_tasks():
            return "The sandbox needed more processes than its quota allows."
        return ""


@asynccontextmanager
async def _piped(argv: Sequence[str], path: str) -> AsyncGenerator[tuple[Process, PipeSender, PipeReceiver]]:
    """The runtime with the two pipes that its guest talks through."""
    (to_read, into), (out, to_write) = open_pipe(), open_pipe()
    async with PipeSender(into) as sender, PipeReceiver(out) as receiver, AsyncExitStack() as stack:
        try:
            started = spawn(argv, env={"PATH": path}, stdin=to_read, stdout=to_write)
            process = await stack.enter_async_context(started)
        finally:
            os.close(to_read)
            os.close(to_write)
        yield process, sender, receiver


@asynccontextmanager
async def launched(
    argv: Sequence[str], path: str, cgroup: Cgroup, root: Root, ttl_seconds: float
) -> AsyncGenerator[Running]:
    """Start a runtime; leaving the block kills everything in its cgroup and waits for the runtime's end."""
    failure: Exception | None = None
    async with _piped(argv, path) as (process, into, out), anyio.create_task_group() as tasks:
        running = Running(
            process=process,
            cgroup=cgroup,
            root=root,
            into=into,
            out=out,
            ttl_ends=anyio.current_time() + ttl_seconds,
            tasks=tasks,
        )
        if process.stderr is not None:
            tasks.start_soon(running.listen, process.stderr)
        tasks.start_soon(running.watch)
        try:
            yield running
        except Exception as error:
            # Carried around the task group, which would wrap it.
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await running.close()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
