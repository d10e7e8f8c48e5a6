"""One model for everything, for tests that bring their own."""

from dataclasses import dataclass

from cloister.model.api import Model, Role


@dataclass(frozen=True, slots=True)
class SoleModel:
    """`Models` in which every role and every name is the same model."""

    model: Model

    def role(self, role: Role) -> Model:
        return self.model

    def chain(self, role: Role) -> tuple[str, ...]:
        return (self.model.name,)

    def named(self, name: str) -> Model:
        return self.model

    def window(self, name: str) -> int | None:
        return None

    def instead(self, name: str) -> "SoleModel":
        return self
