"""The seam to the places that hold repositories: `Forge` fetches a base and delivers a proposal."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from cloister.core.events.run import BasePart
from cloister.core.ids import RunId


class Base(msgspec.Struct, frozen=True):
    """The commit a run starts from."""

    commit: str
    branch: str | None
    note: str | None = None
    parts: tuple[BasePart, ...] = ()
    """Of several repositories, which `commit` holds together: each one."""


class PagePictures(msgspec.Struct, frozen=True):
    """A page before and after a change, as PNG; empty where there is no picture."""

    name: str
    before: bytes
    after: bytes


class Proposal(msgspec.Struct, frozen=True):
    """A change that is ready to leave the run's own repository."""

    run: RunId
    repository: str
    """The address to deliver to."""
    base: str
    """The commit the run started from."""
    commit: str
    branch: str
    """The wanted name; a forge takes another one if this name is in use."""
    bare: Path
    """The run's own repository, which holds `commit`."""
    message: str = ""
    """The message of `commit`; `change.describe` fills it in."""
    receipt: str | None = None
    """The note of `commit`: the run's receipt as Markdown."""
    previous: str | None = None
    """The commit of this run that an earlier round delivered. A branch that still ends there is fast-forwarded."""
    follows: str = ""
    """The branch there of an earlier round, whose pull request must still be open; empty: any may be opened."""
    rebased: bool = False
    """True if `commit` takes the place of `previous` on a moved base, instead of following it."""
    onto: str | None = None
    """The branch that the run started from, which a pull request goes to; None: the forge's default branch."""
    page: str = ""
    """The text of a pull request as Markdown; empty: the body of the message."""
    draft: bool = False
    """True if a pull request is not yet ready for review."""
    who: str = ""
    """Who asked for the run; with `@` in front, an account of the forge."""
    pictures: tuple[PagePictures, ...] = ()
    """For the text of a pull request, where the forge keeps pictures."""

    @property
    def title(self) -> str:
        """One line, for the title of a pull request."""
        return self.message.partition("\n")[0]

    @property
    def body(self) -> str:
        """The rest of the message, for the text of a pull request."""
        return self.message.partition("\n")[2].strip()


class Delivered(msgspec.Struct, frozen=True):
    """Where a proposal went."""

    where: str
    """The repository: its path, or its address."""
    branch: str
    """The branch's name there; it differs from the wanted one when that was in use."""
    receipt: bool = False
    """True if the note of the commit was pushed as well."""
    commit: str = ""
    """The commit that was pushed."""
    url: str | None = None
    """The page of the pull request; None for plain git."""
    number: int | None = None
    """The number of the pull request; None for plain git."""


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

    def working(self, run: RunId, *, alone: bool = False) -> AbstractAsyncContextManager[None]:
        """The block needs the repository: `collect` leaves it alone meanwhile, and the block waits for one.

        An `alone` block waits until no other is left; it is the place for `remove`. Raises `TimeoutError`.
        """
        ...

    async def collect(
        self, run: RunId, ended_at: float, kept: Callable[[], Awaitable[frozenset[str] | None]]
    ) -> bool:
        """Remove every object that neither a ref nor one of the `kept` commits needs; None keeps everything.

        Returns False for a repository at work, a missing one, and one that was collected after `ended_at`.
        """
        ...

    def collectable(self, run: RunId, ended_at: float) -> bool:
        """False for a missing repository and one that was collected after `ended_at`."""
        ...

    async def remove(self, run: RunId, who: str) -> Removed:
        """Delete the repository for good. Doing it twice is fine, and so is being stopped in the middle."""
        ...


class Forge(Protocol):
    """One kind of place that holds repositories."""

    async def fetch(self, repo: str, ref: str | None, into: Path) -> Base:
        """Bring `ref` (None: HEAD) of `repo` into the bare repository `into`, which is created if missing.

        Never runs anything that the repository's content names. Raises `UserError` with code
        `no_repository`, `empty_repository` or `unknown_ref`, and `OutsideError` for the network.
        """
        ...

    async def tip(self, repo: str, ref: str | None, bare: Path) -> str:
        """What `ref` (None: HEAD) of `repo` names now. `bare` is a repository of ours. Raises as `fetch`."""
        ...

    async def deliver(self, proposal: Proposal) -> Delivered | None:
        """Put the proposal's commit into its repository as a branch; change nothing else.

        Returns the branch that already holds the commit, if there is one. Moves a branch on that ends at
        `proposal.previous` and that no work tree has checked out. Never moves any other branch: takes the next
        free name. Returns None if this forge does not write to the address.
        """
        ...
