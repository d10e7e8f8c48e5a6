"""Where a sandbox's writable root comes from. Kinds of store implement `Store`; nothing else does."""

from pathlib import Path
from typing import Protocol

import msgspec


class Layers(msgspec.Struct, frozen=True):
    """How to mount one root: an overlay of `upper` on `lower`. On disk, ids are the guest's own (0-based)."""

    lower: Path
    upper: Path
    work: Path


class Store(Protocol):
    """Makes, copies and removes writable roots, each in a directory that the caller names."""

    @property
    def kind(self) -> str:
        """What a person is shown, e.g. `overlay+copy`."""
        ...

    async def create(self, template: Path, at: Path) -> Layers:
        """A fresh copy-on-write root over the root filesystem `template`, with its files under `at`."""
        ...

    async def fork(self, parent: Layers, at: Path) -> Layers:
        """A copy of `parent` as it is now. The caller has made sure that nobody writes to it meanwhile."""
        ...

    async def remove(self, at: Path) -> None:
        """Remove a root that is not mounted; one that is half made or already gone is fine."""
        ...
