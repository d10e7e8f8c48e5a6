"""One step of a model: the request from the log, the stream to whoever watches, the reply to the log."""

import time

import anyio
import msgspec

from cloister.agent.context import request
from cloister.agent.tools import TOOLS
from cloister.core import limits
from cloister.core.events import ModelFailed, ModelReplied, ModelText
from cloister.core.journal import Journal
from cloister.model.api import Failure, Model, Models, Reply, Request, TextDelta
from cloister.model.retry import next_wait

_SPECS = tuple(tool.spec for tool in TOOLS.values())
_REPLY_SECONDS = 900.0


async def ask_model(models: Models, journal: Journal, attempt: int, step: int) -> ModelReplied | Failure:
    """Ask until there is a reply or trying again makes no sense. Each failure is an event."""
    model = models.role("code")
    asking = request(journal.events, attempt, _SPECS)
    tries = 0
    while True:
        started = time.monotonic()
        result = await _ask_once(model, journal, attempt, asking)
        if isinstance(result, Reply):
            body = ModelReplied(
                attempt,
                step,
                model.name,
                result.text,
                result.calls,
                result.usage,
                time.monotonic() - started,
                result.opaque,
            )
            await journal.append(body)
            return body
        tries += 1
        wait = next_wait(result, tries)
        await journal.append(ModelFailed(attempt, result.code, result.message, wait))
        if wait is None:
            return result
        await anyio.sleep(wait)


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
