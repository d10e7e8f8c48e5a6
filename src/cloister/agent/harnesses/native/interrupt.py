"""A person stops the step at work, whose model request or tool call is cancelled, or pauses the run before the next."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from cloister.agent.budget.metering import Clock
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    Event,
    InterruptRequested,
    ModelReplied,
    PauseRequested,
    ResumeRequested,
    RunContinued,
    ToolReturned,
)
from cloister.core.log import Journal
from cloister.core.requests import ToolCall
from cloister.core.text import one_line

T = TypeVar("T")


async def interruptible(
    journal: Journal, work: Callable[[], Awaitable[T]], since: int | None = None
) -> T | None:
    """The result of `work`; None if a person stopped it after event `since`, or else after now."""
    results: list[T] = []
    failures: list[Exception] = []
    seen = len(journal.events) if since is None else since
    if _request(journal.events[seen:]):
        return None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            at = seen
            while _request(journal.events[at:]) is None:
                at = len(journal.events)
                await journal.changed(at)
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            results.append(await work())
        except Exception as error:
            failures.append(error)  # raised below as it is: a task group would wrap it
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return results[0] if results else None


async def while_paused(journal: Journal, clock: Clock) -> None:
    """Wait until no pause of a person is open. The wait costs no time."""

    def paused() -> bool:
        return isinstance(journal.index.last(PauseRequested, ResumeRequested, RunContinued), PauseRequested)

    if paused():
        with clock.stopped():
            while paused():
                await journal.changed(len(journal.events))


def _request(events: Sequence[Event]) -> InterruptRequested | None:
    return next((e.body for e in reversed(events) if isinstance(e.body, InterruptRequested)), None)


async def run_call(
    journal: Journal, attempt: int, call: ToolCall, run: Callable[[ToolCall], Awaitable[ToolReturned]]
) -> tuple[ToolReturned, bool]:
    """The result of a call of the newest reply, and whether a person stopped it since that reply.

    A question that it waited for is then denied.
    """
    started = time.monotonic()
    replies = (
        e.seq for e in reversed(journal.events) if type(e.body) is ModelReplied and e.body.attempt == attempt
    )
    done = await interruptible(journal, lambda: run(call), next(replies, None))
    if done is not None:
        return done, False
    who = await withdraw(journal, attempt)
    took = time.monotonic() - started
    text = f"Stopped by {who} after {took:.1f} s, before it was done. What it changed until then stays."
    return ToolReturned(attempt, call.id, call.name, False, text, took), True


async def withdraw(journal: Journal, attempt: int) -> str:
    """Deny the open questions of an attempt whose step was stopped; return who stopped it."""
    request = _request(journal.events)
    who = one_line(request.who, 40) if request else "a person"
    asks = {body.ask for body in journal.index.of(AskRaised, attempt=attempt)}
    asks -= {body.ask for body in journal.index.of(AskAnswered)}
    if asks:
        await journal.append(*(AskAnswered(ask, "deny", who) for ask in sorted(asks)))
    return who


def not_run(attempt: int, call: ToolCall) -> ToolReturned:
    """The result of a call that comes after one that was stopped."""
    return ToolReturned(attempt, call.id, call.name, False, "Not run: the step was stopped before it.", 0.0)
