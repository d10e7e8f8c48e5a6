"""A sandbox made by an OCI runtime, as the rest of the house sees it, and what it was asked to be."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cloister.core.ids import SandboxId
from cloister.sandbox.api import Door, Sandbox, SandboxInfo, SandboxSpec, SnapshotInfo
from cloister.sandbox.container import oci
from cloister.sandbox.container.process import Running
from cloister.sandbox.container.runtimes import Way
from cloister.sandbox.protocol.link import Link, Linked
from cloister.sandbox.snapshots import Origin
from cloister.sandbox.store.api import Root
from cloister.sandbox.templates.building import About, Built

if TYPE_CHECKING:
    from cloister.sandbox.container.host import ContainerHost


@dataclass(frozen=True, slots=True)
class Wish:
    """What one sandbox shall be."""

    spec: SandboxSpec
    door: Door | None
    make_root: Callable[[str], Awaitable[Root]]
    """Makes the root of the sandbox with this name."""
    origin: Origin
    template: Built | None = None
    """None for the self-test, which needs none, and where it is gone."""
    parent: SandboxId | None = None


class ContainerSandbox(Linked):
    """One running container, as the rest of the house sees it."""

    def __init__(
        self, host: "ContainerHost", wish: Wish, info: SandboxInfo, running: Running, link: Link, way: Way
    ) -> None:
        super().__init__(link)
        self.info = info
        self.wish = wish
        self.running = running
        self.origin = wish.origin
        self._host = host
        self._way = way

    def fork(self) -> AbstractAsyncContextManager[Sandbox]:
        return self._host.fork(self)

    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        return await self._host.take_snapshot(self, name)

    async def keep(self, at: Path) -> None:
        """See `Keepable.keep`."""
        await self._host.keep(self, at)

    def memory_bytes(self) -> int:
        """See `Poolable.memory_bytes`."""
        return self.running.cgroup.memory_bytes()

    def adopt(self, spec: SandboxSpec, door: Door | None) -> None:
        """See `Poolable.adopt`. Raises `UserError` (`bad_sandbox`)."""
        oci.check_spec(spec)
        now = time.time()
        self.wish = replace(self.wish, spec=spec, door=door)
        self.info = msgspec.structs.replace(self.info, created_at=now, expires_at=now + spec.ttl_seconds)
        self._link.env = environment(self.wish, self._way)
        self.running.restart_clock(spec.ttl_seconds)

    async def wait_lost(self) -> str:
        await self.running.ended.wait()
        return self.running.reason or self._link.reason or "The sandbox was killed or ended by itself."


def environment(wish: Wish, way: Way) -> dict[str, str]:
    """What commands in a sandbox that was wished so find in their environment."""
    about = wish.template.about if wish.template else About()
    return oci.environment(wish.spec, way, about.env, about.home)
