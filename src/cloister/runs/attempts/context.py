"""Where attempts work: forks of the warm sandbox, fresh sandboxes when one is lost, and those that prove."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.proof import run_proof
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.events import CommandOutput, SandboxClosed, SandboxOpened
from cloister.core.ids import RunId, SandboxId
from cloister.core.log import Journal
from cloister.core.requests import NewRun
from cloister.core.text import decode
from cloister.forge import workspace
from cloister.forge.workspace import TreeWatch
from cloister.model.api import Model
from cloister.runs.services import RunServices
from cloister.sandbox.api import Sandbox

# Who pays for what programs inside ask of a model: the run until its attempts begin, from then on each attempt.


class InsideModels:
    """Each sandbox of a run that has a model, and on whose account. One that nobody answers for has none."""

    def __init__(self) -> None:
        self._payers: dict[SandboxId, tuple[int | None, Model]] = {}

    def model(self, sandbox: SandboxId) -> Model | None:
        """What programs in `sandbox` speak to."""
        payer = self._payers.get(sandbox)
        return None if payer is None else payer[1]

    @contextmanager
    def paid(self, sandbox: SandboxId, attempt: int | None, model: Model) -> Generator[None]:
        """Within the block `attempt` pays for `sandbox` through `model`; None is the run itself."""
        self._payers[sandbox] = (attempt, model)
        try:
            yield
        finally:
            self._payers.pop(sandbox, None)

    def shut(self, attempt: int | None) -> None:
        """Nobody spends on this account from inside any more: what is left of it is about to be given to others."""
        self._payers = {name: payer for name, payer in self._payers.items() if payer[0] != attempt}


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What every attempt of a run starts from."""

    run: RunId
    request: NewRun
    base: str
    bare: Path
    models: BudgetedModels
    inside: InsideModels
    checks: tuple[str, ...]
    baseline: tuple[Diagnosis, ...]
    template: str = "default"


@dataclass(slots=True)
class SavedFiles:
    """The repository inside one sandbox and where its save points go."""

    computer: Computer
    setup: RunSetup
    attempt: int
    _look: TreeWatch = field(init=False)

    def __post_init__(self) -> None:
        self._look = TreeWatch(self.computer, self.setup.bare, self.setup.base)

    async def tree(self) -> str:
        return await self._look.tree()

    async def save(self) -> str:
        ref = f"refs/cloister/attempt/{self.attempt}"
        return await workspace.save(self.computer, self.setup.bare, self.setup.base, ref)


@dataclass(frozen=True, slots=True)
class AttemptSandboxes:
    """The sandboxes of one run's attempts."""

    services: RunServices
    journal: Journal
    setup: RunSetup
    warm: Sandbox
    """Holds the base as it was checked; forked, and worked in itself only by an attempt that is alone."""

    _open_now: dict[int, SandboxId] = field(default_factory=dict[int, SandboxId])
    """Attempt → the sandbox that the log believes it has."""

    @asynccontextmanager
    async def fork(self, attempt: int) -> AsyncGenerator[Sandbox]:
        """A fork of the warm sandbox. Forks asked for at the same time may share one moment."""
        async with self.warm.fork() as sandbox:
            await self._opened(sandbox, attempt)
            yield sandbox
        await self.gone(attempt, f"attempt {attempt} ended")

    @asynccontextmanager
    async def fresh(self, attempt: int, commit: str) -> AsyncGenerator[Sandbox]:
        """A new sandbox with the files of `commit` in it."""
        async with self._open() as sandbox:
            await self._opened(sandbox, attempt)
            await self.restore(sandbox, commit)
            yield sandbox
        await self.gone(attempt, f"attempt {attempt} ended")

    async def gone(self, attempt: int, why: str) -> None:
        """The sandbox of an attempt is destroyed, if it had one."""
        sandbox = self._open_now.pop(attempt, None)
        if sandbox is not None:
            await self.journal.append(SandboxClosed(sandbox, why))

    async def restore(self, sandbox: Sandbox, commit: str) -> None:
        """Bring the files of `commit` in."""
        await workspace.restore(sandbox, self.setup.bare, self.setup.base, commit)

    async def prove(
        self, attempt: int, inside: Model, commit: str, known: tuple[Diagnosis, ...]
    ) -> tuple[Diagnosis, ...]:
        """The checks on `commit` in a sandbox like the one in which the baseline was taken.

        `known` is what they said of the same files before; a test that is red only here is tried once more.
        Programs in it speak to `inside`, which the attempt pays.
        """

        def show(check: str, stream: Stream, data: bytes) -> None:
            self.journal.show(CommandOutput(attempt, check, stream, decode(data)))

        async with self._open() as sandbox:
            await self.restore(sandbox, commit)
            setup, cpus = self.setup, self.services.quota.cpus
            with setup.inside.paid(sandbox.info.id, attempt, inside):
                return await run_proof(
                    sandbox, setup.checks, show, baseline=setup.baseline, known=known, cpus=cpus
                )

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Sandbox]:
        setup = self.setup
        inside = setup.inside.model
        async with self.services.open(setup.request, setup.template, self.journal, inside) as sandbox:
            yield sandbox

    async def _opened(self, sandbox: Sandbox, attempt: int) -> None:
        info = sandbox.info
        await self.journal.append(SandboxOpened(info.id, info.isolation, attempt, info.template))
        self._open_now[attempt] = info.id
