"""Where this process keeps runs: on this machine alone, or with the other machines of a cluster."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from cloister.app.settings import Settings
from cloister.core.errors import HostError
from cloister.core.ids import Lease, OwnerId
from cloister.forge.api import RunRepositories
from cloister.forge.host import LocalRepositories
from cloister.log.api import Backbone, Peer
from cloister.log.sqlite.backbone import open_backbone
from cloister.runs.supervisor import Travels

Work = Callable[[], Coroutine[Any, Any, None]]
"""Something that never returns."""


class Load(msgspec.Struct, frozen=True):
    """What a machine does and can do."""

    slots: int
    running: int
    tiers: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()


class Files(RunRepositories, Travels, Protocol):
    """The files of runs, wherever in a cluster they were written."""

    async def offer(self, sha256: str, path: Path) -> None:
        """Store a file that a person sent, before the run that it was sent for."""
        ...


class Others(Protocol):
    """The machines of a cluster, this one included."""

    @property
    def name(self) -> str: ...
    async def all(self) -> tuple[Peer, ...]: ...
    async def drain(self, name: str, on: bool) -> None: ...
    def describe(self, load: Callable[[], Load], drain: Callable[[bool], None]) -> None:
        """Say from now on what this machine does, and call `drain` when a person drains it or stops that."""
        ...


@dataclass(frozen=True, slots=True)
class Storage:
    """The durable parts of one process."""

    backbone: Backbone
    repositories: RunRepositories
    owner: Callable[[], OwnerId]
    """In whose name runs are claimed now."""
    lost: Callable[[], str | None] = lambda: None
    """Why no run may be driven here now: another machine may take them."""
    alone: Callable[[str, Work], Work] = lambda _, work: work
    """Named work as one machine of the cluster does it at a time."""
    files: Files | None = None
    """What travels between the machines of a cluster."""
    others: Others | None = None


@asynccontextmanager
async def open_storage(settings: Settings, owner: OwnerId, owners: Lease) -> AsyncGenerator[Storage]:
    """Open the log and what goes with it; `owner` lives by `owners` on this machine. Raises `HostError`, `OutsideError`."""
    if settings.file.cluster is None:
        async with open_backbone(settings.log_path, owner_lives=owners.lives) as backbone:
            yield Storage(backbone, LocalRepositories(settings.data_dir), lambda: owner)
        return
    try:
        from cloister.app.cluster.member import open_member  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("nats"):
            raise
        raise HostError(
            "no_nats", "A machine of a cluster needs the extra `cluster`: pip install 'cloister[cluster]'."
        ) from None
    async with open_member(settings, settings.file.cluster) as storage:
        yield storage
