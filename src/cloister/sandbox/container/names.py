"""Names of sandboxes on this machine: each is a directory and cgroups that carry the same name, and ids of its own."""

import logging
import secrets
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from cloister.core.errors import Bug, CloisterError, HostError
from cloister.core.ids import OwnerId, new_sandbox_id
from cloister.core.requests import Quota
from cloister.sandbox.container import cgroup, oci
from cloister.sandbox.container.cgroup import Cgroup
from cloister.sandbox.liveness import Owners

logger = logging.getLogger(__name__)

_END_SECONDS = 120.0

Dispose = Callable[[str], Awaitable[None]]
"""Removes what a sandbox of that name has elsewhere, once nothing of it runs. Raises `HostError`."""


async def _nothing(_name: str) -> None:
    return None


class Claims:
    """The sandboxes below one data directory, as names. What else belongs to one, `dispose` knows."""

    def __init__(self, data_dir: Path, owner: OwnerId, dispose: Dispose = _nothing) -> None:
        self._owner = owner
        self._owners = Owners(data_dir / "owners")
        self._sandboxes = data_dir / "sandboxes"
        self._dispose = dispose
        self._stuck: set[oci.Name] = set()
        self.layout = cgroup.read_layout()

    def home(self, name: oci.Name) -> Path:
        """The directory of a sandbox."""
        return self._sandboxes / str(name)

    @asynccontextmanager
    async def named(self, quota: Quota) -> AsyncGenerator[tuple[oci.Name, Cgroup]]:
        """A name that no other sandbox has; leaving the block kills what is in its cgroups and removes it all."""
        if self._stuck:
            await self.sweep()
        name, group = self._claim(quota)
        try:
            yield name, group
        finally:
            with anyio.move_on_after(_END_SECONDS, shield=True):
                try:
                    await self._remove(name)
                except CloisterError as error:
                    # The next sweep tries again; the caller's own error is the one that matters.
                    self._stuck.add(name)
                    logger.error("%s was not removed: %s", name, error)

    async def sweep(self) -> int:
        """Remove the names whose owners no longer live; returns how many."""
        removed = 0
        for path in sorted(self._sandboxes.iterdir()) if self._sandboxes.is_dir() else ():
            name = oci.parse_name(path.name)
            if name is None or (self._owners.lives(name.owner) and name not in self._stuck):
                continue
            try:
                await self._remove(name)
                self._stuck.discard(name)
                removed += 1
            except HostError as error:
                # One that cannot be removed now must not keep anyone from starting; it is tried again next time.
                logger.warning("%s was not removed: %s", name, error)
        self._owners.remove_dead()
        return removed

    def _claim(self, quota: Quota) -> tuple[oci.Name, Cgroup]:
        """A name with ids that no other sandbox on this machine has, its directory and its cgroups."""
        if not self._owners.lives(self._owner):
            raise Bug(f"sandboxes are opened for {self._owner}, which nobody holds")
        self._sandboxes.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            slot = secrets.choice(oci.SLOTS)
            if slot in self._slots():
                continue
            name = oci.Name(new_sandbox_id(), self._owner, slot)
            home = self.home(name)
            # The directory first: a sweep finds cgroups by it.
            home.mkdir(mode=0o700)
            try:
                group = Cgroup.create(self.layout, str(name), quota)
            except CloisterError:
                home.rmdir()
                raise
            if self._slots().count(slot) == 1:
                return name, group
            group.discard()
            home.rmdir()

    def _slots(self) -> list[int]:
        return [name.slot for text in cgroup.names(self.layout) if (name := oci.parse_name(text))]

    async def _remove(self, name: oci.Name) -> None:
        await Cgroup(self.layout, str(name)).remove()
        await self._dispose(str(name))
        shutil.rmtree(self.home(name), ignore_errors=True)
