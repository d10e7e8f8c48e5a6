"""The host process of a sandbox: started, watched and ended, with the reason for its end and the link to its guest."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process, TaskGroup

from cloister.core.errors import HostError, SandboxLost
from cloister.core.ids import SandboxId
from cloister.core.text import decode, one_line
from cloister.sandbox.api import Door
from cloister.sandbox.local.cgroup import Cgroup
from cloister.sandbox.protocol import frames
from cloister.sandbox.protocol.link import Link, link_over

TTL_GRACE_SECONDS = 5.0
"""How long past its time to live the host waits for the guest to end itself."""

PARTING_SECONDS = 1.0
_LAST_WORDS_SECONDS = 5.0
_TAIL_BYTES = 4_096


@dataclass(slots=True, kw_only=True)
class Lifetime:
    """One sandbox seen from the host. A tier adds how to close it and how to explain its exit status."""

    process: Process
    cgroup: Cgroup
    ttl_ends: float
    """By `anyio.current_time()`."""
    tasks: TaskGroup
    reason: str = ""
    """Why it ended, in one sentence; empty while it lives and when nothing on the host explains it."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    _tail: bytearray = field(default_factory=bytearray)
    _clock: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _talking: int = 0
    _silent: anyio.Event = field(default_factory=anyio.Event)

    @property
    def last_words(self) -> str:
        """The last output of its programs on the host, as one harmless line."""
        return one_line(decode(bytes(self._tail)), 300)

    def ends_with(self, lost: anyio.Event) -> None:
        """Kill the sandbox once `lost` is set, unless it ends by itself soon."""
        self.tasks.start_soon(self._follow, lost)

    async def _follow(self, lost: anyio.Event) -> None:
        await lost.wait()
        # A guest that exited also ends its host process, whose exit status explains more.
        with anyio.move_on_after(PARTING_SECONDS):
            await self.ended.wait()
        self.cgroup.kill()

    def restart_clock(self, ttl_seconds: float) -> None:
        """Start the time to live now. The guest's own clock allows more, so there is no grace at the end."""
        self.ttl_ends = anyio.current_time() + ttl_seconds
        self._clock.deadline = self.ttl_ends

    async def listen(self, stream: ByteReceiveStream) -> None:
        """Keep the tail of the output. Start this before `watch`."""
        self._talking += 1
        async for data in stream:
            self._tail += data
            del self._tail[:-_TAIL_BYTES]
        self._talking -= 1
        if not self._talking:
            self._silent.set()

    async def watch(self) -> None:
        """Wait for the end; kill the sandbox when its time to live is over."""
        try:
            self._clock.deadline = self.ttl_ends + TTL_GRACE_SECONDS
            with self._clock:
                await self.process.wait()
            if self.process.returncode is None:
                self.cgroup.kill()
                await self.process.wait()
            ended_at = anyio.current_time()
            # A killed process may leave its guest behind, still on our pipes.
            self.cgroup.kill()
            if self._talking:  # the exit status may arrive before the last output
                with anyio.move_on_after(PARTING_SECONDS):
                    await self._silent.wait()
            self.reason = self.reason or self._find_reason(ended_at)
        finally:
            self.ended.set()

    def _find_reason(self, ended_at: float) -> str:
        if ended_at >= self.ttl_ends:
            return "The sandbox reached the end of its time to live."
        if why := self.explain():
            return why
        said = self.last_words
        return f"The sandbox ended: {said.rstrip('.')}." if said else ""

    def explain(self) -> str:
        """The meaning of the exit status, in one sentence; empty when it has none."""
        return ""

    async def close(self) -> None:
        """End it from the host; a tier may do it more gently."""
        self.reason = self.reason or "The sandbox was closed."
        self.cgroup.kill()
        await self.process.wait()


L = TypeVar("L", bound=Lifetime)


@asynccontextmanager
async def lived(make: Callable[[TaskGroup], L]) -> AsyncGenerator[L]:
    """Watch a started sandbox and keep its last output; leaving the block closes it."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        life = make(tasks)
        for stream in (life.process.stdout, life.process.stderr):
            if stream is not None:
                tasks.start_soon(life.listen, stream)
        tasks.start_soon(life.watch)
        try:
            yield life
        except Exception as error:
            # Carried out of the task group, which would wrap it.
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await life.close()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True)
class Greeting:
    """How the host introduces itself to a guest."""

    sandbox: SandboxId
    frames: frames.Setup | tuple[frames.Wake, frames.Setup]
    env: Mapping[str, str]
    door: Door | None


@asynccontextmanager
async def linked(
    life: Lifetime, into: ByteSendStream, out: ByteReceiveStream, greeting: Greeting
) -> AsyncGenerator[Link]:
    """The link to the guest. Raises `HostError` (`start_failed`) with the last output when the guest never answers."""
    door = None if greeting.door is None else partial(greeting.door, greeting.sandbox)
    opened = False
    try:
        async with link_over(into, out, greeting.frames, env=greeting.env, door=door) as link:
            opened = True
            yield link
    except SandboxLost as error:
        if opened:
            raise
        # The launcher, the runtime or the emulator printed the reason.
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await life.ended.wait()
        raise HostError(
            "start_failed", f"A sandbox could not be started: {life.last_words or error}"
        ) from error
