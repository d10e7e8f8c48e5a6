"""Names of sandboxes on this machine: each is a directory and cgroups of the same name, with user ids of its own."""

import logging
import re
import secrets
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import Bug, CloisterError, HostError
from cloister.core.ids import OwnerId, SandboxId, is_id, new_sandbox_id
from cloister.core.requests import Quota
from cloister.sandbox.liveness import Owners
from cloister.sandbox.local import cgroup
from cloister.sandbox.local.cgroup import Cgroup

logger = logging.getLogger(__name__)

IDS = 65_536
"""User and group ids per sandbox."""

SLOTS = range(0x7000, 0xFFFE)
"""First id / `IDS`: above the ids of people, services and other container tools, below the kernel's `nobody`."""

_END_SECONDS = 120.0
_NAME = re.compile(r"(?P<sandbox>[^.]+)\.(?P<owner>[^.]+)\.(?P<slot>[0-9a-f]{4})")


class Name(msgspec.Struct, frozen=True):
    """The name of a sandbox's directory and cgroups. It carries the owner, so the owner is known from the start."""

    sandbox: SandboxId
    owner: OwnerId
    slot: int

    def __str__(self) -> str:
        return f"{self.sandbox}.{self.owner}.{self.slot:x}"

    @property
    def first_id(self) -> int:
        return self.slot * IDS


def parse_name(text: str) -> Name | None:
    """The `Name` that `text` spells, or None."""
    found = _NAME.fullmatch(text)
    if found is None or not is_id(found["sandbox"]) or not is_id(found["owner"]):
        return None
    return Name(SandboxId(found["sandbox"]), OwnerId(found["owner"]), int(found["slot"], 16))


Dispose = Callable[[str], Awaitable[None]]
"""Removes the other resources of a sandbox, by name, after its processes ended. Raises `HostError`."""


class Claims:
    """The names in use below one data directory."""

    def __init__(self, data_dir: Path, owner: OwnerId, dispose: Dispose | None = None) -> None:
        self._owner = owner
        self._owners = Owners(data_dir / "owners")
        self._sandboxes = data_dir / "sandboxes"
        self._dispose = dispose
        self._stuck: set[Name] = set()
        self.layout = cgroup.read_layout()

    def home(self, name: Name) -> Path:
        return self._sandboxes / str(name)

    @asynccontextmanager
    async def named(self, quota: Quota) -> AsyncGenerator[tuple[Name, Cgroup]]:
        """Claim a unique name; leaving the block kills its processes and removes its cgroups and files."""
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
                    # The next sweep tries again; the error of the caller matters more.
                    self._stuck.add(name)
                    logger.error("%s was not removed: %s", name, error)

    async def sweep(self) -> int:
        """Remove the sandboxes of dead owners; return how many."""
        removed = 0
        for path in sorted(self._sandboxes.iterdir()) if self._sandboxes.is_dir() else ():
            name = parse_name(path.name)
            if name is None or (self._owners.lives(name.owner) and name not in self._stuck):
                continue
            try:
                await self._remove(name)
                self._stuck.discard(name)
                removed += 1
            except HostError as error:
                # One sandbox that cannot be removed must not block the start; the next sweep tries again.
                logger.warning("%s was not removed: %s", name, error)
        self._owners.remove_dead()
        return removed

    def _claim(self, quota: Quota) -> tuple[Name, Cgroup]:
        """A name with unused ids, its directory and its cgroups."""
        if not self._owners.lives(self._owner):
            raise Bug(f"no process holds {self._owner}, the owner of the sandboxes")
        self._sandboxes.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            slot = secrets.choice(SLOTS)
            if slot in self._slots():
                continue
            name = Name(new_sandbox_id(), self._owner, slot)
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
        return [name.slot for text in cgroup.names(self.layout) if (name := parse_name(text))]

    async def _remove(self, name: Name) -> None:
        await Cgroup(self.layout, str(name)).remove()
        if self._dispose is not None:
            await self._dispose(str(name))
        shutil.rmtree(self.home(name), ignore_errors=True)
