"""The setup and the sandboxes of attempts: forks of the warm one, fresh ones after a loss, and those for proofs."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.proof import Proof, Task, run_proof
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.events import CommandOutput, Progress, SandboxClosed, SandboxOpened
from cloister.core.ids import RunId, SandboxId
from cloister.core.log import Journal
from cloister.core.requests import NewRun
from cloister.core.text import decode
from cloister.feedback.goals import Goals, asked
from cloister.forge import workspace
from cloister.forge.workspace import TreeWatch
from cloister.model.api import Model
from cloister.policy.api import Policy
from cloister.runs.environments.layers import SetUp, Site
from cloister.runs.run_rules import check_change
from cloister.runs.services import RunServices
from cloister.sandbox.api import Sandbox


class InsideModels:
    """The model of each sandbox for the programs inside, and the attempt that pays; without a payer there is no model."""

    def __init__(self) -> None:
        self._payers: dict[SandboxId, tuple[int | None, Model]] = {}

    def model(self, sandbox: SandboxId) -> Model | None:
        """The model for programs in `sandbox`."""
        payer = self._payers.get(sandbox)
        return None if payer is None else payer[1]

    @contextmanager
    def paid(self, sandbox: SandboxId, attempt: int | None, model: Model) -> Generator[None]:
        """Within the block `attempt` (None: the run itself) pays for the calls from `sandbox`."""
        self._payers[sandbox] = (attempt, model)
        try:
            yield
        finally:
            self._payers.pop(sandbox, None)

    def shut(self, attempt: int | None) -> None:
        """End all calls on this account from inside: its rest is about to be given to other attempts."""
        self._payers = {name: payer for name, payer in self._payers.items() if payer[0] != attempt}


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The common ground of all attempts of a run."""

    run: RunId
    request: NewRun
    base: str
    bare: Path
    models: BudgetedModels
    inside: InsideModels
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    template: str = "default"

    @property
    def goals(self) -> Goals:
        """What the request asks for."""
        request = self.request
        return asked(request.prompt, self.baseline, request.checks, request.asked)


@dataclass(slots=True)
class SavedFiles:
    """The repository inside one sandbox and the ref of its save points."""

    computer: Computer
    setup: RunSetup
    attempt: int
    policy: Policy
    _look: TreeWatch = field(init=False)

    def __post_init__(self) -> None:
        self._look = TreeWatch(self.computer, self.setup.bare, self.setup.base)

    async def tree(self) -> str:
        return await self._look.tree()

    async def save(self) -> str:
        ref = f"refs/cloister/attempt/{self.attempt}"
        setup = self.setup
        return await workspace.save(self.computer, setup.bare, setup.base, ref, check=self.judge)

    async def judge(self, commit: str) -> None:
        """Raises `UserError` (`denied`) if a rule denies a path of the change."""
        await check_change(self.policy, self.setup.bare, self.setup.base, commit)


@dataclass(frozen=True, slots=True)
class AttemptSandboxes:
    """The sandboxes of one run's attempts."""

    services: RunServices
    journal: Journal
    setup: RunSetup
    warm: Sandbox
    """Holds the checked base. Several attempts work in forks of it, a single one in it."""

    _open_now: dict[int, SandboxId] = field(default_factory=dict[int, SandboxId])
    """Attempt → its open sandbox, as the log has it."""

    @asynccontextmanager
    async def fork(self, attempt: int) -> AsyncGenerator[Sandbox]:
        """A fork of the warm sandbox. Concurrent forks may share one moment."""
        async with self.warm.fork() as sandbox:
            await self._opened(sandbox, attempt)
            yield sandbox
        await self.gone(attempt, f"attempt {attempt} ended")

    @asynccontextmanager
    async def fresh(self, attempt: int, commit: str) -> AsyncGenerator[Sandbox]:
        """A new sandbox with the files of `commit`."""
        async with self._open() as sandbox:
            await self._opened(sandbox, attempt)
            await self.restore(sandbox, commit)
            yield sandbox
        await self.gone(attempt, f"attempt {attempt} ended")

    async def gone(self, attempt: int, why: str) -> None:
        """Record that the sandbox of an attempt, if it had one, is destroyed."""
        sandbox = self._open_now.pop(attempt, None)
        if sandbox is not None:
            await self.journal.append(SandboxClosed(sandbox, why))

    async def restore(self, sandbox: Sandbox, commit: str) -> None:
        await workspace.restore(sandbox, self.setup.bare, self.setup.base, commit)

    async def prove(self, attempt: int, inside: Model, commit: str, known: tuple[Diagnosis, ...]) -> Proof:
        """Run the checks on `commit` in a sandbox like that of the baseline.

        `known` has their diagnoses of the same files; a test that is red only here is run once more.
        Programs inside may call the model `inside`, which the attempt pays.
        """

        def show(check: str, stream: Stream, data: bytes) -> None:
            self.journal.show(CommandOutput(attempt, check, stream, decode(data)))

        def report(fraction: float | None, note: str) -> None:
            self.journal.show(Progress("template", fraction, note))

        setup, cpus = self.setup, self.services.quota.cpus
        own = SetUp(self.services, self.journal, setup.request)
        site = Site(setup.request.repo, setup.bare, commit)
        async with (
            own.proving(setup.base, site, setup.template, report) as template,
            self._open(template) as sandbox,
        ):
            await self.restore(sandbox, commit)
            allowed = setup.request.allow_test_changes
            task = Task(setup.checks, setup.baseline, known, setup.goals, allowed, cpus)
            with setup.inside.paid(sandbox.info.id, attempt, inside):
                return await run_proof(sandbox, task, show)

    @asynccontextmanager
    async def _open(self, template: str | None = None) -> AsyncGenerator[Sandbox]:
        setup = self.setup
        inside = setup.inside.model
        template = template or setup.template
        async with self.services.open(setup.request, template, self.journal, inside) as sandbox:
            yield sandbox

    async def _opened(self, sandbox: Sandbox, attempt: int) -> None:
        info = sandbox.info
        await self.journal.append(SandboxOpened(info.id, info.isolation, attempt, info.template))
        self._open_now[attempt] = info.id
