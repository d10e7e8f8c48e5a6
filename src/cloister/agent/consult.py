"""Asking a model in another role than `code`: once, for a limited time, and its stand-ins when it fails."""

from typing import NamedTuple

import anyio

from cloister.agent.budgeted import BudgetedModel, BudgetedModels
from cloister.agent.which_model import stands_in
from cloister.core.errors import UserError
from cloister.core.events import ModelFailed
from cloister.core.journal import Journal
from cloister.model.api import Failure, Reply, Request, Role, TextDelta


class Heard(NamedTuple):
    """Who answered, and what."""

    model: str
    reply: Reply


class Adviser(NamedTuple):
    """Who can be consulted, and where it is recorded when one of them fails."""

    models: BudgetedModels
    journal: Journal
    attempt: int
    """On whose behalf."""

    def named(self, role: Role) -> bool:
        """Whether the settings give this role to somebody: what falls to `code` anyway need not be asked apart."""
        return self.models.chain(role) != self.models.chain("code")


async def consult(adviser: Adviser, role: Role, asking: Request, seconds: float) -> Heard | Failure:
    """What the first model of the role's chain that can answer says; each that fails is an event."""
    names = adviser.models.chain(role)
    for at, name in enumerate(names):
        answer = await _one(adviser.models, role, name, asking, seconds)
        if isinstance(answer, Heard) or answer.code == "budget":
            return answer
        more = at + 1 < len(names) and stands_in(answer)
        wait = 0.0 if more else None
        failed = ModelFailed(adviser.attempt, answer.code, answer.message, wait, name, role)
        await adviser.journal.append(failed)
        if not more:
            return answer
    return Failure("bad_request", f"No model is named for {role}.")


async def _one(
    models: BudgetedModels, role: Role, name: str, asking: Request, seconds: float
) -> Heard | Failure:
    try:
        model = models.in_role(role, name)
    except UserError as error:
        return Failure("bad_request", error.message)
    answer = await asked(model, asking, seconds)
    if answer is None:
        return Failure("network", f"It did not answer in {seconds:g} s.", retryable=True)
    return Heard(model.name, answer) if isinstance(answer, Reply) else answer


async def asked(model: BudgetedModel, asking: Request, seconds: float) -> Reply | Failure | None:
    """What comes of one call within a time; None when nothing does."""
    with anyio.CancelScope() as patience:

        def begun() -> None:
            patience.deadline = anyio.current_time() + seconds

        async with model.stream(asking, begun) as items:
            async for item in items:
                match item:
                    case TextDelta():
                        pass
                    case Reply() | Failure():
                        return item
    return None
