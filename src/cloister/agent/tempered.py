"""Models at another temperature, for an attempt that shall differ from the others."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from cloister.core.records import Usage
from cloister.model.api import Failure, Model, Models, Reply, Request, Role, TextDelta


@dataclass(frozen=True, slots=True)
class _Tempered:
    """A model at another temperature."""

    model: Model
    temperature: float

    @property
    def name(self) -> str:
        return self.model.name

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        asked = msgspec.structs.replace(request, temperature=self.temperature)
        async with self.model.stream(asked) as items:
            yield items


@dataclass(frozen=True, slots=True)
class Tempered:
    """`Models` whose steps are taken at a temperature of their own; what is asked for other roles is as it was."""

    models: Models
    temperature: float

    def role(self, role: Role) -> Model:
        found = self.models.role(role)
        return _Tempered(found, self.temperature) if role == "code" else found

    def chain(self, role: Role) -> tuple[str, ...]:
        return self.models.chain(role)

    def named(self, name: str) -> Model:
        return _Tempered(self.models.named(name), self.temperature)

    def window(self, name: str) -> int | None:
        return self.models.window(name)

    def cost(self, name: str, usage: Usage) -> float | None:
        return self.models.cost(name, usage)

    def instead(self, name: str) -> "Tempered":
        return Tempered(self.models.instead(name), self.temperature)
