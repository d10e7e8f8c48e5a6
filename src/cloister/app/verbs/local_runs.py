"""The verbs of runs in this process. Modules that load slowly are imported by the verbs that need them."""

# ruff: noqa: PLC0415

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import structs

from cloister.app.tokens import RANK
from cloister.app.verbs.api import RunVerbs
from cloister.app.verbs.declare import no_report
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.records import Admitted, ChangePack, RunWish
from cloister.core import limits
from cloister.core.addresses import check_address
from cloister.core.errors import HostError, UserError
from cloister.core.events import (
    AskAnswered,
    Event,
    InterruptRequested,
    ModelChosen,
    PauseRequested,
    PromptReceived,
    QuestionAnswered,
    ResumeRequested,
    RewindRequested,
    RunContinued,
    RunFinished,
    StopRequested,
)
from cloister.core.events.run import pause_reason
from cloister.core.log import Index, attachments_of, pictures_of, request_of
from cloister.core.requests import check_attachments, check_new_run
from cloister.core.system import in_thread
from cloister.core.text import one_line
from cloister.log.api import RunFilter
from cloister.log.attachments import Attachments
from cloister.log.sqlite.reader import no_such_run
from cloister.runs.event_text.questions import in_time, not_asked, only_one, question_of
from cloister.sandbox.store.api import shortage

KEY_CHARS = 100

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from cloister.app.overview import OverviewItem
    from cloister.app.verbs.records import ForgeCheck
    from cloister.core.diagnosis import Diagnosis
    from cloister.core.events import ChangeDelivered, Delta, FromOutside
    from cloister.core.ids import RunId
    from cloister.core.requests import Attachment, NewRun, Origin, Outcome, State
    from cloister.log.api import RunCount, RunRow
    from cloister.log.hub import Direct
    from cloister.policy.api import Policy
    from cloister.runs.attempts.compare import Compared, Subject
    from cloister.runs.attempts.tree import TreeView
    from cloister.runs.attempts.verify import Claim, Verified
    from cloister.runs.attempts.why import LineOrigin
    from cloister.runs.budget import BudgetReport
    from cloister.runs.delivery import Removal, Removed
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
        if not app.supervisor.elsewhere:
            app.host.check_tier(new.tier)
        await self._check(new, app.workshop.templates.recipe)
        if new.pull_request:
            from cloister.runs.delivery import targets

            await targets(app.workshop.forges, new)
        async with AsyncExitStack() as origin:
            if new.forked_from is not None:
                await origin.enter_async_context(self._parts.repositories.working(new.forked_from.run))
                await self._parts.repositories.open(new.forked_from.run)
            others = () if new.forked_from is None else (new.forked_from.run,)
            for other in others:
                await self.standing(other, "operator")
            await in_thread(self._attachments.check, new.attachments, *others)
            run, made = await app.backbone.admit(new, self.caller.name)
            await in_thread(self._attachments.keep, run, new.attachments, *others)
        app.supervisor.drive(run)  # also a known one that an earlier process left unfinished
        return Admitted(run, made)

    @property
    def _attachments(self) -> Attachments:
        return Attachments(self._settings.data_dir)

    async def attach(self, name: str, data: bytes) -> Attachment:
        made = await in_thread(self._attachments.put, name, data)
        if (app := self._parts.app) is not None and app.storage.files is not None:
            await app.storage.files.offer(made.sha256, self._attachments.waiting(made.sha256))
        await self._note("AttachmentStored", name=made.name, sha256=made.sha256, bytes=made.size)
        return made

    async def attachment(self, run: str, sha256: str) -> bytes:
        events = await self._events(run)
        taken = (one for all in pictures_of(events).values() for one in all)
        if any(one.sha256 == sha256 for one in (*attachments_of(events), *taken)):
            for _ in range(2):
                found = await in_thread(self._attachments.read, events[0].run, sha256)
                if found is not None:
                    return found
                with suppress(UserError):  # it was removed with the files of its run
                    await self._parts.repositories.open(events[0].run)  # another machine may have it
        raise UserError("no_such_attachment", f"Run {events[0].run} has no such attachment here.")

    async def list(
        self,
        limit: int = 100,
        before: str | None = None,
        state: State | None = None,
        outcome: Outcome | None = None,
        repo: str | None = None,
        who: str | None = None,
    ) -> tuple[RunRow, ...]:
        cursor = None if before is None else await self._resolve(before)
        only = RunFilter(state, outcome, repo, who)
        found = await self._log.runs(limit, before=cursor, only=only, seen=self._seen_runs)
        return tuple(self._with_pause(row) for row in found)

    async def counts(self) -> tuple[RunCount, ...]:
        return await self._log.counts(self._seen_runs)

    async def row(self, run: str, *, told: bool = True) -> RunRow:
        return self._with_pause(await self._log.row(await self._resolve(run), told=told))

    async def view(self, run: str) -> RunView:
        from cloister.runs.view import fold

        return self._with_pause(fold(await self._events(run), time.time()))

    def _with_pause(self, run: Paused) -> Paused:
        """Add why a run waits for disk: the log does not say it of a queued run, nor while its own disk is full."""
        app, why = self._parts.app, None
        if run.state not in ("queued", "running"):
            return run
        if app is not None:
            why = app.supervisor.why_waiting(run.id, run.state)
        elif short := shortage(self._settings.data_dir):
            why = short.why if short.full or run.state == "queued" else None
        return structs.replace(run, state="paused", reason=why) if why else run

    async def events(
        self,
        run: str,
        after: int = 0,
        limit: int | None = None,
        attempt: int | None = None,
        before: int | None = None,
    ) -> tuple[Event, ...]:
        if attempt is None:
            found = await self._resolve(run)
            if before is not None:  # numbers have no gaps
                last = min(before - 1, (await self._log.row(found, told=False)).last_seq)
                after = after if limit is None else max(after, last - limit)
                limit = max(0, last - after)
            return await self._read(found, after, limit)
        from cloister.runs.attempts.work import attempt_log

        of_attempt = attempt_log(await self._events(run), attempt)
        wanted = [event for event in of_attempt if event.seq > after and (not before or event.seq < before)]
        return tuple(wanted[-limit:] if before and limit else wanted[:limit])

    @asynccontextmanager
    async def _follow(
        self, run: str, after: int, deltas: bool, direct: Direct | None
    ) -> AsyncGenerator[AsyncIterator[Event | Delta]]:
        found = await self._resolve(run)
        if self.caller.is_admin:
            async with self._log.follow(found, after, deltas=deltas, direct=direct) as items:
                yield items
            return
        repos, reach = (await self._log.row(found, told=False)).repos, self.reach

        def take(event: Event) -> bool:
            try:
                return direct is not None and reach.sees(found, repos) and direct(event)
            except HostError:  # the files of projects cannot be read: the stream ends with that
                return False

        async with (
            self._log.follow(found, after, deltas=deltas, direct=direct and take) as items,
            aclosing(self._while_seen(found, repos, items)) as seen,
        ):
            yield seen

    async def _while_seen(
        self, run: RunId, repos: tuple[str, ...], items: AsyncIterator[Event | Delta]
    ) -> AsyncGenerator[Event | Delta]:
        """The items, until a project takes the run from the caller, or the link to it ends."""
        reach = self.reach
        async for item in items:
            if not reach.sees(run, repos):
                raise no_such_run(run)
            yield item

    def follow(
        self, run: str, after: int = 0, *, deltas: bool = True, direct: Direct | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]:
        return self._follow(run, after, deltas, direct)

    def overview(
        self, after: int | None = None, last: int = 200
    ) -> AbstractAsyncContextManager[AsyncIterator[OverviewItem]]:
        if self._parts.app is None:
            raise HostError("no_server", "Start a server to watch all runs: `cloister serve --background`.")
        opened = self._parts.app.overview.follow(after, last)
        return opened if self.caller.is_admin else self._seen_of(opened)

    @asynccontextmanager
    async def _seen_of(
        self, opened: AbstractAsyncContextManager[AsyncIterator[OverviewItem]]
    ) -> AsyncGenerator[AsyncIterator[OverviewItem]]:
        from cloister.app.overview import RunChanged, SandboxesChanged

        reach = self.reach

        async def those(items: AsyncIterator[OverviewItem]) -> AsyncGenerator[OverviewItem]:
            async for item in items:
                if isinstance(item, RunChanged) and not reach.sees(item.run.id, item.run.repos):
                    continue
                hidden = isinstance(item, SandboxesChanged) and not self.caller.known
                yield SandboxesChanged(()) if hidden else item

        async with opened as items, aclosing(those(items)) as found:
            yield found

    async def _sent(self, run: RunId, key: str | None) -> Event | None:
        """The event of the caller's message with this key, if it came before. Raises `UserError` (`bad_key`)."""
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_CHARS or not key.isascii() or not key.isprintable():
            raise UserError(
                "bad_key", f"The id of a message has 1 to {KEY_CHARS} printable ASCII characters."
            )
        return await self._log.sent(run, self.caller.name, key)

    async def _steer(self, run: str, key: str | None, body: Callable[[str, str], FromOutside]) -> Event:
        """Append what `body` makes of the caller's name and key, once."""
        found = await self._resolve(run)
        await self._sent(found, key)
        return await self._log.append_outside(found, body(self.caller.name, key or ""))

    async def say(
        self,
        run: str,
        text: str,
        origin: Origin = "user",
        key: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> Event:
        _check_text(text)
        if attachments:
            events = await self._events(run)
            if problem := check_attachments(attachments, attachments_of(events)):
                raise UserError("too_many_attachments", problem)
            await in_thread(self._attachments.check, attachments, events[0].run)
            await in_thread(self._attachments.keep, events[0].run, attachments)
        body = PromptReceived(text, self.caller.name, origin, key=key or "", attachments=attachments)
        return await self._tell(run, body)

    async def _tell(self, run: str, body: PromptReceived) -> Event:
        """Append a message; a finished run continues."""
        row = await self.row(run, told=False)
        fresh = await self._sent(row.id, body.key or None) is None
        if finished := fresh and row.state == "finished":
            event = await self._continue(row.id, body)
        else:
            event = await self._log.append_outside(row.id, body)
        if finished and self._parts.app is not None:
            self._parts.app.supervisor.drive(row.id)
        return event

    async def _continue(self, run: RunId, body: PromptReceived) -> Event:
        """Append a message to a finished run, whose files are not removed meanwhile."""
        async with self._parts.repositories.working(run):
            await self._parts.repositories.open(run)
            return await self._log.append_outside(run, body)

    async def rebase(self, run: str) -> Event:
        from cloister.core.log import REBASE
        from cloister.runs.attempts.rebase import check_moved, request_rebase

        events = await self._events(run)
        found = events[0].run
        message = request_rebase(events, self.caller.name, "user", REBASE)
        async with self._parts.machine() as app:
            await check_moved(app.workshop.forges, events, await self._parts.repositories.open(found))
        event = await self._continue(found, message)
        if self._parts.app is not None:
            self._parts.app.supervisor.drive(found)
        return event

    async def stop(self, run: str, key: str | None = None) -> Event:
        return await self._steer(run, key, StopRequested)

    async def pause(self, run: str, key: str | None = None) -> Event:
        row = await self._log.row(await self._resolve(run), told=False)
        if await self._sent(row.id, key) is None and (held := await self._held(row)):
            raise UserError("run_paused", f"Run {row.id} is paused already. {pause_reason(held.who)}")
        return await self._steer(row.id, key, PauseRequested)

    async def resume(self, run: str, key: str | None = None) -> Event:
        row = await self._log.row(await self._resolve(run), told=False)
        done = await self._sent(row.id, key)
        if done is None and row.state != "finished" and not await self._held(row):
            raise UserError("run_not_paused", f"No person has paused run {row.id}.")
        return await self._steer(row.id, key, ResumeRequested)

    async def _held(self, row: RunRow) -> PauseRequested | None:
        """The pause of a person that the run is in, also while it waits for disk."""
        if row.state == "finished":
            return None
        last = Index(await self._events(row.id)).last(PauseRequested, ResumeRequested, RunContinued)
        return last if isinstance(last, PauseRequested) else None

    async def interrupt(self, run: str, key: str | None = None) -> Event:
        return await self._steer(run, key, InterruptRequested)

    async def answer(
        self, run: str, ask: str | None, answer: Literal["allow", "deny"], key: str | None = None
    ) -> Event:
        """Anyone who may answer may deny; an approval needs the role that the rule names."""
        from cloister.runs.view import fold

        events = await self._events(run)
        role = (await self.standing(events[0].run))[1].approves
        if done := await self._sent(events[0].run, key):
            body = AskAnswered(ask or _ask_of(done), answer, self.caller.name, role or "viewer", key or "")
            return await self._log.append_outside(events[0].run, body)
        pending = {each.ask: each for each in fold(events, time.time()).asks}
        if ask is None:
            ask = only_one(events[0].run, pending)
        if ask not in pending:
            raise not_asked(events, ask, tuple(pending))
        approver = pending[ask].approver
        if answer == "allow" and (role is None or RANK[role] < RANK[approver]):
            raise UserError("denied", f"Only the role {approver} may allow this: {pending[ask].rule}.")
        body = AskAnswered(ask, answer, self.caller.name, role or "viewer", key or "")
        return await self._log.append_outside(events[0].run, body)

    async def reply(self, run: str, question: str | None, text: str, key: str | None = None) -> Event:
        _check_text(text)
        events = await self._events(run)
        found, who = events[0].run, self.caller.name
        if done := await self._sent(found, key):
            if isinstance(done.body, QuestionAnswered | PromptReceived) and done.body.text.endswith(text):
                return done
            raise UserError("key_taken", "This id was used for another message to this run: use a new one.")
        asked = question_of(events, question)
        if in_time(events, asked, None):
            body = QuestionAnswered(asked.question, text, who, key or "")
            event = await self._log.append_outside(found, body)
            if in_time(await self._events(found), asked, event):
                return event
            key = None  # the deadline came just before it
        said = f"Answer to your question {one_line(asked.text, 200)!r}: {text}"
        return await self._tell(found, PromptReceived(said, who, ref=asked.question, key=key or ""))

    async def use_model(self, run: str, model: str, key: str | None = None) -> Event:
        from cloister.app.config import usual_model
        from cloister.runs.run_rules import check_allowed, run_layer

        events = await self._events(run)
        name, request = usual_model(self._settings, model), request_of(events)
        above = await self._rules_above(request)
        check_allowed((*above, run_layer(request)), models=(name,))
        return await self._steer(events[0].run, key, partial(ModelChosen, name))

    async def fork(
        self, run: str, at: int | None = None, say: str | None = None, key: str | None = None
    ) -> Admitted:
        from cloister.runs.attempts.tree import fork_request

        events = await self._events(run)
        whole = None
        if key is not None:
            await self._sent(events[0].run, key)
            whole = f"{self.caller.name}/{events[0].run}/{key}"
            if known := await self._log.keyed(whole):  # the same words may mean a later save point by now
                return Admitted(known, False)
        return await self.submit(structs.replace(fork_request(events, at, say), key=whole))

    async def rewind(self, run: str, to: int, key: str | None = None) -> RunId:
        from cloister.runs.attempts.tree import check_saved, rewindable

        events = await self._events(run)
        if done := await self._sent(events[0].run, key):
            to = done.body.to if isinstance(done.body, RewindRequested) else to
            return (await self._steer(done.run, key, partial(RewindRequested, to))).run
        point = rewindable(events, to)
        if isinstance(events[-1].body, RunFinished):
            return (await self.fork(events[0].run, point.seq, key=key)).id
        await check_saved(await self._parts.repositories.open(events[0].run), point)
        return (await self._steer(events[0].run, key, partial(RewindRequested, point.seq))).run

    async def remove(self, run: str) -> Removed:

        from cloister.runs.delivery import check_not_forked, remove_files

        row, started = await self.row(run), time.time()

        async def state() -> State:
            await check_not_forked(self._log, row.id)
            return (await self._log.row(row.id, told=False)).state

        removed = await remove_files(self._parts.repositories, row.id, state, self.caller.name)
        if removed.at >= started:  # else they were removed before
            await self._note("RunRemoved", run=row.id)
        return removed

    async def gc(self, dry_run: bool = False) -> tuple[Removal, ...]:
        from cloister.app.wiring import old_files

        async with self._parts.machine() as app:
            files = old_files(app.settings, app.storage, app.host, self.caller.name)
            return await files.collect(dry=dry_run)

    async def diff(self, run: str, attempt: int | None = None, at: int | None = None) -> str:
        from cloister.runs.attempts.work import run_diff

        events = await self._events(run)
        return await run_diff(self._parts.repositories, events[0].run, events, attempt, at)

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

    async def change(self, run: str, have: str | None = None, folder: str | None = None) -> ChangePack:
        from cloister.app.verbs.apply import pack_change

        return await pack_change(self._parts.repositories, await self._events(run), have, folder)

    async def applied(self, run: str, where: str, branch: str) -> None:
        found = await self._resolve(run)
        await self._note("Applied", run=found, where=where, branch=branch)

    async def pull_request(self, run: str, folder: str | None = None) -> ChangeDelivered:
        from cloister.app.forges import address_at_forge
        from cloister.policy.api import PushAction
        from cloister.policy.decide import Decider
        from cloister.runs.attempts.work import last_result
        from cloister.runs.delivery import Kept, Target, delivery, part_named, propose
        from cloister.runs.run_rules import run_layer

        events = await self._events(run)
        winner, made = last_result(events)
        request = request_of(events)
        async with self._parts.machine() as app:
            forges = app.workshop.forges
            part = part_named(events, folder)
            address = await address_at_forge(forges, part.repo)
            rules = (*await self._rules_above(request), run_layer(request))
            decision = Decider(rules).decide(PushAction(address, f"refs/heads/{made.branch}"))
            if decision.effect == "deny":
                raise UserError("denied", f"A rule forbids the push: {one_line(decision.rule, 200)}.")
            target = Target(address, part.folder)
            kept = Kept(self._parts.repositories, self._attachments)
            proposal = await propose(kept, events, winner, made, target)
            sent = await forges.at(address).deliver(proposal)
        assert sent is not None  # noqa: S101 - a forge with pull requests takes every proposal
        done = structs.replace(delivery(sent, part.folder), who=self.caller.name)
        try:
            await self._log.append_outside(events[0].run, done)
        except UserError as error:
            if error.code != "run_not_finished":
                raise
            # A message continued it meanwhile: the audit says what was opened.
            await self._note(
                "PullRequestOpened", run=events[0].run, where=done.where, branch=done.branch, url=done.url
            )
        return done

    async def verify(
        self,
        repo: str,
        ref: str,
        report: Report = no_report,
        claim: Claim | None = None,
        allow_test_changes: tuple[str, ...] = (),
    ) -> Verified:
        from cloister.app.forges import pull_at
        from cloister.runs.attempts.verify import Grants, verify
        from cloister.runs.attempts.work import last_result

        page, events = "" if repo else ref, tuple[Event, ...]()
        if "://" in page:
            repo, problem = page, check_address(page)
        elif not repo:
            events, problem = await self._events(ref), None
            repo = str(await self._parts.repositories.open(events[0].run))
            ref = last_result(events)[1].commit
        else:
            problem = check_address(repo)
        if problem:
            raise UserError("bad_run", problem)
        if not events:
            self._check_repository(repo)
        async with self._parts.machine() as app:
            if "://" in page:
                repo, ref = await pull_at(app.workshop.forges, page)

            async def set_up(request: NewRun, said: Report) -> tuple[Diagnosis, ...]:
                made, found = await app.set_up(request, said, "")
                if made.problem:
                    raise HostError("no_environment", f"The environment cannot be set up: {made.problem}")
                return found

            grants = Grants(allow_test_changes, events)
            found = await verify(app.workshop, set_up, repo, claim or ref, report, grants)
        await self._note("Verified", run=found.run, commit=found.commit, holds=found.holds)
        return found

    async def check_forge(self, repo: str) -> ForgeCheck:
        self._check_repository(repo)
        from cloister.app.forges import check_forge

        async with self._parts.machine() as app:
            return await check_forge(app.workshop.forges, repo)

    async def repositories(self, pattern: str) -> tuple[str, ...]:
        from cloister.app.forges import find_repositories

        async with self._parts.machine() as app:
            return await find_repositories(app.workshop.forges, pattern)

    async def receipt(self, run: str) -> Receipt:
        from cloister.runs.receipt import receipt

        events = await self._events(run)
        finished = isinstance(events[-1].body, RunFinished)
        return receipt(events, await self._log.seal(events[0].run) if finished else None)

    async def receipt_page(self, run: str, delivered: bool = False) -> str:
        from cloister.forge import change
        from cloister.runs.attempts.work import last_change
        from cloister.runs.receipt import page

        if not delivered:
            return page(await self.receipt(run))
        events = await self._events(run)
        made = last_change(events)
        bare = await self._parts.repositories.open(events[0].run)
        note = await change.read(bare, made[1].commit) if made is not None else None
        if note is None:
            raise UserError("no_change", f"Run {events[0].run} has made no commit: it has no receipt of one.")
        return note

    async def budget(self, run: str | None = None) -> BudgetReport:
        from cloister.runs.budget import BudgetReport, above, accounts, run_accounts

        tree, now = self._settings.file.budgets, time.time()
        if run is None:
            every = await self._log.totals(partial(accounts, tree, now)) or ()
            reach = self.reach
            hidden = [
                one for one in every if one.level == "project" and reach.standing(None, [one.name]) is None
            ]
            return BudgetReport(tuple(one for one in every if one not in hidden))
        events = await self._events(run)
        outer = await self._log.totals(partial(above, tree, now, events[0].run)) or ()
        return BudgetReport((*outer, *run_accounts(events)))

    async def _events(self, run: str) -> tuple[Event, ...]:
        """The whole log of a run; it is never empty."""
        return await self._read(await self._resolve(run), 0, None)

    async def _read(self, run: RunId, after: int, limit: int | None) -> tuple[Event, ...]:
        if limit is not None:
            return await self._log.read(run, after, limit)
        events: tuple[Event, ...] = ()
        while page := await self._log.read(run, events[-1].seq if events else after):
            events += page
        return events

    async def _rules_above(self, request: NewRun) -> Policy:
        from anyio import to_thread

        from cloister.app.config import rule_files
        from cloister.runs.run_rules import parts_of

        files = rule_files(self._settings)
        return await to_thread.run_sync(files.above, request.repo, parts_of(request))

    async def _check(self, new: NewRun, recipe: Callable[[str], object]) -> None:
        """Raises `UserError` unless the request is complete and the rules, models and templates here allow it."""
        from cloister.app.config import calls_models, harness_for, job_of, model_access
        from cloister.core.attempts import wishes
        from cloister.forge.plain_git import check_base
        from cloister.harnesses import choose_harness
        from cloister.model.roles import Job, check_roles, chosen
        from cloister.runs.attempts.tree import check_fork
        from cloister.runs.run_rules import check_allowed, check_role, run_layer

        if problem := check_new_run(new):
            raise UserError("bad_run", problem)
        standing = self.reach.must_be("operator", None, [one.repo for one in new.repositories])
        access = model_access(self._settings)
        harnesses = {harness_for(access, new, wish): None for wish in wishes(new)}
        for name in harnesses:
            choose_harness(name)
        models: tuple[str, ...] = ()
        if calls_models(access, new):
            check_roles(access, job_of(new))
            models = chosen(access, "code", job_of(new))
        recipe(new.template)
        above = await self._rules_above(new)
        check_role(above, new, standing.role)
        check_allowed((*above, run_layer(new)), tier=new.tier, models=models, harnesses=harnesses)
        for wish in new.attempts:
            if wish.model is not None:
                chosen(access, "code", Job(new.repo, wish.model))
        if new.forked_from is not None:
            bare = await self._parts.repositories.open(new.forked_from.run)
            await check_fork(bare, await self._events(new.forked_from.run), new)
        else:
            for one in new.repositories:
                await check_base(one.repo, one.ref)


def _ask_of(event: Event) -> str:
    return event.body.ask if isinstance(event.body, AskAnswered) else ""


def _check_text(text: str) -> None:
    if not text.strip():
        raise UserError("empty_message", "The message is empty: say what the run should do.")
    if len(text.encode("utf-8", errors="replace")) > limits.PROMPT_BYTES:
        raise UserError("too_large", f"A message has at most {limits.PROMPT_BYTES:,} bytes.")
