"""An event that can happen again and again."""

import anyio


class Signpost:
    """Whoever waits is woken by the next time it happens."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def happened(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
