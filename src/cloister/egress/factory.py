"""Create proxies from this machine's configuration and the rules of one sandbox."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloister.core.requests import DoorBounds
from cloister.egress.credentials import Credential, Vault
from cloister.egress.git_push import Repository
from cloister.egress.http.connection import Handler, Offer
from cloister.egress.inject import Keeper
from cloister.egress.proxy import Door
from cloister.egress.rules import Outside, Record
from cloister.egress.sandbox_setup import FindSets, Judge, Outfit
from cloister.policy.api import Layer, Policy, Rule


@dataclass(frozen=True, slots=True)
class Doorway:
    """Creates the proxies of this machine."""

    bounds: DoorBounds = field(default_factory=DoorBounds)
    credentials: tuple[Credential, ...] = ()
    vault: Vault = field(default_factory=lambda: Vault({}))
    find_sets: FindSets | None = None
    outside: Outside = field(default_factory=Outside)

    def outfit(
        self,
        policy: Policy,
        record: Record,
        repository: Repository | None = None,
        inside: Mapping[str, Handler] | None = None,
        untrusted: Callable[[], bool] | None = None,
    ) -> Outfit:
        """Create a proxy and its sandbox setup. Git inside may fetch from `repository` and push one branch to it.

        That takes a credential for its host: without one, a repository is a host like any other. `untrusted` says
        whether text from outside was read by now, after which what is of high impact does not pass.
        """
        if repository is not None and not self._knows(repository):
            repository = None
        if repository is not None:
            # Next to the built-in rules: no layer has to delegate it, and every layer can deny it.
            policy = (*policy[:1], _own_repository(repository), *policy[1:])
        judge = Judge(policy, self.find_sets, untrusted)
        offer = Offer(Keeper(self.credentials, self.vault), repository, inside or {})
        door = Door(judge.decide, record, outside=self.outside, bounds=self.bounds, offer=offer)
        return Outfit(door, judge, credentials=bool(self.credentials))

    def _knows(self, repository: Repository) -> bool:
        where = (repository.host, repository.port)
        return any((one.host, one.port) == where for one in self.credentials)


def _own_repository(repository: Repository) -> Layer:
    source = "the run's own repository"
    opened = (*repository.patterns, f"push:{repository.ref}")
    return Layer("repository", tuple(Rule(action, "allow", source) for action in opened), may_widen=True)
