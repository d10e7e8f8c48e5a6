"""What conducting a run takes, wired once by the composition root."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from cloister.core import limits
from cloister.core.ids import RunId, SandboxId
from cloister.core.journal import Journal
from cloister.core.records import NewRun, Quota
from cloister.egress.doorway import Doorway
from cloister.egress.gate import DoorEvent
from cloister.egress.outfit import Through
from cloister.egress.repository import Repository
from cloister.forge.api import Forge
from cloister.forge.change import branch_name
from cloister.model.api import Model
from cloister.policy.api import Policy
from cloister.runs.rules import RuleFiles, run_layer
from cloister.runs.warming import Warming
from cloister.sandbox.api import Host, Sandbox, SandboxSpec

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
    doorway: Doorway
    """How doors are made here."""

    def sandbox_spec(self, request: NewRun, template: str) -> SandboxSpec:
        ttl = min(request.budget.seconds + _TTL_MARGIN_SECONDS, limits.TTL_SECONDS_MAX)
        return SandboxSpec(template, request.tier, quota=self.quota, ttl_seconds=ttl)

    def run_policy(self, request: NewRun) -> Policy:
        """All layers: the run may name hosts to reach, and a deny above it still wins."""
        return (*self.policy, run_layer(request))

    def open(
        self, request: NewRun, run: RunId, template: str, journal: Journal
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox of one run with a door of its own; what that decides is in the run's log."""

        async def record(sandbox: SandboxId, body: DoorEvent) -> None:
            await journal.append(body)

        repository = Repository.of(request.repo, branch_name(request.prompt, run))
        outfit = self.doorway.outfit(self.run_policy(request), record, repository)
        return Through(self.host, outfit).open(self.sandbox_spec(request, template))
