"""What conducting a run takes, wired once by the composition root."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from anyio.abc import ByteStream

from cloister.agent.budget import Ledger, Purse
from cloister.core import limits
from cloister.core.budget_tree import BudgetTree
from cloister.core.events import ConnectionClosed, ConnectionDecided, Event
from cloister.core.ids import RunId, SandboxId
from cloister.core.journal import Journal
from cloister.core.records import NewRun, Patience, Quota
from cloister.egress.door import Door
from cloister.forge.api import Forge
from cloister.model.api import Models
from cloister.policy.api import Layer, Policy, Rule
from cloister.policy.decide import decide
from cloister.policy.read import layer
from cloister.runs.warming import Warming
from cloister.sandbox.api import Door as DoorCall
from cloister.sandbox.api import Host, SandboxSpec

_TTL_MARGIN_SECONDS = 900.0
"""For the clone and what follows the work, which no budget counts."""


def run_layer(request: NewRun) -> Layer:
    """The rules that a request brings along. Raises `UserError` (`bad_policy`)."""
    rules = [Rule(f"connect:{host}", "allow") for host in request.allow_hosts]
    return layer("run", rules, "the run's request", may_widen=True)


@dataclass(frozen=True, slots=True)
class Means:
    """The machine, the models, the rules."""

    data_dir: Path
    host: Host
    warming: Warming
    forge: Forge
    models: Callable[[NewRun], AbstractAsyncContextManager[Models]]
    policy: Policy
    """Without the run's own layer."""
    quota: Quota
    ask_seconds: float
    log: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    """The whole log of another run. Raises `UserError` (`no_such_run`)."""
    budgets: BudgetTree
    """What the levels above a run may spend, and when people are told and asked."""
    ledger: Ledger
    patience: Patience
    """When an attempt counts as stuck."""

    def sandbox_spec(self, request: NewRun, template: str) -> SandboxSpec:
        ttl = min(request.budget.seconds + _TTL_MARGIN_SECONDS, limits.TTL_SECONDS_MAX)
        return SandboxSpec(template, request.tier, quota=self.quota, ttl_seconds=ttl)

    def purse(self, request: NewRun, journal: Journal) -> Purse:
        """What every call to a model in one run is paid from."""
        return Purse(journal, request.budget, self.budgets, self.ledger, self.ask_seconds)

    def run_policy(self, request: NewRun) -> Policy:
        """All layers: the run may name hosts to reach, and a deny above it still wins."""
        return (*self.policy, run_layer(request))

    def door(self, request: NewRun, journal: Journal) -> DoorCall:
        """The door of one run; what it decides is in the run's log."""
        policy = self.run_policy(request)

        async def record(sandbox: SandboxId, body: ConnectionDecided | ConnectionClosed) -> None:
            await journal.append(body)

        door = Door(lambda action: decide(policy, action), record)

        async def serve(sandbox: SandboxId, client: ByteStream) -> None:
            await door.serve(sandbox, client)

        return serve
