"""Git and its hosts: fetch a repository, describe a change, deliver it. A new forge is registered in `Forges`."""

from collections.abc import Mapping

from cloister.forge.api import Forge
from cloister.forge.plain_git import PlainGit


class Forges:
    """The forge for each repository address. Every address that git understands is plain git's."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is the one of git for remote addresses; None is this process's own."""
        self._plain = PlainGit(environment)

    def at(self, address: str) -> Forge:
        """The forge that serves the repository at `address`."""
        return self._plain
