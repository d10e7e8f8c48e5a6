"""The sandbox with the base of a run, opened while the first request is under way, and the baseline in a fork of it."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from cloister.agent.evidence.baseline import take_baseline
from cloister.agent.evidence.run_checks import Shards, ShowCheck, find_checks, run_part
from cloister.agent.evidence.worktree import changed_between
from cloister.core.attempts import NATIVE, wishes
from cloister.core.computer import Stream
from cloister.core.diagnosis import Check, Diagnosis
from cloister.core.errors import Bug, CloisterError, Fenced, HostError, SandboxLost, UserError, sole
from cloister.core.events import (
    BaselineSampled,
    CommandOutput,
    FaultLocalised,
    Phase,
    PhaseEnded,
    PhaseStarted,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
)
from cloister.core.log import Journal, round_start
from cloister.core.requests import TierName
from cloister.core.text import decode
from cloister.feedback.affected import LONG_SECONDS, first
from cloister.feedback.experiments.select import only
from cloister.feedback.goals import mentioned
from cloister.forge import read, workspace
from cloister.harnesses.repair.observe import needed, observed
from cloister.runs.attempts.context import RunSetup
from cloister.runs.run_rules import check_allowed
from cloister.runs.services import RunServices, noting
from cloister.sandbox.api import Sandbox


def _only(names: Sequence[str], check: Check) -> str:
    """The command line for some test files; one that does nothing if the check cannot be restricted."""
    return only(check, names) or "true"


logger = logging.getLogger(__name__)

_LIVES = 3
"""Sandboxes that may be lost before the base is in one, and before the baseline is taken."""


@asynccontextmanager
async def phase(journal: Journal, name: Phase) -> AsyncGenerator[None]:
    """Record the start and, unless an error ends it, the end of a phase."""
    await journal.append(PhaseStarted(name))
    started = anyio.current_time()
    yield
    await journal.append(PhaseEnded(name, anyio.current_time() - started))


@dataclass(slots=True)
class BaseSandbox:
    """The sandbox that holds the untouched base: a single attempt works in it, several in forks of it."""

    services: RunServices
    journal: Journal
    setup: RunSetup
    warmed: str | None
    """The commit that the template has already."""
    alone: bool = True
    """True if an attempt works in the sandbox itself."""
    tier: TierName | None = field(init=False, default=None)
    """How the sandbox is isolated, once it is open."""
    _sandbox: Sandbox | None = field(init=False, default=None)
    _ready: anyio.Event = field(init=False, default_factory=anyio.Event)
    _done: anyio.Event = field(init=False, default_factory=anyio.Event)

    def use(self, sandbox: Sandbox) -> None:
        """The sandbox holds the base."""
        self.tier, self._sandbox = sandbox.info.isolation.tier, sandbox
        self._ready.set()

    async def ready(self) -> Sandbox:
        """Wait until the sandbox holds the base, and its baseline no longer needs it."""
        await self._ready.wait()
        if self._sandbox is None:
            raise Bug("a base without a sandbox")
        return self._sandbox

    def done(self) -> None:
        """The attempts have ended: close the sandbox, and cut the baseline off."""
        self._done.set()

    async def hold(self) -> None:
        """Open the sandbox, fork it for the baseline, and keep it until `done`. Open another one if it is lost first."""
        for life in range(_LIVES):
            try:
                async with self._open() as sandbox:
                    await self._serve(sandbox)
                await self.journal.append(SandboxClosed(sandbox.info.id, "the run has what it needs"))
                return
            except Exception as error:
                cause = sole(error)
                if not isinstance(cause, SandboxLost) or self._ready.is_set() or life == _LIVES - 1:
                    raise cause from None
                await self.journal.append(RunResumed(self.journal.events[-1].seq))

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Sandbox]:
        setup = self.setup
        await self.journal.append(PhaseStarted("create"))
        started = anyio.current_time()
        async with self.services.open(
            setup.request, setup.template, self.journal, setup.inside.model
        ) as sandbox:
            info = sandbox.info
            opened = SandboxOpened(info.id, info.isolation, template=setup.template)
            await self.journal.append(PhaseEnded("create", anyio.current_time() - started), opened)
            # Only now is it known which tier `auto` is; the sandbox is still empty.
            check_allowed(self.services.policy, tier=info.isolation.tier)
            yield sandbox

    async def _serve(self, sandbox: Sandbox) -> None:
        async with phase(self.journal, "clone"):
            await workspace.sync(sandbox, self.setup.bare, self.warmed, self.setup.base)
        async with anyio.create_task_group() as tasks:
            if self.setup.results.known is None:
                await tasks.start(self._baseline, sandbox)
            self.use(sandbox)
            tasks.start_soon(self._observe)
            await self._done.wait()
            tasks.cancel_scope.cancel()

    async def _baseline(
        self, sandbox: Sandbox, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
    ) -> None:
        """Take the baseline in a fork; if that is lost, in a new sandbox. Without forks, in the sandbox, before any work.

        Work begins when the files are copied: the fork may still have services to start.
        """
        copied = opened = False

        def begin() -> None:
            nonlocal copied
            if not copied:
                copied = True
                task_status.started()

        for life in range(_LIVES):
            try:
                journal = self.journal
                async with noting(sandbox.fork(begin), journal) if life == 0 else self._fresh() as place:
                    opened = True
                    begin()
                    await self._take(place, sandbox if self.alone else None)
                    return
            except (UserError, HostError):
                if opened or life == _LIVES - 1:
                    raise
                if not copied:
                    await self._take(sandbox, None)
                    begin()
                    return
            except Exception as error:
                if not copied or not isinstance(sole(error), SandboxLost) or life == _LIVES - 1:
                    raise
        raise Bug("a baseline without a life")

    @asynccontextmanager
    async def _fresh(self) -> AsyncGenerator[Sandbox]:
        setup = self.setup
        async with self.services.open(
            setup.request, setup.template, self.journal, setup.inside.model
        ) as sandbox:
            await workspace.sync(sandbox, setup.bare, self.warmed, setup.base)
            yield sandbox

    async def _observe(self) -> None:
        """Localise the fault for a model that needs it, in a sandbox with the base. The run goes on without it, too."""
        setup, services, journal = self.setup, self.services, self.journal
        found = await setup.results.ready()
        start = round_start(journal.events)
        known = any(isinstance(event.body, FaultLocalised) for event in journal.events[start:])
        others = {services.harness(setup.request, wish) for wish in wishes(setup.request)} - {NATIVE}
        if known or others or not any(one.failing for one in found.diagnoses):
            return
        await needed(journal, start)
        try:
            async with self._fresh() as place:
                localised = await observed(place, found.diagnoses)
        except Exception as error:
            cause = sole(error)
            if not isinstance(cause, CloisterError) or isinstance(cause, Fenced):
                raise
            logger.info("nothing was localised: %s", cause.message)
            return
        if localised is not None:
            await journal.append(localised)

    async def _sample(self, place: Sandbox, show: ShowCheck) -> None:
        """Of long suites, first run the tests that the task and what changed since the last set-up are about."""
        setup, journal = self.setup, self.journal
        before = [one for one in setup.earlier if one.seconds >= LONG_SECONDS]
        start = round_start(journal.events)
        if not before or any(isinstance(event.body, BaselineSampled) for event in journal.events[start:]):
            return
        checks = setup.results.checks
        if checks is None:
            checks = setup.request.checks or await find_checks(place)
            await setup.results.choose(checks)
        files = frozenset(await read.blobs(setup.bare, setup.base))
        changed = await changed_between(place, self.warmed or "", setup.base) or ()
        request, found = setup.request, list[Diagnosis]()
        for number, one in enumerate(one for one in before if one.check in checks):
            meant = mentioned(request.prompt, [test.name for test in one.tests], request.asked)
            if names := first(one, meant, changed, files):
                line = partial(_only, names)
                try:
                    async with noting(place.fork(), journal) as beside:
                        found.append(await run_part(beside, one.check, f"sample-{number}", show, line))
                except (UserError, HostError):
                    return  # no room for a fork: the whole suite tells
        if told := tuple(one for one in found if one.tests):
            await journal.append(BaselineSampled(told))

    async def _take(self, place: Sandbox, keep: Sandbox | None) -> None:
        def show(check: str, stream: Stream, data: bytes) -> None:
            self.journal.show(CommandOutput(0, check, stream, decode(data)))

        setup = self.setup
        with setup.inside.paid(place.info.id, None, setup.models.for_programs_inside()):
            async with phase(self.journal, "baseline"):
                await self._sample(place, show)
                cpus = self.services.quota.cpus
                shards = Shards(lambda: noting(place.fork(), self.journal), setup.earlier)
                await take_baseline(setup.results, place, show, cpus=cpus, keep=keep, shards=shards)
