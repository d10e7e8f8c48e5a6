"""A sandbox's process on the host for as long as it lives: its last words, its time, its end and the reason for it."""

from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup

from cloister.core.text import decode, one_line
from cloister.sandbox.container.cgroup import Cgroup

TTL_GRACE_SECONDS = 5.0
"""How long after its time the host waits for the guest to end by itself."""

PARTING_SECONDS = 1.0
_TAIL_BYTES = 4_096


@dataclass(slots=True, kw_only=True)
class Lifetime:
    """One sandbox as the host sees it from outside; a tier adds how it is ended and what its end means."""

    process: Process
    cgroup: Cgroup
    ttl_ends: float
    """By `anyio.current_time()`."""
    tasks: TaskGroup
    reason: str = ""
    """Why it is gone, in one sentence; empty while it lives and when nothing outside explains it."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    _tail: bytearray = field(default_factory=bytearray)
    _clock: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _talking: int = 0
    _silent: anyio.Event = field(default_factory=anyio.Event)

    @property
    def last_words(self) -> str:
        """What its programs on the host said, as one harmless line."""
        return one_line(decode(bytes(self._tail)), 300)

    def ends_with(self, lost: anyio.Event) -> None:
        """From now on it is killed when `lost` happens and it does not end by itself soon."""
        self.tasks.start_soon(self._follow, lost)

    async def _follow(self, lost: anyio.Event) -> None:
        await lost.wait()
        # A guest that went by itself ends its process here too, and how that ended is the better explanation.
        with anyio.move_on_after(PARTING_SECONDS):
            await self.ended.wait()
        self.cgroup.kill()

    def restart_clock(self, ttl_seconds: float) -> None:
        """Its time begins now. The guest's own clock still allows more, so there is nothing to wait for at its end."""
        self.ttl_ends = anyio.current_time() + ttl_seconds
        self._clock.deadline = self.ttl_ends

    async def listen(self, stream: ByteReceiveStream) -> None:
        """Remember the last of what it says. To be started before `watch`."""
        self._talking += 1
        async for data in stream:
            self._tail += data
            del self._tail[:-_TAIL_BYTES]
        self._talking -= 1
        if not self._talking:
            self._silent.set()

    async def watch(self) -> None:
        """Wait for the end, and bring it about when the time is up."""
        try:
            self._clock.deadline = self.ttl_ends + TTL_GRACE_SECONDS
            with self._clock:
                await self.process.wait()
            if self.process.returncode is None:
                self.cgroup.kill()
                await self.process.wait()
            ended_at = anyio.current_time()
            # A process that was killed may leave its guest behind, still on our pipes.
            self.cgroup.kill()
            await self._hear_out()
            self.reason = self.reason or self._find_reason(ended_at)
        finally:
            self.ended.set()

    async def _hear_out(self) -> None:
        """That it has ended may be known before its last words have arrived."""
        if self._talking:
            with anyio.move_on_after(PARTING_SECONDS):
                await self._silent.wait()

    def _find_reason(self, ended_at: float) -> str:
        if ended_at >= self.ttl_ends:
            return "The sandbox reached the end of its time to live."
        if why := self.explain():
            return why
        said = self.last_words
        return f"The sandbox ended: {said.rstrip('.')}." if said else ""

    def explain(self) -> str:
        """What the way it ended means; empty when it means nothing in particular."""
        return ""
