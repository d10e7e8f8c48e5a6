"""What one attempt asks its model, and with which view of the log: requests that fit, and the last words."""

from cloister.agent.ask_model import Follow, Step, ask_model
from cloister.agent.budgeted import BudgetedModels
from cloister.agent.condense import condense
from cloister.agent.consult import Adviser
from cloister.agent.context import WINDOW_TOKENS, Context, Window, request_of
from cloister.agent.estimate import request_tokens
from cloister.agent.lost_call import call_was_lost
from cloister.agent.planning import make_plan
from cloister.agent.tools import TOOLS
from cloister.agent.which_model import InCharge
from cloister.agent.wrap_up import last_words
from cloister.core.budget import LEAST_OUTPUT_TOKENS
from cloister.core.commands import Computer
from cloister.core.errors import UserError
from cloister.core.events import Advised, ModelReplied
from cloister.core.journal import Journal
from cloister.core.records import Usage
from cloister.model.api import Failure, Request

_SPECS = tuple(tool.spec for tool in TOOLS.values())
_TOO_LONG_TRIES = 3
"""How often a request that the provider finds too long is made shorter."""
_TOO_LONG_SHARE = 0.6


class Mind:
    """The model in charge of an attempt, and what it is shown."""

    def __init__(
        self, attempt: int, journal: Journal, models: BudgetedModels, computer: Computer, base: str
    ) -> None:
        self._attempt = attempt
        self._journal = journal
        self._models = models
        self._in_charge = InCharge(attempt)
        self._adviser = Adviser(models, journal, attempt)
        self._computer = computer
        self._base = base
        self._context: Context | None = None
        self._tokens = 0
        """The window that `_context` was made for."""
        self._looked = False
        """Whether it was asked what the owner before this one left unpaid."""
        self._caps: dict[str, int] = {}
        """Windows that are smaller than the models' data says: they said so."""

    @property
    def model(self) -> str:
        """The one in charge."""
        return self._ring()[0]

    def other_model(self) -> str | None:
        """The one that would take over."""
        return next(iter(self._ring()[1:]), None)

    def _ring(self) -> tuple[str, ...]:
        return self._in_charge.ring(self._journal.events, self._models.chain("code"))

    def _able(self) -> tuple[str, int | None]:
        """The one in charge, or who stands in for it where settings no longer have it; and its window, if known."""
        for name in self._ring():
            try:
                return name, self._models.window(name)
            except UserError:
                continue
        return self.model, None

    def _current(self) -> tuple[Context, Window]:
        """The conversation up to this moment, for the window of the model in charge."""
        name, known = self._able()
        most = known or WINDOW_TOKENS
        tokens = min(most, self._caps.get(name, most))
        window = Window.of(tokens, _SPECS)
        if self._context is None or tokens != self._tokens:
            self._context = Context(self._attempt, window)
            self._tokens = tokens
        self._context.update(self._journal.events)
        return self._context, window

    async def ask(self, step: int, follow: Follow) -> ModelReplied | Failure:
        """Ask for one step, with a request that fits. Each try that fails is an event."""
        if step == 1:
            await self._plan()
        tries = 0
        while True:
            tries += 1
            context = await self._fitting()
            asking = request_of(context, _SPECS, self._tokens)
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
        """Count what a call took in which an owner died: who crashes again and again must not spend for nothing."""
        if call_was_lost(self._journal.events, self._attempt):
            await self._models.count_lost(self._able()[0], Usage(request_tokens(asking), LEAST_OUTPUT_TOKENS))

    async def _plan(self) -> None:
        """Have a plan made, if somebody is named for that; once for an attempt."""
        made = any(
            isinstance(event.body, Advised)
            and event.body.role == "plan"
            and event.body.attempt == self._attempt
            for event in self._journal.events
        )
        if not made and (plan := await make_plan(self._adviser, self._current()[0].messages())):
            await self._journal.append(plan)

    async def _fitting(self) -> Context:
        """The conversation, with a summary in place of old turns if it would be too long."""
        context, window = self._current()
        if context.tokens <= window.summarise_at:
            return context
        body = await condense(context, window, self._adviser, self._computer, self._base)
        if body is not None:
            await self._journal.append(body)
            context, _ = self._current()
        return context

    async def last_words(self, reason: str, seconds: float) -> str:
        """What the model says is left, within what is kept back; empty when it says nothing."""
        context, _ = self._current()
        return await last_words(self._models, self._able()[0], context, _SPECS, reason, seconds)
