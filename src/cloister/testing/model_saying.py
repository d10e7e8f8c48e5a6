"""A model that says what it was given to say, in order, and remembers what it was asked."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from cloister.model.api import Failure, Reply, Request, TextDelta

Said = tuple[TextDelta | Reply | Failure, ...]


class SayingModel:
    """A `Model` for tests of what stands between a program and a model."""

    def __init__(self, *said: Said) -> None:
        self._said = list(said)
        self.asked: list[Request] = []

    @property
    def name(self) -> str:
        return "saying:model"

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        self.asked.append(request)
        said = self._said.pop(0)

        async def items() -> AsyncGenerator[TextDelta | Reply | Failure]:
            for item in said:
                yield item

        yield items()
