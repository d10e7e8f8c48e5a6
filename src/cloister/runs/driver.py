"""One run from its first event to its last: fetch, open, clone, baseline, work, change.

Everything it needs to know to go on after a crash is in the log; what is there is not done again.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import msgspec

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.run_checks import find_checks, run_on_base
from cloister.agent.roles import Adviser, classify, known_kind
from cloister.core.attempts import ForkedFrom
from cloister.core.computer import Computer, Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import Bug, CloisterError, Fenced, SandboxLost, UserError, sole
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    ChecksChosen,
    CommandOutput,
    Phase,
    PhaseEnded,
    PhaseStarted,
    PolicyFixed,
    Progress,
    RunAdmitted,
    RunClaimed,
    RunFinished,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
    StopRequested,
)
from cloister.core.ids import RunId
from cloister.core.log import Journal
from cloister.core.requests import NewRun
from cloister.core.text import decode
from cloister.feedback.compare import compare
from cloister.feedback.goals import asked
from cloister.forge import workspace
from cloister.model.api import Models
from cloister.runs.attempts.context import Course, Inside
from cloister.runs.attempts.manager import Attempts
from cloister.runs.attempts.ranking import choose_winner
from cloister.runs.attempts.tree import copy_files, inheritance
from cloister.runs.delivery import bare_repository, check_kept, make_result
from cloister.runs.run_rules import AllowedModels, check_allowed, every_name, govern
from cloister.runs.services import Means
from cloister.runs.templates import known_baseline
from cloister.sandbox.api import Report, Sandbox
from cloister.sandbox.templates.building import Built

Known = tuple[tuple[str, ...], tuple[Diagnosis, ...]]
"""Checks, and what they said on the base."""

logger = logging.getLogger(__name__)

_LIVES = 3
"""Sandboxes that may be lost before the first attempt begins."""


class _Spent(Exception):
    """The time is over before the work could begin."""


async def conduct(means: Means, journal: Journal, run: RunId) -> None:
    """Drive the run to `RunFinished`. Cancelled from outside it appends nothing but what a call that was cut off took:
    another owner goes on.

    Raises `Fenced` when the run has another owner by now; nothing else.
    """
    ending: RunFinished | Fenced | None = None
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_when_asked, journal, scope)
            ending = await _Conductor(means, journal, run).guarded()
            tasks.cancel_scope.cancel()
    if isinstance(ending, Fenced):
        raise ending
    # Without an ending a person's stop ended the scope; the work up to the last save point is kept.
    await journal.append(ending or await _stopped(means, journal, run))


async def _stop_when_asked(journal: Journal, scope: anyio.CancelScope) -> None:
    seen = 0
    while True:
        events = journal.events
        if any(isinstance(event.body, StopRequested) for event in events[seen:]):
            scope.cancel()
            return
        seen = len(events)
        await journal.changed(seen)


async def _stopped(means: Means, journal: Journal, run: RunId) -> RunFinished:
    who = next(e.body.who for e in journal.events if isinstance(e.body, StopRequested))
    return await _cut_short(means, journal, run, RunFinished("stopped", f"Stopped by {who}."))


async def _cut_short(means: Means, journal: Journal, run: RunId, ending: RunFinished) -> RunFinished:
    """The end of a run that did not get to its own: what it had saved becomes its change, undelivered."""
    try:
        await make_result(means, journal, run, None)
    except Fenced:
        raise
    except CloisterError as error:
        why = f"{ending.reason} What it had done could not be kept: {error.message}"
        return msgspec.structs.replace(ending, reason=why)
    return ending


def _wanted(admitted: RunAdmitted, baseline: tuple[Diagnosis, ...]) -> Comparison:
    """The base against itself: what of it the run was asked to mend."""
    request = admitted.request
    return compare(baseline, baseline, asked(request.prompt, baseline, request.checks, request.asked))


class _Conductor:
    def __init__(self, means: Means, journal: Journal, run: RunId) -> None:
        self._means = means
        self._journal = journal
        self._run = run
        self._bare = bare_repository(means.data_dir, run)
        self._inside = Inside()

    async def guarded(self) -> RunFinished | Fenced:
        """Run it; whatever goes wrong becomes the reason of the run's end."""
        try:
            return await self._conduct()
        except Exception as error:
            cause = sole(error)
            if isinstance(cause, Fenced):
                return cause
            if isinstance(cause, _Spent):
                ending = RunFinished("budget", str(cause))
            elif isinstance(cause, CloisterError):
                ending = RunFinished("failed", cause.message, blame=cause.blame)
            else:
                logger.exception("run %s failed", self._run)
                why = f"An internal error ended the run: {type(cause).__name__}."
                ending = RunFinished("failed", why, blame="bug")
            return await _cut_short(self._means, self._journal, self._run, ending)

    async def _conduct(self) -> RunFinished:
        events = self._journal.events
        admitted = events[0].body
        assert isinstance(admitted, RunAdmitted)  # noqa: S101  (event 1 by the backbone's contract)
        if sum(isinstance(event.body, RunClaimed) for event in events) > 1:
            await self._journal.append(RunResumed(events[-1].seq))
        async with AsyncExitStack() as opened:
            unpaid = await opened.enter_async_context(self._means.models(admitted.request))
            base = await self._fetch(admitted)
            admitted = await self._govern(admitted, base, unpaid)
            models = self._paid(unpaid, admitted.request)
            if kind := await self._kind(admitted.request, models):
                request = msgspec.structs.replace(admitted.request, kind=kind)
                unpaid = await opened.enter_async_context(self._means.models(request))
                check_allowed(self._means.policy, models=every_name(unpaid))
                admitted, models = (
                    msgspec.structs.replace(admitted, request=request),
                    self._paid(unpaid, request),
                )
            winner = await self._attempts(admitted, base, models)
            async with self._phase("change"):
                await make_result(self._means, self._journal, self._run, winner)
        return RunFinished(winner.outcome, winner.reason, winner.attempt)

    def _paid(self, unpaid: Models, request: NewRun) -> BudgetedModels:
        """Models that the rules allow, and that pay."""
        allowed = AllowedModels(unpaid, self._means.policy)
        return BudgetedModels(allowed, self._means.purse(request, self._journal))

    async def _kind(self, request: NewRun, models: BudgetedModels) -> str:
        """The kind of task, if the request says nothing of it and somebody is named to tell; asked once."""
        if request.kind is not None:
            return ""
        known = known_kind([event.body for event in self._journal.events])
        if known is not None:
            return known
        return await classify(Adviser(models, self._journal, 0), request.prompt, self._means.kinds)

    async def _attempts(self, admitted: RunAdmitted, base: BaseFixed, models: BudgetedModels) -> AttemptEnded:
        """Open the sandbox and work in it; one that is lost before any attempt began is opened again."""
        for life in range(_LIVES):
            try:
                async with self._sandbox(admitted, models) as (sandbox, template):
                    return await self._work(admitted, base, models, sandbox, template)
            except Exception as error:
                cause = sole(error)
                begun = any(isinstance(event.body, AttemptStarted) for event in self._journal.events)
                if not isinstance(cause, SandboxLost) or begun or life == _LIVES - 1:
                    raise
                await self._journal.append(RunResumed(self._journal.events[-1].seq))
        raise Bug("a run without a life")

    async def _fetch(self, admitted: RunAdmitted) -> BaseFixed:
        for event in self._journal.events:
            if isinstance(event.body, BaseFixed):
                return event.body
        request = admitted.request
        self._bare.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if request.forked_from is not None:
            return await self._inherit(admitted, request.forked_from)
        async with self._phase("fetch"):
            found = await self._means.forge.fetch(request.repo, request.ref, self._bare)
        base = BaseFixed(found.commit, found.branch, found.note)
        await self._journal.append(base)
        return base

    async def _govern(self, admitted: RunAdmitted, base: BaseFixed, models: Models) -> RunAdmitted:
        """From here on the rules of every layer hold; returns the request with what it really gets."""
        means = self._means
        governed = await govern(means.rules, admitted.request, means.quota, self._bare, base.commit)
        await self._journal.append(PolicyFixed(governed.layers, governed.limited))
        check_allowed(governed.policy, tier=governed.request.tier, models=every_name(models))
        self._means = replace(means, policy=governed.policy, quota=governed.quota)
        return msgspec.structs.replace(admitted, request=governed.request)

    async def _inherit(self, admitted: RunAdmitted, origin: ForkedFrom) -> BaseFixed:
        """A forked run has the base, the baseline and the conversation of the run that it goes on from."""
        events = await self._means.log(origin.run)
        point, inherited = inheritance(events, admitted.request, admitted.who)
        base = next((body for body in inherited if isinstance(body, BaseFixed)), None)
        if base is None:
            raise Bug("a save point without a base")
        async with self._phase("fetch"):
            check_kept(self._means.data_dir, origin.run)
            parent = bare_repository(self._means.data_dir, origin.run)
            await copy_files(parent, point, base.commit, self._bare)
        await self._journal.append(*inherited)
        return base

    @asynccontextmanager
    async def _sandbox(
        self, admitted: RunAdmitted, models: BudgetedModels
    ) -> AsyncGenerator[tuple[Sandbox, Built]]:
        def report(fraction: float | None, note: str) -> None:
            self._journal.show(Progress("template", fraction, note))

        async with self._phase("template"):
            template = await self._template(admitted.request, report)
        await self._journal.append(PhaseStarted("create"))
        started = anyio.current_time()
        opening = self._means.open(admitted.request, template.name, self._journal, self._inside.model)
        async with opening as sandbox:
            opened = SandboxOpened(sandbox.info.id, sandbox.info.isolation, template=template.name)
            await self._journal.append(PhaseEnded("create", anyio.current_time() - started), opened)
            # `auto` is known only now, and nothing is in the sandbox yet.
            check_allowed(self._means.policy, tier=sandbox.info.isolation.tier)
            with self._inside.paid(sandbox.info.id, None, models.for_programs_inside()):
                yield sandbox, template
        await self._journal.append(SandboxClosed(sandbox.info.id, "the run has what it needs"))

    async def _template(self, request: NewRun, report: Report) -> Built:
        """What the run starts from, built if need be. Raises `UserError` (`no_git`, `unknown_template`)."""
        warming = self._means.warming
        template = await warming.workshop.prepare(await warming.choose(request), report)
        if not template.about.git:
            raise UserError(
                "no_git",
                f"The template {template.name} has no git, which a run needs: put it into its image.",
            )
        return template

    async def _work(
        self,
        admitted: RunAdmitted,
        base: BaseFixed,
        models: BudgetedModels,
        sandbox: Sandbox,
        template: Built,
    ) -> AttemptEnded:
        async with self._phase("clone"):
            await workspace.sync(sandbox, self._bare, template.about.commit, base.commit)
        checks, baseline = await self._baseline(
            admitted, sandbox, known_baseline(template, base.commit, admitted.request.checks)
        )
        course = Course(
            run=self._run,
            # Whatever else is opened is of the tier that the rules were asked about.
            request=msgspec.structs.replace(admitted.request, tier=sandbox.info.isolation.tier),
            base=base.commit,
            bare=self._bare,
            models=models,
            inside=self._inside,
            checks=checks,
            baseline=baseline,
            template=template.name,
        )
        async with self._phase("work"):
            ended = await Attempts(self._means, self._journal, course, sandbox).run()
            return await choose_winner(self._journal, course, ended)

    async def _baseline(
        self, admitted: RunAdmitted, computer: Computer, known: Known | None
    ) -> tuple[tuple[str, ...], tuple[Diagnosis, ...]]:
        checks: tuple[str, ...] | None = None
        for event in self._journal.events:
            match event.body:
                case ChecksChosen() as body:
                    checks = body.checks
                case BaselineTaken() as body:
                    return checks or (), body.diagnoses
                case _:
                    pass
        seconds = admitted.request.budget.seconds
        async with self._phase("baseline"):
            named = admitted.request.checks
            if known is not None:
                taken = BaselineTaken(known[1], known=True, comparison=_wanted(admitted, known[1]))
                await self._journal.append(ChecksChosen(known[0], found=not named), taken)
                return known
            checks = named or await find_checks(computer)
            await self._journal.append(ChecksChosen(checks, found=not named))
            with anyio.move_on_after(seconds) as patience:
                cpus = self._means.quota.cpus
                found = await run_on_base(computer, checks, "baseline", self._show, cpus=cpus)
                await self._journal.append(BaselineTaken(found, comparison=_wanted(admitted, found)))
                return checks, found
        assert patience.cancelled_caught  # noqa: S101  (the block above returns)
        raise _Spent(f"The budget of {seconds:g} seconds was spent before the checks had run once.")

    def _show(self, check: str, stream: Stream, data: bytes) -> None:
        self._journal.show(CommandOutput(0, check, stream, decode(data)))

    @asynccontextmanager
    async def _phase(self, phase: Phase) -> AsyncGenerator[None]:
        await self._journal.append(PhaseStarted(phase))
        started = anyio.current_time()
        yield
        await self._journal.append(PhaseEnded(phase, anyio.current_time() - started))
