"""Models of sandboxes made by hand: programs inside ask `http://model.cloister`, and a budget of the sandbox pays."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import msgspec

from cloister.agent.budget.metering import BudgetedModel, BudgetedModels
from cloister.agent.budget.purse import NoLedger, Purse
from cloister.core.budget import BudgetTree
from cloister.core.errors import UserError
from cloister.core.events import AnyBody, BudgetSpent, ModelSpent, RunAdmitted
from cloister.core.ids import RunId, SandboxId
from cloister.core.requests import Budget, ModelWish, NewRun
from cloister.egress.model_endpoint.api import InsideModel
from cloister.log.journal import MemoryJournal
from cloister.model.api import Failure, Reply, Request, TextDelta
from cloister.model.names import Access
from cloister.model.roles import Job, open_models
from cloister.policy.api import Policy
from cloister.policy.layers import capped
from cloister.runs.run_rules import AllowedModels

Note = Callable[[str, str, Mapping[str, object]], Awaitable[None]]
"""Enters something into the audit."""
Given = Callable[[SandboxId], AbstractAsyncContextManager[None]]
_NO_LIMIT = 1_000_000_000


class ModelsByHand:
    """The models of the sandboxes that were made with one."""

    def __init__(self, access: Access, tree: BudgetTree, policy: Policy, note: Note) -> None:
        self._access = access
        self._tree = tree
        self._policy = policy
        self._note = note
        self._live: dict[SandboxId, InsideModel] = {}

    def asked(self, sandbox: SandboxId) -> InsideModel | None:
        """The model for the programs of a sandbox."""
        return self._live.get(sandbox)

    def giving(self, wish: ModelWish, who: str) -> Given:
        """What gives a sandbox its model while it lives. Raises `UserError` (`budget_above`)."""
        if self._tree.outer:
            # The totals of those levels are folded from the logs of runs, and a sandbox has none.
            raise UserError(
                "budget_above",
                "This server has budgets above its runs, which cannot count the calls of a sandbox: start a run instead.",
            )
        return partial(self._given, wish, who)

    @asynccontextmanager
    async def _given(self, wish: ModelWish, who: str, sandbox: SandboxId) -> AsyncGenerator[None]:
        limits, _ = capped(self._policy, {"tokens": wish.tokens, "dollars": wish.dollars})
        budget = Budget(steps=_NO_LIMIT, tokens=int(limits["tokens"] or 0), dollars=limits["dollars"])
        async with open_models(self._access, Job("", wish.name)) as models:
            journal = MemoryJournal(RunId(sandbox), partial(self._enter, who, sandbox))
            await journal.append(RunAdmitted(NewRun("", ""), who))
            purse = Purse(journal, budget, BudgetTree(unpriced=self._tree.unpriced), NoLedger(), 0.0)
            paid = BudgetedModels(AllowedModels(models, self._policy), purse)
            self._live[sandbox] = _OwnModel(paid.for_programs_inside())
            try:
                yield
            finally:
                del self._live[sandbox]

    async def _enter(self, who: str, sandbox: SandboxId, body: AnyBody) -> None:
        match body:
            case ModelSpent():
                usage = body.usage
                spent = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
                about = {"sandbox": sandbox, "model": body.model, **spent, "dollars": body.cost}
                await self._note("SandboxModelAsked", who, about)
            case BudgetSpent():
                about = {"sandbox": sandbox, "what": body.what, "limit": body.limit}
                await self._note("SandboxModelRefused", who, about)
            case _:
                pass


class _OwnModel:
    """The model of one sandbox. What is refused is said of the sandbox: it belongs to no run."""

    def __init__(self, paid: BudgetedModel) -> None:
        self._paid = paid

    @property
    def name(self) -> str:
        return self._paid.name

    @property
    def window(self) -> int | None:
        return self._paid.window

    def tokens(self, request: Request) -> int:
        return self._paid.tokens(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[TextDelta | Reply | Failure]]:
        async with self._paid.stream(request) as items, aclosing(_told(items)) as told:
            yield told


async def _told(
    items: AsyncIterator[TextDelta | Reply | Failure],
) -> AsyncGenerator[TextDelta | Reply | Failure]:
    async for item in items:
        if isinstance(item, Failure) and item.code == "budget":
            yield msgspec.structs.replace(item, message=item.message.replace("The run's", "The sandbox's", 1))
        else:
            yield item
