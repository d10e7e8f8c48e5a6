"""A runtime's process for as long as its sandbox lives: its last words, its time, its end and the reason for it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup

from cloister.core.errors import SandboxLost
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import spawn
from cloister.sandbox.cgroup import Cgroup
from cloister.sandbox.store.api import Root

TTL_GRACE_SECONDS = 5.0
"""How long after its time the host waits for the guest to end by itself."""

_KILLED = 137
"""What a runtime exits with when SIGKILL ended the guest."""

_PANICKED = 2
"""What gVisor's command exits with when its kernel cannot go on."""

_PARTING_SECONDS = 1.0
_TAIL_BYTES = 4_096


@dataclass(slots=True)
class Running:
    """One sandbox as the host sees it from outside."""

    process: Process
    cgroup: Cgroup
    root: Root
    ttl_ends: float
    """By `anyio.current_time()`."""
    tasks: TaskGroup
    reason: str = ""
    """Why it is gone, in one sentence; empty while it lives and when nothing outside explains it."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    _tail: bytearray = field(default_factory=bytearray)
    _copying: anyio.Lock = field(default_factory=anyio.Lock)
    _clock: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def last_words(self) -> str:
        """What the runtime and the guest said on stderr, as one harmless line."""
        return one_line(decode(bytes(self._tail)), 300)

    @asynccontextmanager
    async def standing_still(self) -> AsyncGenerator[None]:
        """Nothing inside moves. One at a time, for the first to leave would set the others in motion."""
        async with self._copying:
            if self.ended.is_set():
                raise SandboxLost(self.reason or "The sandbox is gone.")
            async with self.cgroup.frozen():
                yield

    def ends_with(self, lost: anyio.Event) -> None:
        """From now on it is killed when `lost` happens and it does not end by itself soon."""
        self.tasks.start_soon(self._follow, lost)

    def restart_clock(self, ttl_seconds: float) -> None:
        """Its time begins now. The guest's own clock still allows more, so there is nothing to wait for at its end."""
        self.ttl_ends = anyio.current_time() + ttl_seconds
        self._clock.deadline = self.ttl_ends

    async def _follow(self, lost: anyio.Event) -> None:
        await lost.wait()
        # A guest that went by itself ends its runtime too, and how that ended is the better explanation.
        with anyio.move_on_after(_PARTING_SECONDS):
            await self.ended.wait()
        self.cgroup.kill()

    async def close(self) -> None:
        """End it from our side."""
        self.reason = self.reason or "The sandbox was closed."
        if self.process.stdin is not None:
            await self.process.stdin.aclose()
        # The guest ends with its stream and the runtime reaps it; a kill of both would leave that to others.
        with anyio.move_on_after(_PARTING_SECONDS):
            await self.process.wait()
        self.cgroup.kill()

    async def listen(self, stderr: ByteReceiveStream) -> None:
        async for data in stderr:
            self._tail += data
            del self._tail[:-_TAIL_BYTES]

    async def watch(self) -> None:
        """Wait for the end, and bring it about when the time is up."""
        self._clock.deadline = self.ttl_ends + TTL_GRACE_SECONDS
        with self._clock:
            await self.process.wait()
        if self.process.returncode is None:
            self.cgroup.kill()
            await self.process.wait()
        self.reason = self.reason or self._find_reason()
        # A runtime that was killed leaves its guest behind, still on our pipes.
        self.cgroup.kill()
        self.ended.set()

    def _find_reason(self) -> str:
        if anyio.current_time() >= self.ttl_ends:
            return "The sandbox reached the end of its time to live."
        kills = self.cgroup.oom_kills()
        if kills and self.process.returncode == _KILLED:
            return f"The sandbox ran out of memory: the kernel killed {kills} of its processes."
        if self.process.returncode == _PANICKED and self.cgroup.refused_tasks():
            return "The sandbox needed more processes than its quota allows."
        said = self.last_words
        return f"The sandbox ended: {said}" if said else ""


@asynccontextmanager
async def launched(
    argv: Sequence[str], path: str, cgroup: Cgroup, root: Root, ttl_seconds: float
) -> AsyncGenerator[Running]:
    """Start a runtime; leaving the block kills everything in its cgroup and waits for the runtime's end."""
    failure: Exception | None = None
    async with spawn(argv, env={"PATH": path}) as process, anyio.create_task_group() as tasks:
        running = Running(process, cgroup, root, anyio.current_time() + ttl_seconds, tasks)
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
