"""The verbs of runs in this process. Modules that load slowly are imported by the verbs that need them."""

# ruff: noqa: PLC0415

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import structs

from cloister.app.tokens import RANK
from cloister.app.verbs.api import RunVerbs, no_report
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.records import Admitted, ChangePack, RunWish
from cloister.core import limits
from cloister.core.addresses import check_address
from cloister.core.errors import HostError, UserError
from cloister.core.events import (
    AskAnswered,
    AskRaised,
    InterruptRequested,
    ModelChosen,
    PromptReceived,
    RewindRequested,
    RunFinished,
    StopRequested,
)
from cloister.core.log import request_of
from cloister.core.requests import check_new_run
from cloister.core.text import one_line
from cloister.log.api import RunFilter
from cloister.sandbox.store.api import shortage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from cloister.app.verbs.records import ForgeCheck
    from cloister.core.diagnosis import Diagnosis
    from cloister.core.events import ChangeDelivered, Delta, Event
    from cloister.core.ids import RunId
    from cloister.core.requests import NewRun, Origin, Outcome, State
    from cloister.log.api import RunCount, RunRow
    from cloister.policy.api import Policy
    from cloister.runs.attempts.compare import Compared, Subject
    from cloister.runs.attempts.tree import TreeView
    from cloister.runs.attempts.verify import Verified
    from cloister.runs.attempts.why import LineOrigin
    from cloister.runs.budget import BudgetReport
    from cloister.runs.delivery import Removed
    from cloister.runs.receipt import Receipt
    from cloister.runs.view import RunView
    from cloister.sandbox.api import Report

    Paused = TypeVar("Paused", RunRow, RunView)


@checked(RunVerbs)
class LocalRuns(Group):
    """Implements `RunVerbs`."""

    async def submit(self, new: NewRun) -> Admitted:
        if isinstance(new, RunWish):
            new = new.new_run(self._settings.file.budget)
        app = self._parts.app
        if app is None:
            raise HostError(
                "not_driven", "No process here drives runs. Start `cloister serve --background` first."
            )
        app.host.check_tier(new.tier)
        await self._check(new, app.workshop.templates.recipe)
        if new.pull_request:
            from cloister.runs.delivery import targets

            await targets(app.workshop.forges, new)
        run, made = await app.backbone.admit(new, self.caller.name)
        if made:
            app.supervisor.drive(run)
        return Admitted(run, made)

    async def list(
        self,
        limit: int = 100,
        before: str | None = None,
        state: State | None = None,
        outcome: Outcome | None = None,
        repo: str | None = None,
        who: str | None = None,
    ) -> tuple[RunRow, ...]:
        cursor = None if before is None else await self._log.resolve(before)
        only = RunFilter(state, outcome, repo, who)
        return tuple(self._with_pause(row) for row in await self._log.runs(limit, before=cursor, only=only))

    async def counts(self) -> tuple[RunCount, ...]:
        return await self._log.counts()

    async def row(self, run: str) -> RunRow:
        return self._with_pause(await self._log.row(await self._log.resolve(run)))

    async def view(self, run: str) -> RunView:
        from cloister.runs.view import fold

        return self._with_pause(fold(await self._events(run), time.time()))

    def _with_pause(self, run: Paused) -> Paused:
        """Add why a run waits for disk: the log does not say it of a queued run, nor while its own disk is full."""
        app, why = self._parts.app, None
        if run.state not in ("queued", "running"):
            return run
        if app is not None:
            short = app.supervisor.shortage
            why = app.supervisor.waits_for(run.id) or (short and run.state == "queued" and short.why)
        elif short := shortage(self._settings.data_dir):
            why = short.why if short.full or run.state == "queued" else None
        return structs.replace(run, state="paused", reason=why) if why else run

    async def events(
        self, run: str, after: int = 0, limit: int | None = None, attempt: int | None = None
    ) -> tuple[Event, ...]:
        if attempt is None:
            return await self._read(await self._log.resolve(run), after, limit)
        from cloister.runs.attempts.work import attempt_log

        found = attempt_log(await self._events(run), attempt)
        return tuple(event for event in found if event.seq > after)[:limit]

    @asynccontextmanager
    async def _follow(
        self, run: str, after: int, deltas: bool
    ) -> AsyncGenerator[AsyncIterator[Event | Delta]]:
        found = await self._log.resolve(run)
        async with self._log.follow(found, after, deltas=deltas) as items:
            yield items

    def follow(
        self, run: str, after: int = 0, *, deltas: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]:
        return self._follow(run, after, deltas)

    async def say(self, run: str, text: str, origin: Origin = "user") -> Event:
        if not text.strip():
            raise UserError("empty_message", "The message is empty.")
        if len(text.encode("utf-8", errors="replace")) > limits.PROMPT_BYTES:
            raise UserError("too_large", f"A message has at most {limits.PROMPT_BYTES:,} bytes.")
        row = await self.row(run)
        if finished := row.state == "finished":
            await self._parts.repositories.open(row.id)
        event = await self._log.append_outside(row.id, PromptReceived(text, self.caller.name, origin))
        if finished and self._parts.app is not None:
            self._parts.app.supervisor.drive(row.id)
        return event

    async def stop(self, run: str) -> Event:
        found = await self._log.resolve(run)
        return await self._log.append_outside(found, StopRequested(self.caller.name))

    async def interrupt(self, run: str) -> Event:
        found = await self._log.resolve(run)
        return await self._log.append_outside(found, InterruptRequested(self.caller.name))

    async def answer(self, run: str, ask: str | None, answer: Literal["allow", "deny"]) -> Event:
        """Anyone who may answer may deny; an approval needs the role that the rule names."""
        from cloister.runs.view import fold

        events = await self._events(run)
        pending = {each.ask: each for each in fold(events, time.time()).asks}
        if ask is None:
            ask = _only_one(events[0].run, pending)
        if ask not in pending:
            raise _not_asked(events, ask, tuple(pending))
        approver = pending[ask].approver
        if answer == "allow" and RANK[self.caller.role] < RANK[approver]:
            raise UserError("denied", f"Only the role {approver} may allow this: {pending[ask].rule}.")
        body = AskAnswered(ask, answer, self.caller.name, self.caller.role)
        return await self._log.append_outside(events[0].run, body)

    async def use_model(self, run: str, model: str) -> Event:
        from cloister.app.config import usual_model
        from cloister.runs.run_rules import check_allowed, run_layer

        events = await self._events(run)
        name, request = usual_model(self._settings, model), request_of(events)
        above = await self._rules_above(request.repo)
        check_allowed((*above, run_layer(request)), models=(name,))
        return await self._log.append_outside(events[0].run, ModelChosen(name, self.caller.name))

    async def fork(self, run: str, at: int | None = None, say: str | None = None) -> Admitted:
        from cloister.runs.attempts.tree import fork_request

        return await self.submit(fork_request(await self._events(run), at, say))

    async def rewind(self, run: str, to: int) -> RunId:
        from cloister.runs.attempts.tree import check_saved, rewindable

        events = await self._events(run)
        point = rewindable(events, to)
        if isinstance(events[-1].body, RunFinished):
            return (await self.fork(events[0].run, point.seq)).id
        await check_saved(await self._parts.repositories.open(events[0].run), point)
        await self._log.append_outside(events[0].run, RewindRequested(point.seq, self.caller.name))
        return events[0].run

    async def remove(self, run: str) -> Removed:

        from cloister.runs.delivery import remove_files

        row, started = await self.row(run), time.time()
        removed = await remove_files(self._parts.repositories, row.id, row.state, self.caller.name)
        if removed.at >= started:  # else they were removed before
            await self._note("RunRemoved", run=row.id)
        return removed

    async def diff(self, run: str, attempt: int | None = None) -> str:
        from cloister.runs.attempts.work import run_diff

        events = await self._events(run)
        return await run_diff(self._parts.repositories, events[0].run, events, attempt)

    async def why(self, run: str, path: str, line: int) -> LineOrigin:
        from cloister.runs.attempts.why import why

        events = await self._events(run)
        return await why(await self._parts.repositories.open(events[0].run), events, path, line)

    async def tree(self, run: str) -> TreeView:
        from cloister.runs.attempts.tree import tree

        return tree(await self._events(run))

    async def compare(self, a: str, b: str) -> Compared:
        from cloister.runs.attempts.compare import Subject, compare_runs, parse_subject

        async def subject(text: str) -> Subject:
            name, attempt = parse_subject(text)
            return Subject(await self._events(name), attempt)

        return await compare_runs(self._parts.repositories, await subject(a), await subject(b), time.time())

    async def change(self, run: str, have: str | None = None) -> ChangePack:
        from cloister.app.verbs.apply import pack_change

        return await pack_change(self._parts.repositories, await self._events(run), have)

    async def applied(self, run: str, where: str, branch: str) -> None:
        found = await self._log.resolve(run)
        await self._note("Applied", run=found, where=where, branch=branch)

    async def pull_request(self, run: str) -> ChangeDelivered:
        from cloister.app.forges import address_at_forge
        from cloister.policy.api import PushAction
        from cloister.policy.decide import Decider
        from cloister.runs.attempts.work import last_result
        from cloister.runs.delivery import delivery, propose
        from cloister.runs.run_rules import run_layer

        events = await self._events(run)
        winner, made = last_result(events)
        request = request_of(events)
        async with self._parts.machine() as app:
            forges = app.workshop.forges
            address = await address_at_forge(forges, request.repo)
            rules = (*await self._rules_above(request.repo), run_layer(request))
            decision = Decider(rules).decide(PushAction(address, f"refs/heads/{made.branch}"))
            if decision.effect == "deny":
                raise UserError("denied", f"A rule forbids the push: {one_line(decision.rule, 200)}.")
            proposal = await propose(self._parts.repositories, events, winner, made, address)
            sent = await forges.at(address).deliver(proposal)
        assert sent is not None  # noqa: S101 - a forge with pull requests takes every proposal
        done = delivery(sent)
        await self._note(
            "PullRequestOpened", run=events[0].run, where=done.where, branch=done.branch, url=done.url
        )
        return done

    async def verify(self, repo: str, ref: str, report: Report = no_report) -> Verified:
        from cloister.runs.attempts.verify import verify
        from cloister.runs.attempts.work import last_result

        if not repo:
            events = await self._events(ref)
            repo = str(await self._parts.repositories.open(events[0].run))
            ref = last_result(events)[1].commit
        elif problem := check_address(repo):
            raise UserError("bad_run", problem)
        async with self._parts.machine() as app:

            async def set_up(request: NewRun, said: Report) -> tuple[Diagnosis, ...]:
                made, found = await app.set_up(request, said, "")
                if made.problem:
                    raise HostError("no_environment", f"The environment cannot be set up: {made.problem}")
                return found

            found = await verify(app.workshop, set_up, repo, ref, report)
        await self._note("Verified", run=found.run, commit=found.commit, holds=found.holds)
        return found

    async def check_forge(self, repo: str) -> ForgeCheck:
        from cloister.app.forges import check_forge

        async with self._parts.machine() as app:
            return await check_forge(app.workshop.forges, repo)

    async def receipt(self, run: str) -> Receipt:
        from cloister.runs.receipt import receipt

        events = await self._events(run)
        finished = isinstance(events[-1].body, RunFinished)
        return receipt(events, await self._log.seal(events[0].run) if finished else None)

    async def receipt_page(self, run: str) -> str:
        from cloister.runs.receipt import page

        return page(await self.receipt(run))

    async def budget(self, run: str | None = None) -> BudgetReport:
        from cloister.runs.budget import BudgetReport, above, accounts, run_accounts

        tree, now = self._settings.file.budgets, time.time()
        if run is None:
            return BudgetReport(await self._log.totals(partial(accounts, tree, now)) or ())
        events = await self._events(run)
        outer = await self._log.totals(partial(above, tree, now, events[0].run)) or ()
        return BudgetReport((*outer, *run_accounts(events)))

    async def _events(self, run: str) -> tuple[Event, ...]:
        """The whole log of a run; it is never empty."""
        return await self._read(await self._log.resolve(run), 0, None)

    async def _read(self, run: RunId, after: int, limit: int | None) -> tuple[Event, ...]:
        if limit is not None:
            return await self._log.read(run, after, limit)
        events: tuple[Event, ...] = ()
        while page := await self._log.read(run, events[-1].seq if events else after):
            events += page
        return events

    async def _rules_above(self, repo: str) -> Policy:
        from anyio import to_thread

        from cloister.app.config import rule_files

        return await to_thread.run_sync(rule_files(self._settings).above, repo)

    async def _check(self, new: NewRun, recipe: Callable[[str], object]) -> None:
        """Raises `UserError` unless the request is complete and the rules, models and templates here allow it."""
        from cloister.agent.attempt import choose_harness
        from cloister.app.config import calls_models, harness_for, job_of, model_access
        from cloister.core.attempts import wishes
        from cloister.model.roles import Job, check_roles, chosen
        from cloister.runs.attempts.tree import check_fork
        from cloister.runs.run_rules import check_allowed, check_role, run_layer

        if problem := check_new_run(new):
            raise UserError("bad_run", problem)
        access = model_access(self._settings)
        harnesses = {harness_for(access, new, wish): None for wish in wishes(new)}
        for name in harnesses:
            choose_harness(name)
        models: tuple[str, ...] = ()
        if calls_models(access, new):
            check_roles(access, job_of(new))
            models = chosen(access, "code", job_of(new))
        recipe(new.template)
        above = await self._rules_above(new.repo)
        check_role(above, new, self.caller.role)
        check_allowed((*above, run_layer(new)), tier=new.tier, models=models, harnesses=harnesses)
        for wish in new.attempts:
            if wish.model is not None:
                chosen(access, "code", Job(new.repo, wish.model))
        if new.forked_from is not None:
            bare = await self._parts.repositories.open(new.forked_from.run)
            await check_fork(bare, await self._events(new.forked_from.run), new)


def _only_one(run: RunId, pending: dict[str, AskRaised]) -> str:
    if not pending:
        raise UserError("no_such_ask", f"Run {run} asks nothing now: it waits for no answer.")
    if len(pending) > 1:
        named = "; ".join(f"{ask} ({one_line(body.action, 60)})" for ask, body in pending.items())
        raise UserError("several_asks", f"Run {run} asks several questions, so name one: {named}.")
    return next(iter(pending))


def _not_asked(events: Sequence[Event], ask: str, pending: Sequence[str]) -> UserError:
    """Why `ask`, which is not pending, cannot be answered."""
    waiting = f"it waits for {', '.join(pending)}" if pending else "it waits for no answer"
    given = [
        each.body.answer for each in events if isinstance(each.body, AskAnswered) and each.body.ask == ask
    ]
    if given:
        return UserError("ask_answered", f"{ask[:64]} is answered already: {given[-1]}.")
    if any(isinstance(each.body, AskRaised) and each.body.ask == ask for each in events):
        return UserError("ask_answered", f"The deadline of {ask[:64]} has passed: {waiting}.")
    return UserError("no_such_ask", f"Run {events[0].run} never asked {ask[:64]!r}: {waiting}.")
