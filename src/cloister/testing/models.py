"""Models for tests: one with prepared replies, and one for all roles."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import msgspec

from cloister.core.requests import Usage
from cloister.model.api import Failure, Model, Reply, Request, Role, TextDelta

Said = tuple[TextDelta | Reply | Failure, ...]


class SayingModel:
    """A `Model` that yields prepared items in order and records its requests."""

    window: int | None = 40_000

    def __init__(self, *said: Said, until: anyio.Event | None = None) -> None:
        self._said = list(said)
        self._until = until
        """Nothing is said before."""
        self.asked: list[Request] = []
        self.was_asked = anyio.Event()

    @property
    def name(self) -> str:
        return "saying:model"

    def tokens(self, request: Request) -> int:
        return len(msgspec.json.encode(request)) // 4

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        self.asked.append(request)
        self.was_asked.set()
        said = self._said.pop(0)

        async def items() -> AsyncGenerator[TextDelta | Reply | Failure]:
            if self._until is not None:
                await self._until.wait()
            for item in said:
                yield item

        yield items()


# One model for all roles


@dataclass(frozen=True, slots=True)
class SoleModel:
    """`Models` with the same model for every role and name."""

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
