"""The story of one run: fetch, rules, sandbox, baseline, attempts, delivery, and again for each later round.

Everything needed to resume after a crash is in the log; steps that the log already has are skipped.
"""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.baseline import BaselineLog
from cloister.agent.roles import Adviser, classify, known_kind
from cloister.core.attempts import ForkedFrom, wishes
from cloister.core.errors import (
    Bug,
    CloisterError,
    Fenced,
    HostError,
    UserError,
    lack_of,
    sole,
)
from cloister.core.events import (
    AttemptEnded,
    BaseFixed,
    PolicyFixed,
    Progress,
    RunAdmitted,
    RunClaimed,
    RunFinished,
    RunResumed,
    StopRequested,
)
from cloister.core.ids import RunId
from cloister.core.log import Journal, attachments_of, pictures_of, rebase_due, round_start
from cloister.core.requests import FurtherRepository, NewRun
from cloister.core.system import in_thread
from cloister.forge.api import Base
from cloister.model.api import Models
from cloister.runs.attempts.base import BaseSandbox, phase
from cloister.runs.attempts.context import InsideModels, RunSetup
from cloister.runs.attempts.manager import Attempts
from cloister.runs.environments.layers import Site, set_up
from cloister.runs.run_rules import (
    AllowedModels,
    check_allowed,
    every_name,
    govern,
    parts_of,
    reachable,
    run_layer,
)
from cloister.runs.services import RunServices
from cloister.runs.templates import known_baseline
from cloister.sandbox.api import Report
from cloister.sandbox.templates.building import Built

logger = logging.getLogger(__name__)


async def drive_run(services: RunServices, journal: Journal, run: RunId) -> None:
    """Drive the newest round of the run to its `RunFinished`.

    Cancelled from outside, it appends only the cost of a model call that was cut off: another owner resumes the run.
    Raises `Fenced` if another owner has claimed the run, and an error of which `lack_of` knows the reason when the
    disk is full or the cluster is away: the run can be driven again later.
    """
    ending: RunFinished | CloisterError | None = None
    driver = _Driver(services, journal, run)
    async with services.repositories.working(run):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_on_stop, journal, scope)
                ending = await driver.drive()
                tasks.cancel_scope.cancel()
        if isinstance(ending, CloisterError):
            raise ending
        # Without an ending, a person's stop cancelled the scope; the work up to the last save point is kept.
        await journal.append(ending or await driver.stopped())


def _stop_request(journal: Journal, after: int) -> StopRequested | None:
    found = (e.body for e in journal.events[after:] if isinstance(e.body, StopRequested))
    return next(found, None)


async def _cancel_on_stop(journal: Journal, scope: anyio.CancelScope) -> None:
    seen = round_start(journal.events)
    while _stop_request(journal, seen) is None:
        seen = len(journal.events)
        await journal.changed(seen)
    scope.cancel()


async def _cut_short(services: RunServices, journal: Journal, run: RunId, ending: RunFinished) -> RunFinished:
    """End a run early: its last save point becomes the change, undelivered."""
    from cloister.runs.delivery import make_result  # noqa: PLC0415  (slow to load, and first needed after the first request)

    try:
        await make_result(services, journal, run, None)
    except Fenced:
        raise
    except CloisterError as error:
        if lack_of(error):
            raise
        why = f"{ending.reason} The work so far could not be kept: {error.message}"
        return msgspec.structs.replace(ending, reason=why)
    return ending


class _Driver:
    """Drives one round of one run. The methods below `drive` come in the order in which they happen."""

    def __init__(self, services: RunServices, journal: Journal, run: RunId) -> None:
        self._services = services
        self._journal = journal
        self._run = run
        self._bare = Path()
        """The run's own repository, once the round has begun."""
        self._inside = InsideModels()

    async def drive(self) -> RunFinished | CloisterError:
        """Return the end of the round, or why it cannot go on now. Any other error becomes the reason of the end."""
        try:
            winner = await self._round()
            return RunFinished(winner.outcome, winner.reason, winner.attempt)
        except Exception as error:
            cause = sole(error)
            if isinstance(cause, Fenced):
                return cause
            if full := await self._services.lack(error):
                return HostError("no_disk", full)
            if isinstance(cause, CloisterError):
                ending = RunFinished("failed", cause.message, blame=cause.blame)
            else:
                logger.exception("run %s failed", self._run)
                why = f"An internal error ended the run: {type(cause).__name__}."
                ending = RunFinished("failed", why, blame="bug")
            try:
                return await _cut_short(self._services, self._journal, self._run, ending)
            except CloisterError as failure:
                return failure

    async def stopped(self) -> RunFinished:
        """Return the end of a round that a person stopped."""
        stop = _stop_request(self._journal, round_start(self._journal.events))
        ending = RunFinished("stopped", f"Stopped by {stop.who if stop else 'a person'}.")
        return await _cut_short(self._services, self._journal, self._run, ending)

    async def _round(self) -> AttemptEnded:
        events = self._journal.events
        admitted = events[0].body
        assert isinstance(admitted, RunAdmitted)  # noqa: S101  (event 1 by the backbone's contract)
        self._bare = await self._services.repositories.open(self._run)
        start = round_start(events)
        if sum(isinstance(event.body, RunClaimed) for event in events[start:]) > 1:
            await self._journal.append(RunResumed(events[-1].seq))
        async with AsyncExitStack() as opened:
            unpaid = await opened.enter_async_context(self._services.models(admitted.request))
            base = await self._fetch(admitted)
            await self._keep_attachments(admitted.request)
            request = await self._fix_rules(admitted.request, base, unpaid)
            models = self._paid(unpaid, request)
            if kind := await self._kind(request, models):
                request = msgspec.structs.replace(request, kind=kind)
                unpaid = await opened.enter_async_context(self._services.models(request))
                check_allowed(self._services.policy, models=every_name(unpaid))
                models = self._paid(unpaid, request)
            winner = await self._work(request, base, models)
            from cloister.runs.delivery import make_result  # noqa: PLC0415

            async with phase(self._journal, "change"):
                await make_result(self._services, self._journal, self._run, winner)
        return winner

    async def _keep_attachments(self, request: NewRun) -> None:
        """Have the files of all prompts with the run, those of the run that it continues included."""
        events = self._journal.events
        taken = (one for all in pictures_of(events).values() for one in all)
        if given := (*attachments_of(events), *taken):
            others = () if request.forked_from is None else (request.forked_from.run,)
            await in_thread(self._services.attachments.keep, self._run, given, *others)

    # Fetch.

    async def _fetch(self, admitted: RunAdmitted) -> BaseFixed:
        if (base := self._journal.index.last(BaseFixed)) is not None:
            return await self._rebase(admitted.request, base)
        request = admitted.request
        self._bare.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if request.forked_from is not None:
            return await self._inherit(admitted, request.forked_from)
        found = await self._bring(request, request.repositories)
        base = BaseFixed(found.commit, found.branch, found.note, found.parts)
        await self._journal.append(base)
        return base

    async def _bring(self, request: NewRun, wanted: Sequence[FurtherRepository]) -> Base:
        async with phase(self._journal, "fetch"):
            above = await in_thread(self._services.rules.above, request.repo, parts_of(request))
            reach = reachable((*above, run_layer(request)))
            return await self._services.forges.bring_all(wanted, self._bare, reach)

    async def _rebase(self, request: NewRun, base: BaseFixed) -> BaseFixed:
        """Put the newest commit in the place of `base`, if the round asks for that."""
        events = self._journal.events
        asked = rebase_due(events)
        if asked is None:
            return base
        from cloister.runs.attempts.rebase import moved_base, moving  # noqa: PLC0415

        found = await self._bring(request, moving(events))
        await self._journal.append(*await moved_base(self._bare, events, found, asked.origin))
        return self._journal.index.last(BaseFixed) or base

    async def _inherit(self, admitted: RunAdmitted, origin: ForkedFrom) -> BaseFixed:
        """A forked run takes the base, the baseline and the conversation of its parent."""
        from cloister.runs.attempts.tree import copy_files, inheritance  # noqa: PLC0415

        events = await self._services.log(origin.run)
        point, inherited = inheritance(events, admitted.request, admitted.who)
        base = next((body for body in inherited if isinstance(body, BaseFixed)), None)
        if base is None:
            raise Bug("a save point without a base")
        async with phase(self._journal, "fetch"):
            parent = await self._services.repositories.open(origin.run)
            await copy_files(parent, point, base.commit, self._bare)
        await self._journal.append(*inherited)
        return base

    # Rules and models.

    async def _fix_rules(self, request: NewRun, base: BaseFixed, models: Models) -> NewRun:
        """Put the rules of every layer in force; return the request within their limits."""
        services = self._services
        governed = await govern(services.rules, request, services.quota, self._bare, base.commit)
        names = {services.harness(request, wish): None for wish in wishes(request)}
        harness = next(iter(names)) if len(names) == 1 else ""
        fixed = PolicyFixed(governed.layers, governed.limited, governed.request.budget, harness)
        await self._journal.append(fixed)
        check_allowed(governed.policy, tier=governed.request.tier, models=every_name(models), harnesses=names)
        self._services = replace(services, policy=governed.policy, quota=governed.quota)
        return governed.request

    def _paid(self, unpaid: Models, request: NewRun) -> BudgetedModels:
        """The models that the rules allow; each call is paid from the run's budget."""
        allowed = AllowedModels(unpaid, self._services.policy)
        return BudgetedModels(allowed, self._services.purse(request, self._journal))

    async def _kind(self, request: NewRun, models: BudgetedModels) -> str:
        """The kind of task, if the request names none and a model is configured to tell; asked once per run."""
        if request.kind is not None:
            return ""
        known = known_kind([event.body for event in self._journal.events])
        if known is not None:
            return known
        return await classify(Adviser(models, self._journal, 0), request.prompt, self._services.kinds)

    # Template, then the attempts, while the sandbox is made and the baseline is taken beside their first steps.

    async def _work(self, request: NewRun, base: BaseFixed, models: BudgetedModels) -> AttemptEnded:
        async with phase(self._journal, "template"):
            template = await self._template(request, base, self._report)
        results = BaselineLog(self._journal, request)
        warmed = known_baseline(template, base.commit, request.checks)
        if results.known is None and warmed is not None:
            await results.choose(warmed[0])
            await results.record(warmed[1], known=True)
        elif request.checks and results.checks is None:
            await results.choose(request.checks)
        setup = RunSetup(
            run=self._run,
            request=request,
            base=base.commit,
            places=tuple(part.folder for part in base.parts),
            bare=self._bare,
            models=models,
            inside=self._inside,
            results=results,
            template=template.name,
            earlier=template.about.baseline,
        )
        held = BaseSandbox(self._services, self._journal, setup, template.about.commit)
        attempts = Attempts(self._services, self._journal, setup, held)
        held.alone = attempts.alone
        ended: tuple[AttemptEnded, ...] = ()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(held.hold)
            async with phase(self._journal, "work"):
                ended = await attempts.run()
            held.done()
        from cloister.runs.attempts.ranking import choose_winner  # noqa: PLC0415

        winner = await choose_winner(self._journal, setup, ended)
        from cloister.runs.environments.pictures import picture_pages  # noqa: PLC0415

        await picture_pages(self._services, self._journal, setup, winner)
        return winner

    def _report(self, fraction: float | None, note: str) -> None:
        self._journal.show(Progress("template", fraction, note))

    async def _template(self, request: NewRun, base: BaseFixed, report: Report) -> Built:
        """The environment of the run, built if necessary. Raises `UserError` (`no_git`, `unknown_template`)."""
        warming = self._services.warming
        template = await warming.workshop.prepare(await warming.choose(request), report)
        if not template.about.git:
            raise UserError("no_git", f"The template {template.name} has no git: install git in its image.")
        site = Site(request.repo, self._bare, base.commit)
        return await set_up(self._services, self._journal, request, site, template, report)
