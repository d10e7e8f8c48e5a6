"""The models of a run, as far as its rules let it have them."""

from cloister.core.records import Usage
from cloister.model.api import Model, Models, Role
from cloister.policy.api import Policy
from cloister.policy.decide import Decider
from cloister.runs.rules import check_decided


class AllowedModels:
    """`Models` of which none is asked that the rules deny, whoever names it: settings, an attempt or a person."""

    def __init__(self, models: Models, policy: Policy) -> None:
        self._models = models
        self._policy = policy
        self._decider = Decider(policy)

    def role(self, role: Role) -> Model:
        return self.named(self._models.chain(role)[0])

    def chain(self, role: Role) -> tuple[str, ...]:
        return self._models.chain(role)

    def named(self, name: str) -> Model:
        """Raises `UserError` (`denied`), too."""
        check_decided(self._decider, models=(name,))
        found = self._models.named(name)
        # What a server calls the model that it was asked to choose is known once it was opened.
        check_decided(self._decider, models=(found.name,))
        return found

    def window(self, name: str) -> int | None:
        return self._models.window(name)

    def cost(self, name: str, usage: Usage) -> float | None:
        return self._models.cost(name, usage)

    def instead(self, name: str) -> "AllowedModels":
        check_decided(self._decider, models=(name,))
        return AllowedModels(self._models.instead(name), self._policy)
