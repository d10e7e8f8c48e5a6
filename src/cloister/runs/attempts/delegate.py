"""Helpers: an attempt hands a bounded piece of work to a model of its own, in a fork of its sandbox.

A helper has its own context and a share of the attempt's budget, and cannot have helpers. Its report is an observation of
the attempt; its change is a patch that the attempt may take. What it does is in the log under its own number.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, assert_never

import anyio
import msgspec
from msgspec import Meta

from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.budget.purse import Payer
from cloister.agent.evidence.evidence import Claim, Evidence, Refused
from cloister.agent.evidence.proof import Proof
from cloister.agent.evidence.run_checks import Earlier
from cloister.agent.harnesses.api import Ending, OutOfBudget, Unfinished, Workplace
from cloister.agent.harnesses.native.loop import NativeHarness
from cloister.agent.knowledge.instructions import Guide, Instructions
from cloister.agent.progress import progress
from cloister.agent.taint import Provenance
from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.agent.tools.toolset import Offer, ToolPlace, open_tools
from cloister.core.computer import Command, Computer
from cloister.core.errors import Bug, CloisterError, Fenced, SandboxLost, UserError, sole
from cloister.core.events import (
    AttemptEnded,
    Delegated,
    DelegationEnded,
    InterruptRequested,
    ModelReplied,
    RunResumed,
)
from cloister.core.log import Journal, ancestors, effective
from cloister.core.requests import Budget
from cloister.core.text import bounded, decode, one_line
from cloister.forge import change
from cloister.log.journal import AttemptJournal
from cloister.policy.api import Policy
from cloister.runs.attempts.branching import Branching
from cloister.runs.attempts.context import AttemptSandboxes, RunSetup, SavedFiles
from cloister.runs.attempts.scores import unspent
from cloister.runs.services import RunServices
from cloister.sandbox.api import Sandbox

DELEGATE, TAKE = "delegate", "take_change"
USUAL_STEPS, MOST_STEPS = 15, 60
REPORT_CHARS = 8_000
_FILES_TOLD = 20
_APPLY_SECONDS = 60.0


class DelegateArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=8_000,
            description="A question, or a piece of work, with all that one must know: the helper sees nothing of yours.",
        ),
    ]
    steps: Annotated[int, Meta(ge=1, le=MOST_STEPS, description="Replies that it may use.")] = USUAL_STEPS


class TakeArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    helper: Annotated[int, Meta(description="Its number, as its report says.")]


class HelperEvidence(Evidence):
    """The evidence of a helper: its files are saved, nothing is proven, and its report ends it."""

    async def try_finish(self, claim: Claim) -> AttemptEnded | Refused:
        """End with the report, which is recorded as `DelegationEnded`."""
        await self.record()
        if why := await self.checkpoint(claim.step, finishing=True):
            return Refused(why)
        report = bounded(claim.summary, REPORT_CHARS)
        ended = DelegationEnded(self.attempt, "done", report, self.commit)
        await self.end_turn(claim.step, *claim.answer)
        await self.record(ended)
        return AttemptEnded(self.attempt, "unproven", report, self.commit, self.comparison)


async def _no_proof(commit: str, earlier: Earlier) -> Proof:
    raise Bug("a helper has no checks to prove")


@dataclass(slots=True)
class Delegation:
    """The helpers of one attempt."""

    services: RunServices
    setup: RunSetup
    journal: Journal
    """The run's."""
    sandboxes: AttemptSandboxes
    branching: Branching
    instructions: Instructions
    parent: int
    budget: Budget
    """The attempt's."""
    models: BudgetedModels
    policy: Policy
    _sandbox: Sandbox | None = field(init=False, default=None)
    _here: anyio.Event = field(init=False, default_factory=anyio.Event)

    def arrive(self, sandbox: Sandbox) -> None:
        """The attempt's sandbox is there: helpers get forks of it."""
        self._sandbox = sandbox
        self._here.set()

    @asynccontextmanager
    async def tools(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        """A `ToolSource` for the attempt itself; helpers do not have it."""
        if self.services.helpers < 1:
            yield Offer()
            return
        delegate = Tool(
            name=DELEGATE,
            description="Let a helper do a bounded part in a copy of the sandbox, with its own context; you get its report.",
            args=DelegateArgs,
            target=lambda args: args.task,
            run=self._delegate,
            grant="allow",
            own=True,
            source="helpers",
        )
        take = Tool(
            name=TAKE,
            description=f"Apply what a helper of {DELEGATE} changed to your files.",
            args=TakeArgs,
            target=lambda args: str(args.helper),
            run=self._take,
            changes_files=True,
            grant="allow",
            own=True,
            source="helpers",
        )
        yield Offer((delegate, take))

    # The call.

    async def _delegate(self, computer: Computer, args: DelegateArgs, show: Show) -> Observation:
        try:
            body = self._asked(args.task) or await self._begin(args)
        except UserError as error:
            return observe(False, error.message)
        ended = self._ended(body.attempt) or await self._drive(body)
        return await self._told(body, ended)

    def _asked(self, task: str) -> Delegated | None:
        """The helper that a call of the newest reply asked for, before a crash."""
        last = self._newest_reply()
        found = self.journal.index.events(Delegated)
        return next(
            (b for event, b in found if event.seq > last and b.parent == self.parent and b.task == task), None
        )

    def _ended(self, helper: int) -> DelegationEnded | None:
        return self.journal.index.last(DelegationEnded, attempt=helper)

    async def _begin(self, args: DelegateArgs) -> Delegated:
        """Raises `UserError` if there is no room for another helper, or the files cannot be saved."""
        earlier = [body for body in self.journal.index.of(Delegated) if body.parent == self.parent]
        if len(earlier) >= self.services.helpers:
            raise UserError("too_many_helpers", f"An attempt has at most {self.services.helpers} helpers.")
        took = self.models.spent(self.parent)
        left = unspent(self.budget, took.steps, took.tokens, took.dollars)
        if left.steps < 2:
            raise UserError("no_budget", "The budget has no room for a helper: do it yourself.")
        budget = Budget(
            steps=min(args.steps, left.steps // 2),
            tokens=max(1, left.tokens // 2),
            seconds=max(1.0, self.budget.seconds - self._seconds()) / 2,
            dollars=None if left.dollars is None else left.dollars / 2,
        )
        commit = await SavedFiles(await self._there(), self.setup, self.parent, self.policy).save()
        untrusted = Provenance(self.parent, AttemptJournal(self.journal, self.parent)).untrusted
        model = self.models.chain("code")[0]
        return await self.branching.delegated(
            lambda number: Delegated(number, self.parent, args.task, commit, budget, model, untrusted)
        )

    def _seconds(self) -> float:
        """The time that the attempt has spent."""
        return progress(effective(AttemptJournal(self.journal, self.parent).events), self.parent).seconds

    async def _there(self) -> Sandbox:
        await self._here.wait()
        assert self._sandbox is not None  # noqa: S101  (set before the event)
        return self._sandbox

    async def _told(self, body: Delegated, ended: DelegationEnded) -> Observation:
        changed = await change.files(self.setup.bare, body.commit, ended.commit)
        names = ", ".join(one_line(file.path, 100) for file in changed[:_FILES_TOLD])
        more = f" and {len(changed) - _FILES_TOLD} more" if len(changed) > _FILES_TOLD else ""
        after = (
            f"It changed {names}{more}; {TAKE} with helper {body.attempt} applies that." if changed else ""
        )
        states = {"done": "is done", "budget": "has spent its budget", "red": "gave up", "failed": "failed"}
        text = f"Helper {body.attempt} {states[ended.outcome]}. Its report:\n{ended.report}\n\n{after}"
        read = Provenance(body.attempt, AttemptJournal(self.journal, body.attempt))
        seen = observe(ended.outcome == "done", text.rstrip())
        return msgspec.structs.replace(seen, origin="server" if read.untrusted else "tool")

    # The work.

    async def _drive(self, body: Delegated) -> DelegationEnded:
        journal = AttemptJournal(self.journal, body.attempt)
        before = progress(effective(journal.events), body.attempt)
        resumed = before.steps > 0 or before.pending is not None
        if resumed:
            await self.journal.append(RunResumed(self.journal.events[-1].seq, body.attempt))
        commit = before.commit or body.commit
        inside = False
        cancelled = anyio.get_cancelled_exc_class()
        try:
            async with self.sandboxes.helper(await self._there(), body.attempt) as sandbox:
                inside = True
                if resumed:
                    await self.sandboxes.resume(sandbox, commit)
                await self._work(sandbox, body, journal)
        except Exception as error:
            cause = sole(error)
            lost = isinstance(cause, SandboxLost) and not inside  # the attempt's own
            if isinstance(cause, Fenced | Bug) or not isinstance(cause, CloisterError) or lost:
                raise cause from None
            if await self.services.lack(cause):
                raise cause from None
            await self._fail(body, cause.message)
        except cancelled:
            # Without a person it is the end of this process: the helper goes on in the next one.
            if (who := self._stopped_by()) and self._ended(body.attempt) is None:
                with anyio.CancelScope(shield=True):
                    await self.sandboxes.gone(body.attempt, f"helper {body.attempt} was stopped")
                    await self._fail(body, f"Stopped by {who}.")
            raise
        ended = self._ended(body.attempt)
        if ended is None:
            raise Bug("a helper without an end")
        return ended

    async def _fail(self, body: Delegated, why: str) -> None:
        own = AttemptJournal(self.journal, body.attempt)
        saved = progress(effective(own.events), body.attempt).commit or body.commit
        await self.journal.append(DelegationEnded(body.attempt, "failed", why, saved))

    def _stopped_by(self) -> str:
        """The person who stopped the calls of the newest reply; empty if none did."""
        since = self._newest_reply()
        stops = self.journal.index.events(InterruptRequested)
        return next((one_line(one.who, 40) for event, one in stops if event.seq > since), "")

    def _newest_reply(self) -> int:
        replies = self.journal.index.events(ModelReplied, attempt=self.parent)
        return max((event.seq for event, _ in replies), default=0)

    async def _work(self, sandbox: Sandbox, body: Delegated, journal: Journal) -> None:
        setup, helper, policy = self.setup, body.attempt, self.policy
        paying = self.models.of(helper, body.budget, Payer(self.parent, self.budget))
        inside = paying.for_programs_inside()
        evidence = HelperEvidence(
            attempt=helper,
            journal=journal,
            computer=sandbox,
            files=SavedFiles(sandbox, setup, helper, policy),
            prove=_no_proof,
            base=body.commit,
            checks=(),
            baseline=(),
        )
        where = ToolPlace(helper, journal, sandbox, setup.request, setup.bare, setup.base, policy)
        with setup.inside.paid(sandbox.info.id, helper, inside):
            await evidence.begin()
            async with open_tools(self.services.tools, where) as added:
                place = Workplace(
                    attempt=helper,
                    journal=journal,
                    computer=sandbox,
                    models=paying,
                    policy=added.granted(policy),
                    budget=body.budget,
                    ask_seconds=self.services.ask_seconds,
                    patience=self.services.patience,
                    tools=added,
                    guide=Guide(helper, journal, self.instructions.load),
                )
                await _steps(place, evidence)

    # The change.

    async def _take(self, computer: Computer, args: TakeArgs, show: Show) -> Observation:
        mine = {self.parent, *ancestors(self.journal.events, self.parent)}
        body = next(
            (b for b in self.journal.index.of(Delegated, attempt=args.helper) if b.parent in mine), None
        )
        ended = self._ended(args.helper)
        if body is None or ended is None:
            return observe(False, f"You have no helper {args.helper} whose work is done.")
        try:
            patch = await change.patch(self.setup.bare, body.commit, ended.commit)
        except UserError as error:
            return observe(False, error.message)
        if not patch:
            return observe(True, f"Helper {args.helper} changed nothing.")
        applied = await computer.run(
            Command(("git", "apply", "--whitespace=nowarn", "-"), seconds=_APPLY_SECONDS), patch
        )
        if not applied.ok:
            said = bounded(decode(applied.err), 2_000)
            return observe(
                False, f"The change does not fit your files as they are now; nothing is changed.\n{said}"
            )
        changed = await change.files(self.setup.bare, body.commit, ended.commit)
        return observe(
            True, "Changed: " + ", ".join(one_line(file.path, 200) for file in changed[:_FILES_TOLD])
        )


async def _steps(place: Workplace, evidence: HelperEvidence) -> None:
    """Let the model work until its report, and record the end if it makes none."""
    ending: Ending | None = None
    with place.clock.running():
        if place.clock.left > 0:
            ending = await NativeHarness().drive(place, evidence)
    match ending:
        case AttemptEnded():
            return
        case Unfinished(outcome, reason):
            pass
        case OutOfBudget(reason):
            outcome = "budget"
        case None:
            outcome, reason = "budget", place.clock.over
        case _:
            assert_never(ending)
    await evidence.save_unchecked()
    last = place.journal.index.last(ModelReplied, attempt=place.attempt)
    said = f"\nIt last said:\n{last.text.strip()}" if last and last.text.strip() else ""
    report = bounded(f"{reason}{said}", REPORT_CHARS)
    await place.journal.append(DelegationEnded(place.attempt, outcome, report, evidence.commit))
