"""What the loop sees of the log it writes: the events so far and a way to add to them."""

from collections.abc import Sequence
from typing import Protocol

from cloister.core.events import AnyBody, Delta, Event


class Journal(Protocol):
    """One run's log in the hands of its owner."""

    @property
    def events(self) -> Sequence[Event]:
        """Everything in the log, own entries and those from outside, up to this moment."""
        ...

    async def append(self, *bodies: AnyBody) -> None:
        """Durable when it returns. Raises `Fenced` when the run has another owner."""
        ...

    async def append_at(self, last: int, *bodies: AnyBody) -> bool:
        """As `append`, but only if the log still ends with event `last`; else False, and `events` is up to date."""
        ...

    def show(self, delta: Delta) -> None:
        """Stream a fragment; never waits."""
        ...

    async def changed(self, after: int) -> None:
        """Wait until there is an event with `seq > after`."""
        ...
