"""Metered models: the purse permits each call before it starts and records its cost before it ends."""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import anyio
import msgspec

from cloister.agent.budget.purse import Payer, Permit, Purse
from cloister.agent.context.messages import BYTES_PER_TOKEN, request_tokens, text_tokens
from cloister.agent.progress import progress
from cloister.core.budget import Call, Over, Spend, amount, sentence
from cloister.core.errors import CloisterError
from cloister.core.events import (
    ActionDecided,
    AskRaised,
    AttemptEnded,
    ChecksRan,
    Event,
    FinishRefused,
    ModelReplied,
    ModelSpent,
    ProofTaken,
    RunClaimed,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
    SaveRefused,
    ToolReturned,
)
from cloister.core.log import effective
from cloister.core.requests import Budget, Usage
from cloister.model.api import Failure, Model, Models, NoModels, Reply, Request, Role, TextDelta

# A call that a crash interrupted: its cost is in no log and must still count.

LOST = "lost"
"""The purpose recorded for such a call."""

_BUSY = (
    ActionDecided,
    AskRaised,
    AttemptEnded,
    ChecksRan,
    FinishRefused,
    ModelReplied,
    ProofTaken,
    SaveRefused,
    ToolReturned,
)
"""After these events an attempt does not call the model next."""
_BEFORE = (RunResumed, SandboxClosed, SandboxOpened)


def call_was_lost(events: Sequence[Event], attempt: int) -> bool:
    """True if the previous owner probably crashed during a call for the next step of `attempt`.

    Assumed if the last event it wrote is one after which it calls the model; an owner that stopped in order has recorded
    the cost. False once the current owner has written an event of the attempt.
    """
    claims = [at for at, event in enumerate(events) if isinstance(event.body, RunClaimed)]
    if len(claims) < 2 or any(_is_own(event, attempt) for event in events[claims[-1] :]):
        return False
    if progress(effective(events), attempt).pending is not None:
        return False
    began = False
    for event in reversed(events[claims[-2] : claims[-1]]):
        if _is_own(event, attempt):
            recorded = isinstance(event.body, ModelSpent) and event.body.purpose == "code"
            return not recorded and not isinstance(event.body, _BUSY)
        began = began or isinstance(event.body, SandboxOpened)
    return began and any(_is_own(event, attempt) for event in events[: claims[-2]])


def _is_own(event: Event, attempt: int) -> bool:
    """True if the loop of the attempt wrote the event. Preparations do not count."""
    body = event.body
    return getattr(body, "attempt", None) == attempt and not isinstance(body, _BEFORE)


WRAP_UP = "wrap_up"
INSIDE = "inside"
HARNESS = "harness"

_MILLION = 1_000_000


@dataclass(slots=True)
class _Received:
    """The result of a call so far."""

    reply: Reply | None = None
    failure: Failure | None = None
    output_tokens: int = 0
    """Estimated from the streamed text."""

    @property
    def nothing(self) -> bool:
        """True if the call failed before it cost anything."""
        return self.failure is not None and self.failure.usage is None and not self.output_tokens

    def at_least(self, input_tokens: int) -> Usage:
        """The usage of a call without a reply, by the provider or by estimate."""
        said = Usage() if self.failure is None or self.failure.usage is None else self.failure.usage
        return msgspec.structs.replace(
            said,
            input_tokens=said.input_tokens or input_tokens,
            output_tokens=max(said.output_tokens, self.output_tokens),
        )


class BudgetedModel:
    """A `Model` whose calls are paid from a purse. Only `BudgetedModels` creates it."""

    def __init__(
        self, model: Model, owner: "BudgetedModels", purpose: str, temperature: float | None
    ) -> None:
        self._model = model
        self._owner = owner
        self._purse = owner.purse
        self._payer = owner.payer
        self._purpose = purpose
        self._temperature = temperature

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def window(self) -> int | None:
        return self._owner.window(self.name)

    def tokens(self, request: Request) -> int:
        """The estimate that the purse uses."""
        return request_tokens(request)

    @asynccontextmanager
    async def stream(
        self, request: Request, begun: Callable[[], None] | None = None
    ) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        """`begun` is called when the request starts; a person may be asked for more budget before."""
        call = self._call(request)
        permit = await self._purse.permit(self._payer, call)
        if begun is not None:
            begun()
        if not isinstance(permit, Permit):
            yield _only(Failure("budget", sentence(permit)))
            return
        heard = _Received()
        started = time.monotonic()
        less = msgspec.structs.replace(request, max_tokens=permit.output_tokens)
        if self._temperature is not None:
            less = msgspec.structs.replace(less, temperature=self._temperature)
        try:
            async with (
                self._model.stream(less) as items,
                aclosing(self._listen(items, call, heard)) as counted,
            ):
                yield counted
        finally:
            with anyio.CancelScope(shield=True):
                # If the run has another owner now, the next append reports it.
                with suppress(CloisterError):
                    await self._record(permit, call, heard, time.monotonic() - started)
                await self._purse.settle(permit.ticket)

    def _call(self, request: Request) -> Call:
        tokens = request_tokens(request)
        into = self._cost(Usage(tokens, 0))
        out = self._cost(Usage(0, _MILLION))
        return Call(
            tokens,
            request.max_tokens,
            steps=1 if self._purpose in ("code", HARNESS) else 0,
            dollars_in=into,
            dollars_out=None if out is None else out / _MILLION,
            keep_back=self._purpose != WRAP_UP,
        )

    def _cost(self, usage: Usage) -> float | None:
        return self._owner.charge(self.name, usage)

    async def _listen(
        self, items: AsyncIterator[TextDelta | Reply | Failure], call: Call, heard: _Received
    ) -> AsyncGenerator[TextDelta | Reply | Failure]:
        async for item in items:
            match item:
                case TextDelta():
                    heard.output_tokens += text_tokens(item.text)
                    yield item
                case Reply():
                    usage = _believed(item, call)
                    known = item.cost if usage == item.usage else None
                    cost = self._cost(usage) if known is None else known
                    heard.reply = msgspec.structs.replace(item, usage=usage, cost=cost)
                    yield heard.reply
                case Failure():
                    heard.failure = item
                    yield item

    async def _record(self, permit: Permit, call: Call, heard: _Received, seconds: float) -> None:
        """Record every call: a step is in the log as `ModelReplied`, any other call as `ModelSpent`."""
        if heard.nothing or (heard.reply is not None and self._is_step(permit)):
            return
        if heard.reply is not None:
            usage, cost = heard.reply.usage, heard.reply.cost
        else:
            usage = heard.at_least(call.input_tokens)
            cost = self._cost(usage)
        await self._purse.journal.append(
            ModelSpent(
                self._payer.attempt, self._purpose, self.name, usage, seconds, cost, heard.reply is None
            )
        )

    def _is_step(self, permit: Permit) -> bool:
        return self._purpose == "code" and any(
            isinstance(event.body, ModelReplied) and self._payer.attempt in (None, event.body.attempt)
            for event in self._purse.journal.events[permit.seq :]
        )


class BudgetedModels:
    """`Models` whose calls are paid by one attempt, or by the run itself."""

    def __init__(
        self, models: Models, purse: Purse, payer: Payer | None = None, temperature: float | None = None
    ) -> None:
        self._models = models
        self.purse = purse
        self.payer = payer or Payer()
        self._temperature = temperature
        """Of steps and last words; other roles keep the temperature of their requests."""

    def of(self, attempt: int, budget: Budget, above: Payer | None = None) -> "BudgetedModels":
        """The same models, paid by this attempt from its share of the run's budget; of a helper, also by that `above`."""
        return BudgetedModels(self._models, self.purse, Payer(attempt, budget, above), self._temperature)

    def at(self, temperature: float) -> "BudgetedModels":
        """The same models, with steps at this temperature."""
        return BudgetedModels(self._models, self.purse, self.payer, temperature)

    def role(self, role: Role) -> BudgetedModel:
        temperature = self._temperature if role == "code" else None
        return BudgetedModel(self._models.role(role), self, role, temperature)

    def chain(self, role: Role) -> tuple[str, ...]:
        return self._models.chain(role)

    def named(self, name: str) -> BudgetedModel:
        return BudgetedModel(self._models.named(name), self, "code", self._temperature)

    def in_role(self, role: Role, name: str) -> BudgetedModel:
        """A model of a role's chain. Raises as `Models.named`."""
        return BudgetedModel(self._models.named(name), self, role, None)

    def for_last_words(self, name: str) -> BudgetedModel:
        """May spend the reserve."""
        return BudgetedModel(self._models.named(name), self, WRAP_UP, self._temperature)

    def for_programs_inside(self, *, steps: bool = False) -> BudgetedModel:
        """For programs in the sandbox. With `steps`, for a harness: each call needs room for a step."""
        purpose = HARNESS if steps else INSIDE
        return BudgetedModel(self._models.role("code"), self, purpose, self._temperature)

    async def count_lost(self, name: str, usage: Usage) -> None:
        """Record the estimated cost of a step that a crash interrupted."""
        cost = self.charge(name, usage)
        spent = ModelSpent(self.payer.attempt, LOST, name, usage, 0.0, cost, estimated=True)
        await self.purse.journal.append(spent)

    def spent(self, attempt: int | None, *, held: bool = True) -> Spend:
        """Spending of an attempt, or of the run itself; with `held`, including reservations."""
        return self.purse.spent(attempt, held=held)

    def charge(self, name: str, usage: Usage) -> float | None:
        """US dollars by the known price, or by the price that the settings assume."""
        known = self._models.cost(name, usage)
        return self.purse.assumed(usage) if known is None else known

    def window(self, name: str) -> int | None:
        return self._models.window(name)

    def cost(self, name: str, usage: Usage) -> float | None:
        return self._models.cost(name, usage)

    def none(self, why: str) -> "BudgetedModels":
        """No models, for an attempt whose harness calls none."""
        return BudgetedModels(NoModels(why), self.purse, self.payer)

    def instead(self, name: str) -> "BudgetedModels":
        return BudgetedModels(self._models.instead(name), self.purse, self.payer, self._temperature)


def _believed(reply: Reply, call: Call) -> Usage:
    """The usage of a reply, by its provider; estimated where the provider gives none."""
    said = reply.usage
    if said.input_tokens and said.output_tokens:
        return said
    wrote = text_tokens(reply.text) + len(msgspec.json.encode(reply.calls)) // BYTES_PER_TOKEN
    return msgspec.structs.replace(
        said,
        input_tokens=said.input_tokens or call.input_tokens,
        output_tokens=said.output_tokens or wrote,
    )


async def _only(item: Failure) -> AsyncGenerator[TextDelta | Reply | Failure]:
    yield item


# The time budget of one attempt: time spent and left, warnings, and requests for more.


_RESERVE_SECONDS, _RESERVE_SHARE = 30.0, 0.05
"""Reserved for the last words: the smaller of these seconds and this share."""


class Clock:
    """A monotonic clock: the times of events may jump."""

    def __init__(self, budget: Budget, models: BudgetedModels, earlier: float) -> None:
        """`earlier`: seconds already spent, by the log."""
        self._budget = budget
        self._earlier = earlier
        self._started = anyio.current_time()
        self._scope: anyio.CancelScope | None = None
        self._own_reserve = _reserve(budget.seconds)
        self._purse = models.purse
        self._payer = models.payer
        self._purse.watch_time(self._update_deadline)

    @property
    def spent(self) -> float:
        return self._earlier + anyio.current_time() - self._started

    @property
    def limit(self) -> float:
        """Including granted extensions."""
        return self._budget.seconds + self._purse.more_seconds()

    @property
    def left(self) -> float:
        """Seconds until the last words must begin, by the run's own limit and those of the levels above."""
        above = self._purse.time_above()
        return self._own_left if above is None else min(self._own_left, _left(above))

    @property
    def _own_left(self) -> float:
        return self.limit - self._own_reserve - self.spent

    @property
    def reserve(self) -> float:
        """Seconds reserved for the last words."""
        above = self._purse.time_above()
        return self._own_reserve if above is None else min(self._own_reserve, _reserve(above.limit))

    def _own(self) -> Over:
        return Over("run", str(self._purse.run), "seconds", self.spent, self.limit)

    def _above(self) -> Over | None:
        """The level above the run whose time ended before the run's own, if any."""
        above = self._purse.time_above()
        return above if above is not None and _left(above) < self._own_left else None

    @property
    def over(self) -> str:
        """The reason when no time is left."""
        above = self._above()
        if above is not None:
            return sentence(above)
        return f"The attempt's budget of {amount('seconds', self.limit)} is spent."

    @contextmanager
    def running(self) -> Generator[anyio.CancelScope]:
        """Cancel the block when no time is left. Each paid call updates the deadline."""
        with anyio.move_on_after(self.left) as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None

    def _update_deadline(self) -> None:
        if self._scope is not None:
            self._scope.deadline = anyio.current_time() + self.left

    @contextmanager
    def stopped(self) -> Generator[None]:
        """The block costs no time."""
        since = anyio.current_time()
        if self._scope is not None:
            self._scope.deadline = math.inf
        try:
            yield
        finally:
            self._started += anyio.current_time() - since
            self._update_deadline()

    async def warn(self) -> None:
        """Warn once when most of the time is spent."""
        await self._purse.warn_of_time(self._payer, self._own())

    async def more(self) -> bool:
        """Ask a person for more time, if the settings allow it. The wait for the answer costs no time."""
        with self.stopped():
            return await self._purse.ask_for_time(self._payer, self._above() or self._own())


def _reserve(limit: float) -> float:
    return min(_RESERVE_SECONDS, limit * _RESERVE_SHARE)


def _left(above: Over) -> float:
    return above.limit - _reserve(above.limit) - above.spent
