"""One step of a model: the request from the log, the stream to whoever watches, the reply to the log."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

import anyio
import msgspec

from cloister.agent.budgeted import BudgetedModels
from cloister.agent.which_model import stands_in
from cloister.core import limits
from cloister.core.errors import Bug, UserError
from cloister.core.events import AnyBody, ModelFailed, ModelReplied, ModelSwitched, ModelText
from cloister.core.journal import Journal
from cloister.core.text import one_line
from cloister.model.api import Failure, Reply, Request, TextDelta
from cloister.model.retry import next_wait

_REPLY_SECONDS = 900.0

Follow = Callable[[ModelReplied], Awaitable[tuple[AnyBody, ...]]]
"""What is recorded in one go with a reply, because it follows from that alone."""


async def _nothing(reply: ModelReplied) -> tuple[AnyBody, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one attempt."""

    attempt: int
    number: int
    models: tuple[str, ...]
    """Whom to ask: the one in charge, then those that stand in for it."""
    asking: Request
    seen: int
    """The last event that the request was made from."""
    follow: Follow = _nothing


async def ask_model(models: BudgetedModels, journal: Journal, step: Step) -> ModelReplied | Failure:
    """Ask until there is a reply or trying again makes no sense. Each failure and each change of model is an event.

    When a model fails and another stands in for it, that one is asked the same at once; only when all of them
    have failed is there a wait. One that failed for good is not asked again.
    """
    attempt = step.attempt
    names = step.models
    for tries in count(1):
        alive: list[str] = []
        patience: Failure | None = None
        for at, name in enumerate(names):
            result = await _ask_named(models, name, journal, step)
            if isinstance(result, ModelReplied) or result.code == "budget":
                return result
            if result.retryable:
                alive.append(name)
                patience = result
            if at + 1 < len(names) and stands_in(result):
                await journal.append(
                    ModelFailed(attempt, result.code, result.message, 0.0, name),
                    ModelSwitched(attempt, name, names[at + 1], one_line(result.message)),
                )
                continue
            wait = None if patience is None or not stands_in(result) else next_wait(patience, tries)
            await journal.append(ModelFailed(attempt, result.code, result.message, wait, name))
            if wait is None:
                return result
            if alive[0] != name:
                await journal.append(ModelSwitched(attempt, name, alive[0], one_line(result.message)))
            await anyio.sleep(wait)
        names = tuple(alive)
    raise Bug("counting ended")


async def _ask_named(
    models: BudgetedModels, name: str, journal: Journal, step: Step
) -> ModelReplied | Failure:
    try:
        model = models.named(name)
    except UserError as error:
        return Failure("bad_request", error.message)
    started = time.monotonic()
    with anyio.CancelScope() as patience:

        def begun() -> None:
            patience.deadline = anyio.current_time() + _REPLY_SECONDS

        async with model.stream(step.asking, begun) as items:
            async for item in items:
                match item:
                    case TextDelta():
                        journal.show(ModelText(step.attempt, item.text))
                    case Reply():
                        # Inside the block: what the call may take is held until what it took is in the log.
                        return await _record(journal, step, model.name, item, time.monotonic() - started)
                    case Failure():
                        return item
    return Failure("network", f"The model did not finish its reply in {_REPLY_SECONDS:g} s.", retryable=True)


async def _record(
    journal: Journal, step: Step, model: str, reply: Reply, seconds: float
) -> ModelReplied | Failure:
    fit = _bounded(reply)
    if isinstance(fit, Failure):
        return fit
    body = ModelReplied(
        step.attempt,
        step.number,
        model,
        reply.text,
        reply.calls,
        reply.usage,
        seconds,
        reply.opaque,
        reply.cost,
        step.seen,
    )
    await journal.append(body, *await step.follow(body))
    return body


def _bounded(reply: Reply) -> Reply | Failure:
    size = len(msgspec.json.encode(reply))
    if size > limits.REPLY_BYTES:
        return Failure(
            "bad_reply", f"The model's reply has {size:,} bytes; the limit is {limits.REPLY_BYTES:,}."
        )
    return reply
