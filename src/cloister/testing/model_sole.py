"""One model for everything, for tests that bring their own."""

from dataclasses import dataclass

from cloister.core.records import Usage
from cloister.model.api import Model, Role


@dataclass(frozen=True, slots=True)
class SoleModel:
    """`Models` in which every role and every name is the same model."""

    model: Model
    window_tokens: int | None = None

    def role(self, role: Role) -> Model:
        return self.model

    def chain(self, role: Role) -> tuple[str, ...]:
        return (self.model.name,)

    def named(self, name: str) -> Model:
        return self.model

    def window(self, name: str) -> int | None:
        return self.window_tokens

    def cost(self, name: str, usage: Usage) -> float | None:
        return None

    def instead(self, name: str) -> "SoleModel":
        return self
