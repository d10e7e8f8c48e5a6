"""A model that says what it was given to say, in order, and remembers what it was asked."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio

from cloister.model.api import Failure, Reply, Request, TextDelta

Said = tuple[TextDelta | Reply | Failure, ...]


class SayingModel:
    """A `Model` for tests of what stands between a program and a model."""

    def __init__(self, *said: Said, until: anyio.Event | None = None) -> None:
        self._said = list(said)
        self._until = until
        """Nothing is said before."""
        self.asked: list[Request] = []

    @property
    def name(self) -> str:
        return "saying:model"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        self.asked.append(request)
        said = self._said.pop(0)

        async def items() -> AsyncGenerator[TextDelta | Reply | Failure]:
            if self._until is not None:
                await self._until.wait()
            for item in said:
                yield item

        yield items()
