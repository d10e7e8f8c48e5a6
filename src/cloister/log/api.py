"""The backbone: the durable log, the queue of runs and the live fan-out behind one seam."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from cloister.core.events import AnyBody, Delta, Event, FromOutside
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun, Outcome, State


class Fence(msgspec.Struct, frozen=True):
    """The right to append to one run's log, until someone else claims it."""

    run: RunId
    owner: OwnerId
    epoch: int


class RunRow(msgspec.Struct, frozen=True):
    """One run in a list, stored in the same transaction as the event that changed it."""

    id: RunId
    state: State
    outcome: Outcome | None
    reason: str | None
    prompt: str
    repo: str
    model: str | None
    created_at: float
    updated_at: float
    last_seq: int
    owner: OwnerId | None
    epoch: int
    owner_lives: bool = False
    """Whether the process that claimed it is still there; a running run without one was interrupted."""


class Backbone(Protocol):
    """Few verbs, all durable before they return. Raises `UserError` (`no_such_run`) for unknown ids."""

    async def admit(self, new: NewRun, who: str) -> tuple[RunId, bool]:
        """Make a run: event 1 is durable when this returns. The same `new.key` gives the same run.

        The flag says whether it was made now.
        """
        ...

    async def claim(self, owner: OwnerId, run: RunId | None = None) -> Fence | None:
        """Take a queued run, or one whose owner is dead; `run` takes that one or nothing.

        Appends `RunClaimed` under a new epoch: the previous owner is fenced from this moment.
        """
        ...

    async def append(
        self, fence: Fence, bodies: Sequence[AnyBody], last: int | None = None
    ) -> tuple[Event, ...]:
        """Append in one transaction, all or none, durable before it returns and before anyone is shown it.

        With `last`, only if the log still ends with that event; else nothing is appended, and () is the answer.
        Raises `Fenced` when the run was claimed again, and `UserError` (`run_finished`) after `RunFinished`.
        """
        ...

    async def append_outside(self, run: RunId, body: FromOutside) -> Event:
        """Append what comes from a person; needs no fence.

        A `PromptReceived` for a finished run appends `RunContinued` before it and queues the run again; anything
        else for a finished run raises `UserError` (`run_finished`).
        """
        ...

    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]:
        """Events with `seq > after`, in order."""
        ...

    def follow(
        self, run: RunId, after: int = 0, *, deltas: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]:
        """Replays the log after `after`, then goes on live, without gap or repetition, until `RunFinished`.

        Deltas of this process's runs come between, unless they are not wanted; a reader that is too slow misses deltas,
        never events.
        """
        ...

    def publish(self, run: RunId, delta: Delta) -> None:
        """Show a fragment to whoever follows now. Never waits, never fails, is never stored."""
        ...

    async def runs(self, limit: int = 100) -> tuple[RunRow, ...]:
        """Newest first."""
        ...

    async def row(self, run: RunId) -> RunRow: ...
