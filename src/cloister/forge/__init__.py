"""Git and its hosts: fetch a repository, describe a change, deliver it. A new forge is registered in `Forges`."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from cloister.core.addresses import canonical_repository
from cloister.core.requests import FurtherRepository
from cloister.core.system import in_thread
from cloister.forge import host, modules_fetch
from cloister.forge.api import Base, Forge
from cloister.forge.cache import ObjectCache
from cloister.forge.modules import modules_of
from cloister.forge.plain_git import PlainGit, find_checkout, is_url, origin_of

if TYPE_CHECKING:
    from cloister.forge.pulls.hosted import ForgePlace, Hosted

Reachable = Callable[[str, int], bool]
"""True if the rules let a host be reached at a port."""


def nowhere(host: str, port: int) -> bool:
    """The rules let no host be reached."""
    del host, port
    return False


class Forges:
    """The forge for each repository address: one that the settings name, else plain git."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        places: Sequence["ForgePlace"] = (),
        cache: ObjectCache | None = None,
    ) -> None:
        """`environment` is the one of git for remote addresses; None is this process's own."""
        self._environment, self._places, self._cache = environment, places, cache
        self._plain = PlainGit(environment, cache=cache)
        self._content_cache = (cache or ObjectCache(Path("/nonexistent"), 0)).content

    def at(self, address: str) -> Forge:
        """The forge that serves the repository at `address`."""
        return self.hosted(address) or self._plain

    async def bring(self, repo: str, ref: str | None, into: Path, reachable: Reachable = nowhere) -> Base:
        """As `Forge.fetch`, with the submodules; the note names those that are left out.

        They are fetched from the repository's own host, from forges of the settings, and from what is `reachable`.
        """
        base = await self.at(repo).fetch(repo, ref, into)
        left = await self.modules(repo, base.commit, into, reachable) + await self._content(
            repo, base.commit, into
        )
        return replace(base, note=" ".join((*filter(None, (base.note,)), *left)) or None) if left else base

    async def bring_all(
        self, wanted: Sequence[FurtherRepository], into: Path, reachable: Reachable = nowhere
    ) -> Base:
        """As `bring` for one repository; several are brought together, each into a folder. They have no submodules."""
        if len(wanted) == 1:
            return await self.bring(wanted[0].repo, wanted[0].ref, into, reachable)
        from cloister.forge.several import bring_all  # noqa: PLC0415 - most runs have one repository

        # A repository of ours has no second dot in its name.
        room = into.with_name(f"{into.stem}.part.git")

        async def bring(one: FurtherRepository, ref: str) -> Base:
            try:
                await in_thread(lambda: shutil.rmtree(room, ignore_errors=True))
                base = await self.at(one.repo).fetch(one.repo, one.ref, room)
                inside = host.Checkout(room, bare=True, who=None)
                host.must(await host.copy_in(inside, base.commit, into, ref), "keep a repository")
                without = ("Its submodules are not fetched.",) if await modules_of(room, base.commit) else ()
            finally:
                with anyio.CancelScope(shield=True):
                    await in_thread(lambda: shutil.rmtree(room, ignore_errors=True))
            left = (*without, *await self._content(one.repo, base.commit, into))
            return replace(base, note=" ".join((*filter(None, (base.note,)), *left)) or None)

        return await bring_all(into, wanted, bring)

    async def modules(
        self, repo: str, commit: str, into: Path, reachable: Reachable = nowhere
    ) -> tuple[str, ...]:
        """Fetch the submodules of a commit in `into`. Return a sentence for each one that is left out."""
        if not await modules_of(into, commit):
            return ()
        checkout = None if is_url(repo) else await in_thread(find_checkout, repo)
        address = repo if checkout is None else await origin_of(repo) or ""
        own = modules_fetch.host_of(address) if address else ""

        def may(url: str) -> bool:
            near = modules_fetch.host_of(url) == own or self.hosted(url) is not None
            return near or reachable(*modules_fetch.place_of(url))

        origin = modules_fetch.Origin(address, checkout)
        return await modules_fetch.fetch_modules(self.at, may, origin, into, commit)

    async def _content(self, repo: str, commit: str, into: Path) -> tuple[str, ...]:
        """Fetch the content of LFS that the settings of the commit ask for. Return a sentence if some is left out."""
        from cloister.forge import lfs  # noqa: PLC0415 - most repositories need none of it

        asked = await lfs.wanted(into, commit)
        if not asked:
            return ()
        checkout = None if is_url(repo) else await in_thread(find_checkout, repo)
        address = repo if checkout is None else await origin_of(repo) or ""
        hosted, server = self.hosted(address) if address else None, None

        async def credential() -> str | None:
            return await host.credential(into, address, self._environment)

        if hosted is not None:
            server = await hosted.content(address)
        elif address.startswith(("https://", "http://")):
            server = lfs.Server(address, credential)
        why = await lfs.fetch_content(into, tuple(asked.values()), checkout, server, self._content_cache)
        return (why,) if why else ()

    def hosted(self, address: str) -> "Hosted | None":
        """The forge with pull requests that serves the repository at `address`; None for plain git."""
        if not self._places or not is_url(address):
            return None
        return self.of_host(canonical_repository(address).partition("/")[0])

    def of_host(self, host: str) -> "Hosted | None":
        """The forge of the settings with this host."""
        from cloister.forge.pulls.hosted import Hosted  # noqa: PLC0415 - loads an HTTP client

        place = next((one for one in self._places if one.host == host), None)
        return Hosted(place, self._environment, self._cache) if place else None
