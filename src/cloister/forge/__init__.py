"""Git and its hosts: fetch a repository, describe a change, deliver it. A new forge is registered in `Forges`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cloister.core.addresses import canonical_repository
from cloister.forge.api import Forge
from cloister.forge.plain_git import PlainGit, is_url

if TYPE_CHECKING:
    from cloister.forge.pulls.hosted import ForgePlace, Hosted


class Forges:
    """The forge for each repository address: one that the settings name, else plain git."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, places: Sequence["ForgePlace"] = ()
    ) -> None:
        """`environment` is the one of git for remote addresses; None is this process's own."""
        self._environment, self._places = environment, places
        self._plain = PlainGit(environment)

    def at(self, address: str) -> Forge:
        """The forge that serves the repository at `address`."""
        return self.hosted(address) or self._plain

    def hosted(self, address: str) -> "Hosted | None":
        """The forge with pull requests that serves the repository at `address`; None for plain git."""
        if not self._places or not is_url(address):
            return None
        from cloister.forge.pulls.hosted import Hosted  # noqa: PLC0415 - loads an HTTP client

        named = canonical_repository(address).partition("/")[0]
        place = next((one for one in self._places if one.host == named), None)
        return Hosted(place, self._environment) if place else None
