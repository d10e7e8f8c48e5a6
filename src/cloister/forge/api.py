"""Where repositories come from and where changes go. Kinds of forge implement `Forge`; nothing else does."""

from pathlib import Path
from typing import Protocol

import msgspec


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
