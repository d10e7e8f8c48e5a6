"""The setup and the sandboxes of attempts: forks of the warm one, fresh ones after a loss, and those for proofs."""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.baseline import BaselineLog, Proof
from cloister.agent.evidence.permission import Permitted, any_permitted, permitted
from cloister.agent.evidence.run_checks import Earlier, Shards
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Diagnosis
from cloister.core.events import CommandOutput, Progress, SandboxClosed, SandboxOpened
from cloister.core.ids import RunId, SandboxId
from cloister.core.log import Journal
from cloister.core.repository import FILES, read_settings
from cloister.core.requests import NewRun, TierName
from cloister.core.text import decode
from cloister.egress.model_endpoint.api import InsideModel
from cloister.forge import change, workspace
from cloister.forge.modules import check_moved
from cloister.forge.read import read_file
from cloister.forge.several import check_placed, folders_at
from cloister.forge.workspace import TreeWatch
from cloister.policy.api import Policy
from cloister.runs.environments.layers import SetUp, Site
from cloister.runs.run_rules import check_change
from cloister.runs.services import RunServices, noting
from cloister.sandbox.api import Sandbox


class Base(Protocol):
    """The sandbox with the untouched base."""

    @property
    def tier(self) -> TierName | None:
        """How it is isolated, once it is open."""
        ...

    async def ready(self) -> Sandbox: ...


class InsideModels:
    """The model of each sandbox for the programs inside, and the attempt that pays; without a payer there is no model."""

    def __init__(self) -> None:
        self._payers: dict[SandboxId, tuple[int | None, InsideModel]] = {}

    def model(self, sandbox: SandboxId) -> InsideModel | None:
        """The model for programs in `sandbox`."""
        payer = self._payers.get(sandbox)
        return None if payer is None else payer[1]

    @contextmanager
    def paid(self, sandbox: SandboxId, attempt: int | None, model: InsideModel) -> Generator[None]:
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
    results: BaselineLog
    """The checks and their results on the base, as far as the log has them."""
    template: str = "default"
    earlier: tuple[Diagnosis, ...] = ()
    """What the checks said when the template was warmed, perhaps on another commit."""
    places: tuple[str, ...] = ()
    """The folders of the repositories of the base, if it holds several."""


async def kept_patterns(bare: Path, base: str) -> tuple[str, ...]:
    """The ignored files that the settings of `base` name."""

    async def of(folder: str) -> tuple[str, ...]:
        texts = {name: decode(await read_file(bare, base, f"{folder}{name}") or b"") for name in FILES}
        return tuple(f"{folder}{pattern}" for pattern in read_settings(texts).keep)

    inside = await folders_at(bare, base)
    return tuple([pattern for folder in ("", *inside) for pattern in await of(folder and f"{folder}/")])


@dataclass(slots=True)
class SavedFiles:
    """The repository inside one sandbox and the ref of its save points."""

    computer: Computer
    setup: RunSetup
    attempt: int
    policy: Policy
    _look: TreeWatch = field(init=False)
    _keep: tuple[str, ...] | None = field(init=False, default=None)
    """Patterns of ignored files that the base's settings name; None before they are read."""

    def __post_init__(self) -> None:
        self._look = TreeWatch(self.computer, self.setup.bare, self.setup.base)

    async def tree(self) -> str:
        return await self._look.tree()

    async def save(self) -> str:
        ref = f"refs/cloister/attempt/{self.attempt}"
        setup = self.setup
        kept = await self.kept()
        return await workspace.save(self.computer, setup.bare, setup.base, ref, check=self._permit, kept=kept)

    async def kept(self) -> str:
        """A name for the ignored files that save points keep; empty without any."""
        if self._keep is None:
            self._keep = await kept_patterns(self.setup.bare, self.setup.base)
        return await workspace.list_kept(self.computer, self._keep) if self._keep else ""

    async def _permit(self, commit: str) -> None:
        await check_change(self.policy, self.setup.bare, self.setup.base, commit)

    async def judge(self, commit: str) -> None:
        """Raises `UserError` if a rule denies a path of the change (`denied`), and for what no commit could hold.

        That is an edit inside a submodule (`submodule_moved`, `submodule_edited`), and of several repositories one
        that is in none of them (`outside_repositories`).
        """
        setup = self.setup
        await self._permit(commit)
        await check_moved(setup.bare, setup.base, commit)
        await check_placed(setup.bare, setup.base, commit, setup.places)
        await workspace.check_modules(self.computer, setup.bare, setup.base, commit)

    async def contents(self, commit: str) -> dict[str, str]:
        return await change.contents(self.setup.bare, self.setup.base, commit)

    async def difference(self, commit: str, paths: Sequence[str]) -> str:
        return await change.diff(self.setup.bare, self.setup.base, commit, paths=paths)


@dataclass(frozen=True, slots=True)
class AttemptSandboxes:
    """The sandboxes of one run's attempts."""

    services: RunServices
    journal: Journal
    setup: RunSetup
    base: Base
    """Several attempts work in forks of its sandbox, a single one in it."""

    _open_now: dict[int, SandboxId] = field(default_factory=dict[int, SandboxId])
    """Attempt → its open sandbox, as the log has it."""

    @asynccontextmanager
    async def fork(self, attempt: int) -> AsyncGenerator[Sandbox]:
        """A fork of the sandbox with the base. Concurrent forks may share one moment."""
        async with noting((await self.base.ready()).fork(), self.journal) as sandbox:
            await self._opened(sandbox, attempt)
            yield sandbox
        await self.gone(attempt, f"attempt {attempt} ended")

    @asynccontextmanager
    async def fresh(self, attempt: int, commit: str) -> AsyncGenerator[Sandbox]:
        """A new sandbox with the files of `commit`."""
        async with self._open() as sandbox:
            await self._opened(sandbox, attempt)
            await self.resume(sandbox, commit)
            yield sandbox
        await self.gone(attempt, f"attempt {attempt} ended")

    @asynccontextmanager
    async def helper(self, of: Sandbox, attempt: int) -> AsyncGenerator[Sandbox]:
        """A fork of an attempt's sandbox for a helper."""
        async with noting(of.fork(), self.journal) as sandbox:
            await self._opened(sandbox, attempt)
            yield sandbox
        await self.gone(attempt, f"helper {attempt} is done")

    async def gone(self, attempt: int, why: str) -> None:
        """Record that the sandbox of an attempt, if it had one, is destroyed."""
        sandbox = self._open_now.pop(attempt, None)
        if sandbox is not None:
            await self.journal.append(SandboxClosed(sandbox, why))

    async def restore(self, sandbox: Sandbox, commit: str) -> None:
        """Put the files of `commit` in place. A proof has no others: what is ignored is no part of the change."""
        await workspace.restore(sandbox, self.setup.bare, self.setup.base, commit)

    async def resume(self, sandbox: Sandbox, commit: str) -> None:
        """As `restore`, with the ignored files that the save point keeps."""
        await self.restore(sandbox, commit)
        await workspace.restore_kept(sandbox, self.setup.bare, commit)

    async def prove(self, attempt: int, inside: InsideModel, commit: str, known: Earlier) -> Proof:
        """Run the checks on `commit` in a sandbox like that of the baseline, which may run at the same time.

        `known` has earlier results; a test that is red only here is run once more.
        Programs inside may call the model `inside`, which the attempt pays.
        """

        from cloister.agent.evidence.proof import Task, run_proof  # noqa: PLC0415  (slow to load, and first needed after the first request)

        def show(check: str, stream: Stream, data: bytes) -> None:
            self.journal.show(CommandOutput(attempt, check, stream, decode(data)))

        def report(fraction: float | None, note: str) -> None:
            self.journal.show(Progress("template", fraction, note))

        setup, cpus = self.setup, self.services.quota.cpus
        own, site = self._own_setup(commit)
        async with (
            own.proving(setup.base, site, setup.template, report) as template,
            self._open(template) as sandbox,
        ):
            await self.restore(sandbox, commit)
            allowed, given = setup.request.allow_test_changes, Permitted()
            if any_permitted(self.journal.index):
                given = permitted(self.journal.index, await change.contents(setup.bare, setup.base, commit))
            await setup.results.chosen()
            checks, baseline, goals = setup.results.so_far
            later = None if setup.results.known else setup.results.ready
            shards = Shards(lambda: noting(sandbox.fork(), self.journal), baseline or setup.earlier)
            task = Task(checks, baseline, known, goals, allowed, cpus, shards, later, given)
            with setup.inside.paid(sandbox.info.id, attempt, inside):
                return await run_proof(sandbox, task, show)

    async def proves_elsewhere(self, commit: str) -> bool:
        """True if the change touches what the attempt's environment was made from."""
        own, site = self._own_setup(commit)
        return await own.is_touched(self.setup.base, site, self.setup.template)

    def _own_setup(self, commit: str) -> tuple[SetUp, Site]:
        setup = self.setup
        site = Site(setup.request.repo, setup.bare, commit)
        return SetUp(self.services, self.journal, setup.request), site

    @asynccontextmanager
    async def _open(self, template: str | None = None) -> AsyncGenerator[Sandbox]:
        setup = self.setup
        # With the tier that the rules were asked about.
        request = msgspec.structs.replace(setup.request, tier=self.base.tier or setup.request.tier)
        named = template or setup.template
        async with self.services.open(request, named, self.journal, setup.inside.model) as sandbox:
            yield sandbox

    async def _opened(self, sandbox: Sandbox, attempt: int) -> None:
        info = sandbox.info
        await self.journal.append(SandboxOpened(info.id, info.isolation, attempt, info.template))
        self._open_now[attempt] = info.id
