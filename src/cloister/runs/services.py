"""The services that a run needs, wired once by the composition root."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cloister.agent.budget.purse import Ledger, Purse
from cloister.agent.taint import Provenance
from cloister.agent.tools.toolset import ToolSource
from cloister.core import limits
from cloister.core.attempts import AttemptWish, harness_of
from cloister.core.budget import BudgetTree
from cloister.core.errors import lack_of
from cloister.core.events import Event, ServiceFailed
from cloister.core.ids import RunId, SandboxId
from cloister.core.log import Journal
from cloister.core.requests import Knowledge, NewRun, Patience, Quota
from cloister.core.text import one_line
from cloister.egress.factory import Doorway, Through
from cloister.egress.git_push import Repository
from cloister.egress.model_endpoint import serve as endpoint
from cloister.egress.rules import DoorEvent
from cloister.forge import Forges
from cloister.forge.api import RunRepositories
from cloister.forge.change import AUTHOR, Author, branch_name
from cloister.log.attachments import Attachments
from cloister.log.audit.entry import Checkpoint
from cloister.model.api import Models
from cloister.policy.api import Policy
from cloister.policy.layers import least
from cloister.runs.attempts.people import RunSandboxes
from cloister.runs.run_rules import RuleFiles, run_layer
from cloister.runs.templates import Warming
from cloister.sandbox.api import Host, Sandbox, SandboxSpec
from cloister.sandbox.store.api import Shortage

_TTL_MARGIN_SECONDS = 900.0
"""For the clone and the delivery, which no budget counts."""
_EXTENSIONS = 4
"""Extensions of time that a sandbox outlives; after more it is rebuilt from the last save point."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """The machine, the models, the rules."""

    data_dir: Path
    repositories: RunRepositories
    host: Host
    warming: Warming
    forges: Forges
    models: Callable[[NewRun], AbstractAsyncContextManager[Models]]
    rules: RuleFiles
    policy: Policy
    """Without the run's own layer; of one run, with its repository's."""
    quota: Quota
    ask_seconds: float
    doorway: Doorway
    """Makes the proxy of each sandbox."""
    log: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    """The whole log of another run. Raises `UserError` (`no_such_run`)."""
    budgets: BudgetTree
    """Budgets of the levels above a run, and when to warn and to ask."""
    ledger: Ledger
    patience: Patience
    """When an attempt counts as stuck."""
    shortage: Callable[[], Awaitable[Shortage | None]]
    """Why no sandbox can be opened for lack of disk; None if there is room."""
    left_out: Callable[[NewRun], Mapping[str, str]] = lambda _: {}
    """Models that the settings name for a run and that are not available here → what they lack."""

    harness: Callable[[NewRun, AttemptWish], str] = lambda new, wish: harness_of(new, wish, model=True)
    """The harness of one attempt."""
    author: Author = AUTHOR
    """The author of commits."""
    people: Mapping[str, str] = field(default_factory=dict[str, str])
    """User → `Name <address>`, for the people who asked for a change."""
    tools: tuple[ToolSource, ...] = ()
    """What adds tools to each attempt."""
    knowledge: Knowledge = field(default_factory=Knowledge)
    """What models read beside their tasks."""
    helpers: int = 4
    """How many helpers one attempt may have; 0: none."""
    kinds: tuple[str, ...] = ()
    """The kinds of task that the settings distinguish."""
    sandboxes: RunSandboxes = field(default_factory=RunSandboxes)
    """Lists the sandboxes of attempts, for people who enter them."""
    audit_head: Callable[[], Checkpoint | None] = lambda: None
    """Reads the signed head of the audit. Raises `HostError`."""

    @property
    def attachments(self) -> Attachments:
        """The files that belong to prompts."""
        return Attachments(self.data_dir)

    async def lack(self, error: BaseException) -> str | None:
        """The sentence about the full disk that `error` comes from; None for any other error.

        Programs report a full disk in many ways, so any error counts while the disk is full.
        """
        short = await self.shortage()
        return lack_of(error) or (short.why if short and short.full else None)

    def sandbox_spec(self, request: NewRun, template: str) -> SandboxSpec:
        seconds = request.budget.seconds
        if self.budgets.ask:  # people may give more time while it lives
            seconds *= 1 + _EXTENSIONS * self.budgets.extend_percent / 100
        ttl = min(seconds + _TTL_MARGIN_SECONDS, limits.TTL_SECONDS_MAX)
        return SandboxSpec(template, request.tier, quota=self.quota, ttl_seconds=ttl)

    def purse(self, request: NewRun, journal: Journal) -> Purse:
        """The purse that pays every model call of one run."""
        return Purse(
            journal,
            request.budget,
            self.budgets,
            self.ledger,
            self.ask_seconds,
            frozenset(least(self.policy)),
        )

    def run_policy(self, request: NewRun) -> Policy:
        """All layers with the run's own; a deny above it still wins."""
        return (*self.policy, run_layer(request))

    def open(
        self, request: NewRun, template: str, journal: Journal, model: endpoint.AskedModel
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox of one run with its own proxy, which logs its decisions and serves `model` to programs inside.

        A service that did not start in it is an event.
        """

        async def record(sandbox: SandboxId, body: DoorEvent) -> None:
            await journal.append(body)

        repository = Repository.of(request.repo, branch_name(request.prompt, journal.events[0].run))
        inside = endpoint.hosts(model)
        read = Provenance(None, journal)
        outfit = self.doorway.outfit(
            self.run_policy(request), record, repository, inside, lambda: read.untrusted
        )
        spec = self.sandbox_spec(request, template)
        return noting(
            Through(self.host, outfit).open(msgspec.structs.replace(spec, env=endpoint.ENV)), journal
        )


@asynccontextmanager
async def noting(opening: AbstractAsyncContextManager[Sandbox], journal: Journal) -> AsyncGenerator[Sandbox]:
    """Log the service that did not start in a sandbox, which may be a fork."""
    async with opening as sandbox:
        if problem := sandbox.info.problem:
            await journal.append(ServiceFailed(sandbox.info.id, one_line(problem, 1_000)))
        yield sandbox
