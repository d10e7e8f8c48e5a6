"""The conversation with the model: requests that fit its window, retries, stand-in models, last words."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

import anyio
import msgspec

from cloister.agent.budget.metering import BudgetedModels, call_was_lost
from cloister.agent.context.messages import WINDOW_TOKENS, Context, Window, request_of, request_tokens
from cloister.agent.context.summarise import condense
from cloister.agent.harnesses.api import Workplace
from cloister.agent.progress import InCharge, stands_in
from cloister.agent.roles import Adviser, last_words, make_plan
from cloister.core import limits
from cloister.core.budget import LEAST_OUTPUT_TOKENS
from cloister.core.errors import Bug, UserError
from cloister.core.events import Advised, AnyBody, ModelFailed, ModelReplied, ModelSwitched, ModelText
from cloister.core.log import Journal
from cloister.core.requests import Usage
from cloister.core.text import one_line
from cloister.model.api import Failure, Reply, Request, TextDelta, next_wait

_REPLY_SECONDS = 900.0

Follow = Callable[[ModelReplied], Awaitable[tuple[AnyBody, ...]]]
"""Returns events to record in the transaction of a reply."""


async def _nothing(reply: ModelReplied) -> tuple[AnyBody, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an attempt."""

    attempt: int
    number: int
    models: tuple[str, ...]
    """The model in charge, then its stand-ins."""
    asking: Request
    seen: int
    """The last event that the request contains."""
    follow: Follow = _nothing


async def ask_model(models: BudgetedModels, journal: Journal, step: Step) -> ModelReplied | Failure:
    """Ask until there is a reply or no retry can help. Record each failure and each switch of the model.

    If a model fails, ask the next stand-in at once. Wait only if all of them failed. Do not retry a permanent failure.
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
    raise Bug("unreachable")


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
                        # Inside the block: the reservation ends only after the real cost is in the log.
                        return await _record(journal, step, model.name, item, time.monotonic() - started)
                    case Failure():
                        return item
    return Failure(
        "network", f"The model did not finish its reply within {_REPLY_SECONDS:g} s.", retryable=True
    )


async def _record(
    journal: Journal, step: Step, model: str, reply: Reply, seconds: float
) -> ModelReplied | Failure:
    size = len(msgspec.json.encode(reply))
    if size > limits.REPLY_BYTES:
        return Failure(
            "bad_reply", f"The model's reply has {size:,} bytes; the limit is {limits.REPLY_BYTES:,}."
        )
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
    ruling = await step.follow(body)
    with anyio.CancelScope(shield=True):
        # Once it is paid for, the reply counts, also if a person stops the step just now.
        await journal.append(body, *ruling)
    return body


_TOO_LONG_TRIES = 3
"""Tries to shorten a request that the provider rejects as too long."""
_TOO_LONG_SHARE = 0.6


class Conversation:
    """The model in charge of an attempt, and its view of the log."""

    def __init__(self, place: Workplace, base: str) -> None:
        self._attempt = place.attempt
        self._journal = place.journal
        self._models = place.models
        self._in_charge = InCharge(place.attempt)
        self._adviser = Adviser(place.models, place.journal, place.attempt)
        self._computer = place.computer
        self._attached = place.attached
        self._specs = place.tools.specs
        self._guide = place.guide
        self._base = base
        self._context: Context | None = None
        self._tokens = 0
        """The window of `_context`."""
        self._looked = False
        """True after the check for a call that a crash left unpaid."""
        self._caps: dict[str, int] = {}
        """Windows that turned out smaller than the catalog says."""

    @property
    def model(self) -> str:
        """The model in charge."""
        return self._ring()[0]

    def other_model(self) -> str | None:
        """The next model of the chain, if there is one."""
        return next(iter(self._ring()[1:]), None)

    def _ring(self) -> tuple[str, ...]:
        return self._in_charge.ring(self._journal.events, self._models.chain("code"))

    def _able(self) -> tuple[str, int | None]:
        """The first model in charge that the settings still have, and its window if known."""
        for name in self._ring():
            try:
                return name, self._models.window(name)
            except UserError:
                continue
        return self.model, None

    def _current(self) -> tuple[Context, Window]:
        """The current conversation, for the window of the model in charge."""
        name, known = self._able()
        most = known or WINDOW_TOKENS
        tokens = min(most, self._caps.get(name, most))
        window = Window.of(tokens, self._specs)
        if self._context is None or tokens != self._tokens:
            self._context = Context(self._attempt, window, self._attached)
            self._tokens = tokens
        self._context.update(self._journal.events)
        return self._context, window

    async def ask(self, step: int, follow: Follow) -> ModelReplied | Failure:
        """Ask for one step, with a request that fits the window."""
        if self._guide is not None:
            await self._guide.give()
        if step == 1:
            await self._plan()
        tries = 0
        while True:
            tries += 1
            context = await self._fitting()
            asking = request_of(context, self._specs, self._tokens)
            if tries == 1 and not self._looked:
                self._looked = True
                await self._pay_for_lost(asking)
            asked = await ask_model(
                self._models,
                self._journal,
                Step(self._attempt, step, self._ring(), asking, self._journal.events[-1].seq, follow),
            )
            too_long = isinstance(asked, Failure) and asked.code == "context_too_long"
            if not too_long or tries >= _TOO_LONG_TRIES:
                return asked
            self._caps[self._able()[0]] = int(min(self._tokens, request_tokens(asking)) * _TOO_LONG_SHARE)

    async def _pay_for_lost(self, asking: Request) -> None:
        """Charge the call that a crash interrupted, so that repeated crashes cannot spend without limit."""
        if call_was_lost(self._journal.events, self._attempt):
            await self._models.count_lost(self._able()[0], Usage(request_tokens(asking), LEAST_OUTPUT_TOKENS))

    async def _plan(self) -> None:
        """Ask the planner, if the settings name one; once per attempt."""
        advice = self._journal.index.of(Advised, attempt=self._attempt)
        made = any(body.role == "plan" for body in advice)
        if not made and (plan := await make_plan(self._adviser, self._current()[0].messages())):
            await self._journal.append(plan)

    async def _fitting(self) -> Context:
        """The conversation, with old turns summarised if it is too long."""
        context, window = self._current()
        if context.tokens <= window.summarise_at:
            return context
        body = await condense(context, window, self._adviser, self._computer, self._base)
        if body is not None:
            await self._journal.append(body)
            context, _ = self._current()
        return context

    async def last_words(self, reason: str, seconds: float) -> str:
        """Ask the model what is left to do, paid from the reserve. Empty if it does not answer."""
        context, _ = self._current()
        return await last_words(self._models, self._able()[0], context, self._specs, reason, seconds)
