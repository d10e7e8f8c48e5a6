"""One running container: the runtime's process, and the `Sandbox` that the rest of the program uses."""

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.abc import Process, TaskGroup

from cloister.core.errors import SandboxLost
from cloister.core.ids import SandboxId
from cloister.sandbox._spawn import spawn
from cloister.sandbox.api import Door, Load, Sandbox, SandboxInfo, SandboxSpec, SnapshotInfo
from cloister.sandbox.container import oci
from cloister.sandbox.container.oci import Way
from cloister.sandbox.local.cgroup import Cgroup
from cloister.sandbox.local.lifetime import PARTING_SECONDS, Lifetime, lived
from cloister.sandbox.local.spec import check_spec, check_ttl
from cloister.sandbox.local.spec import environment as environment_of
from cloister.sandbox.protocol.link import Link
from cloister.sandbox.protocol.outbox import PipeReceiver, PipeSender, open_pipe
from cloister.sandbox.snapshots import Origin
from cloister.sandbox.store.api import Root
from cloister.sandbox.templates.building import About, Built

if TYPE_CHECKING:
    from cloister.sandbox.container.host import ContainerHost

_KILLED = 137
"""Exit status of a runtime whose guest was ended by SIGKILL."""

_PANICKED = 2
"""Exit status of gVisor when its kernel panics."""


@dataclass(slots=True, kw_only=True)
class Running(Lifetime):
    """One container as the host sees it."""

    root: Root
    into: PipeSender
    out: PipeReceiver
    _copying: anyio.Lock = field(default_factory=anyio.Lock)

    @asynccontextmanager
    async def standing_still(self) -> AsyncGenerator[None]:
        """Freeze every process inside. One caller at a time: the first to leave would thaw them for the others."""
        async with self._copying:
            if self.ended.is_set():
                raise SandboxLost(self.reason or "The sandbox has ended.")
            async with self.cgroup.frozen():
                yield

    async def close(self) -> None:
        self.reason = self.reason or "The sandbox was closed."
        await self.into.aclose()
        # The guest ends with its input and the runtime reaps it; killing both would leave a zombie.
        with anyio.move_on_after(PARTING_SECONDS):
            await self.process.wait()
        self.cgroup.kill()
        # The launcher ends once it has reaped all processes of a gVisor.
        with anyio.move_on_after(PARTING_SECONDS):
            await self.process.wait()
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
    """The runtime, and the two pipes to its guest."""
    (to_read, into), (out, to_write) = open_pipe(), open_pipe()
    async with PipeSender(into) as sender, PipeReceiver(out) as receiver, AsyncExitStack() as stack:
        started = spawn(argv, env={"PATH": path}, stdin=to_read, stdout=to_write)
        try:
            process = await stack.enter_async_context(started)
        finally:
            os.close(to_read)
            os.close(to_write)
        yield process, sender, receiver


@asynccontextmanager
async def launched(
    argv: Sequence[str], path: str, cgroup: Cgroup, root: Root, ttl_seconds: float
) -> AsyncGenerator[Running]:
    """Start a runtime; leaving the block kills everything in its cgroup and waits for the runtime."""
    async with _piped(argv, path) as (process, into, out):

        def running(tasks: TaskGroup) -> Running:
            ends = anyio.current_time() + ttl_seconds
            return Running(
                process=process, cgroup=cgroup, root=root, into=into, out=out, ttl_ends=ends, tasks=tasks
            )

        async with lived(running) as life:
            yield life


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Everything that decides what one container becomes."""

    spec: SandboxSpec
    door: Door | None
    make_root: Callable[[str], Awaitable[Root]]
    """Makes the root of the sandbox with this name."""
    origin: Origin
    template: Built | None = None
    """None for the self-test, and when the template has been removed since."""
    parent: SandboxId | None = None


class ContainerSandbox(Link):
    """One running container. Implements `Sandbox`, `Keepable` and `Poolable`."""

    def __init__(
        self,
        host: "ContainerHost",
        request: ContainerRequest,
        info: SandboxInfo,
        running: Running,
        link: Link,
        way: Way,
    ) -> None:
        super().__init__(link.env, link.mux)
        self.info = info
        self.request = request
        self.running = running
        self.origin = request.origin
        self._host = host
        self._way = way

    def fork(self, copied: Callable[[], None] | None = None) -> AbstractAsyncContextManager[Sandbox]:
        return self._host.fork(self, copied)

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        return await self._host.take_snapshot(self, name)

    async def keep(self, at: Path, *, shared: bool = False) -> None:
        await self._host.keep(self, at, shared=shared)

    def memory_bytes(self) -> int:
        return self.running.cgroup.memory_bytes()

    def adopt(self, spec: SandboxSpec, door: Door | None) -> None:
        """See `Poolable.adopt`. Raises `UserError` (`bad_sandbox`)."""
        check_spec(spec)
        now = time.time()
        self.request = replace(self.request, spec=spec, door=door)
        self.info = msgspec.structs.replace(self.info, created_at=now, expires_at=now + spec.ttl_seconds)
        self.env = environment(self.request, self._way)
        self.running.restart_clock(spec.ttl_seconds)

    async def set_ttl(self, ttl_seconds: float) -> None:
        check_ttl(ttl_seconds)
        await self.tell_ttl(ttl_seconds)
        self.running.restart_clock(ttl_seconds)
        self.info = msgspec.structs.replace(self.info, expires_at=time.time() + ttl_seconds)

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        async with self.running.standing_still():
            with self.mux.stillness.lasting():
                yield

    async def load(self) -> Load:
        group = self.running.cgroup
        used = await self._host.used(self.running.root)
        return Load(group.cpu_seconds(), group.memory_bytes(), used)

    async def wait_lost(self) -> str:
        await self.running.ended.wait()
        return self.running.reason or self.reason or "The sandbox was killed or ended by itself."


def environment(request: ContainerRequest, way: Way) -> dict[str, str]:
    """The environment of commands in the sandbox of `request`."""
    about = request.template.about if request.template else About()
    return environment_of(request.spec, about.env, about.home, oci.PRELOAD if way.preload else None)
