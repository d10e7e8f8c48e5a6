"""Where repositories come from and where changes go. Kinds of forge implement `Forge`; nothing else does."""

from pathlib import Path
from typing import Protocol

import msgspec

from cloister.core.ids import RunId


class Base(msgspec.Struct, frozen=True):
    """What a run starts from."""

    commit: str
    branch: str | None
    note: str | None = None


class Delivered(msgspec.Struct, frozen=True):
    """Where a change went."""

    where: str
    """What a person calls that place."""
    branch: str
    """The branch's name there; it differs from the one asked for when that one was taken."""
    receipt: bool = False
    """Whether the note of the commit came along."""


class Removed(msgspec.Struct, frozen=True):
    """Who removed a run's files. The log is append-only and stays as it is."""

    who: str
    at: float
    """Unix seconds."""


class RunRepositories(Protocol):
    """One bare repository per run, with its base, its save points and its change. Only Cloister writes to them."""

    async def open(self, run: RunId) -> Path:
        """Return the run's repository as a directory on this machine; the first fetch into it creates it.

        Raises `UserError` (`run_removed`).
        """
        ...

    async def exists(self, run: RunId) -> bool: ...

    async def remove(self, run: RunId, who: str) -> Removed:
        """Delete the repository for good. Doing it twice is fine, and so is being stopped in the middle."""
        ...


class Forge(Protocol):
    """One kind of place that holds repositories."""

    async def fetch(self, repo: str, ref: str | None, into: Path) -> Base:
        """Bring `ref` (None: HEAD) of `repo` into the bare repository `into`, made if missing.

        Never runs anything that the repository's content names. Raises `UserError` with code
        `no_repository`, `empty_repository` or `unknown_ref`, and `OutsideError` for the network.
        """
        ...

    async def deliver(self, bare: Path, commit: str, branch: str, repo: str) -> Delivered | None:
        """Put `commit` into `repo` as a new branch, touching nothing else.

        A branch that exists is never moved: the next free name is taken, and a branch that already
        holds `commit` is the answer. None when this kind of place is not written to.
        """
        ...
