"""What conducting a run takes, wired once by the composition root."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from anyio.abc import ByteStream

from cloister.core import limits
from cloister.core.events import ConnectionClosed, ConnectionDecided
from cloister.core.ids import SandboxId
from cloister.core.journal import Journal
from cloister.core.records import NewRun, Quota
from cloister.egress.door import Door
from cloister.forge.api import Forge
from cloister.model.api import Model
from cloister.policy.api import Policy
from cloister.policy.decide import Decider
from cloister.runs.rules import RuleFiles, run_layer
from cloister.runs.warming import Warming
from cloister.sandbox.api import Door as DoorCall
from cloister.sandbox.api import Host, SandboxSpec

_TTL_MARGIN_SECONDS = 900.0
"""For the clone and what follows the work, which no budget counts."""


@dataclass(frozen=True, slots=True)
class Means:
    """The machine, the models, the rules."""

    data_dir: Path
    host: Host
    warming: Warming
    forge: Forge
    models: Callable[[str | None], AbstractAsyncContextManager[Model]]
    rules: RuleFiles
    policy: Policy
    """Without the run's own layer; of one run, with its repository's."""
    quota: Quota
    ask_seconds: float

    def sandbox_spec(self, request: NewRun, template: str) -> SandboxSpec:
        ttl = min(request.budget.seconds + _TTL_MARGIN_SECONDS, limits.TTL_SECONDS_MAX)
        return SandboxSpec(template, request.tier, quota=self.quota, ttl_seconds=ttl)

    def run_policy(self, request: NewRun) -> Policy:
        """All layers: the run may name hosts to reach, and a deny above it still wins."""
        return (*self.policy, run_layer(request))

    def door(self, request: NewRun, journal: Journal) -> DoorCall:
        """The door of one run; what it decides is in the run's log."""
        decider = Decider(self.run_policy(request))

        async def record(sandbox: SandboxId, body: ConnectionDecided | ConnectionClosed) -> None:
            await journal.append(body)

        door = Door(decider.decide, record)

        async def serve(sandbox: SandboxId, client: ByteStream) -> None:
            await door.serve(sandbox, client)

        return serve
