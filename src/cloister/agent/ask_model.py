"""One step of a model: the request from the log, the stream to whoever watches, the reply to the log."""

import time
from dataclasses import dataclass
from itertools import count

import anyio
import msgspec

from cloister.agent.context import request
from cloister.agent.tools import TOOLS
from cloister.agent.which_model import ring, stands_in
from cloister.core import limits
from cloister.core.errors import Bug, UserError
from cloister.core.events import ModelFailed, ModelReplied, ModelSwitched, ModelText
from cloister.core.history import effective
from cloister.core.journal import Journal
from cloister.core.text import one_line
from cloister.model.api import Failure, Model, Models, Reply, Request, TextDelta
from cloister.model.retry import next_wait

_SPECS = tuple(tool.spec for tool in TOOLS.values())
_REPLY_SECONDS = 900.0


async def ask_model(models: Models, journal: Journal, attempt: int, step: int) -> ModelReplied | Failure:
    """Ask until there is a reply or trying again makes no sense. Each failure and each change of model is an event.

    When a model fails and another stands in for it, that one is asked the same at once; only when all of them
    have failed is there a wait. One that failed for good is not asked again.
    """
    asking = request(effective(journal.events), attempt, _SPECS)
    names = ring(journal.events, attempt, models.chain("code"))
    for tries in count(1):
        alive: list[str] = []
        patience: Failure | None = None
        for at, name in enumerate(names):
            result = await _ask_named(models, name, journal, attempt, asking)
            if isinstance(result, _Answered):
                body = _replied(attempt, step, result)
                await journal.append(body)
                return body
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


@dataclass(frozen=True, slots=True)
class _Answered:
    model: str
    reply: Reply
    seconds: float


def _replied(attempt: int, step: int, answered: _Answered) -> ModelReplied:
    reply = answered.reply
    return ModelReplied(
        attempt,
        step,
        answered.model,
        reply.text,
        reply.calls,
        reply.usage,
        answered.seconds,
        reply.opaque,
        reply.cost,
    )


async def _ask_named(
    models: Models, name: str, journal: Journal, attempt: int, asking: Request
) -> _Answered | Failure:
    started = time.monotonic()
    try:
        model = models.named(name)
    except UserError as error:
        return Failure("bad_request", error.message)
    result = await _ask_once(model, journal, attempt, asking)
    return _Answered(model.name, result, time.monotonic() - started) if isinstance(result, Reply) else result


async def _ask_once(model: Model, journal: Journal, attempt: int, asking: Request) -> Reply | Failure:
    with anyio.move_on_after(_REPLY_SECONDS):
        async with model.stream(asking) as items:
            async for item in items:
                match item:
                    case TextDelta():
                        journal.show(ModelText(attempt, item.text))
                    case Reply():
                        return _bounded(item)
                    case Failure():
                        return item
    return Failure("network", f"The model did not finish its reply in {_REPLY_SECONDS:g} s.", retryable=True)


def _bounded(reply: Reply) -> Reply | Failure:
    size = len(msgspec.json.encode(reply))
    if size > limits.REPLY_BYTES:
        return Failure(
            "bad_reply", f"The model's reply has {size:,} bytes; the limit is {limits.REPLY_BYTES:,}."
        )
    return reply
