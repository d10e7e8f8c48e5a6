"""The attempts of one round, each in its own sandbox: start them, replace lost sandboxes, stop and end them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import anyio
from anyio.abc import TaskGroup

from cloister.agent.attempt import work
from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.evidence import Evidence
from cloister.agent.evidence.permission import Permission
from cloister.agent.harnesses.api import Workplace
from cloister.agent.knowledge.instructions import Guide, Instructions
from cloister.agent.progress import progress
from cloister.agent.roles import Adviser, review
from cloister.agent.tools.toolset import ToolPlace, open_tools
from cloister.core.attempts import NATIVE, REPAIR, Answer, AttemptWish, Branch, GiveUp, Stuck, shared, wishes
from cloister.core.diagnosis import Comparison
from cloister.core.errors import Bug, CloisterError, Fenced, SandboxLost, sole
from cloister.core.events import (
    AttemptEnded,
    AttemptStarted,
    ModelSwitched,
    PhaseEnded,
    PhaseStarted,
    RewindRequested,
    RunResumed,
)
from cloister.core.log import Index, Journal, attempts_of, effective, root_of, round_start
from cloister.core.requests import Budget, Outcome
from cloister.egress.model_endpoint.api import InsideModel
from cloister.feedback.compare import compare
from cloister.forge import change
from cloister.harnesses import choose_harness
from cloister.log.journal import AttemptJournal
from cloister.model.roles import NO_MODEL_CALLS
from cloister.runs.attempts.arriving import ArrivingComputer
from cloister.runs.attempts.branching import Branching
from cloister.runs.attempts.context import AttemptSandboxes, Base, RunSetup, SavedFiles
from cloister.runs.attempts.delegate import Delegation
from cloister.runs.attempts.scores import unspent
from cloister.runs.services import RunServices
from cloister.sandbox.api import Sandbox

Arrival = Callable[[], Awaitable[Sandbox]]
"""Waits for the sandbox of an attempt, with its files."""

_LIVES = 3
"""Sandboxes that one attempt may lose before it fails."""


class _Gate:
    """Makes attempts that start together wait until all have their sandboxes."""

    def __init__(self, awaited: Iterable[int]) -> None:
        self._awaited = set(awaited)
        self.all_here = anyio.Event()
        self.open = anyio.Event()

    def arrive(self, number: int) -> None:
        """The attempt has its sandbox, or has ended without one."""
        self._awaited.discard(number)
        if not self._awaited:
            self.all_here.set()


class Attempts:
    """All attempts of one round: the first ones and those that searching and rewinding add."""

    def __init__(self, services: RunServices, journal: Journal, setup: RunSetup, base: Base) -> None:
        self._services = services
        self._journal = journal
        self._setup = setup
        self._base = base
        self._sandboxes = AttemptSandboxes(services, journal, setup, base)
        self._branching = Branching(journal, setup)
        self._instructions = Instructions(setup.bare, setup.base, wanted=services.knowledge.instructions)
        self._asking = anyio.Lock()
        """Held by the attempt that asks a person about its tests."""
        self._wishes = wishes(setup.request)
        start = round_start(journal.events)
        self._first: tuple[int, ...] = ()
        """The attempts that the first round begins with; a later round has forks only."""
        if not attempts_of(journal.events[:start]):
            self._first = tuple(range(len(self._wishes)))
        self.alone = len(self._first) <= 1 and setup.request.search is None
        """A single attempt works in the sandbox with the base itself, several in forks of it."""
        self._at_work: dict[int, anyio.CancelScope] = {}
        self._stopped: dict[int, str] = {}
        """Attempt → why it must stop."""
        self._idle = anyio.Event()

    async def run(self) -> tuple[AttemptEnded, ...]:
        """Run all attempts and return their ends by number. Ends that the log has are not run again."""
        self._setup.inside.shut(None)  # the run itself pays for no more calls from inside
        if not self._first:
            await self._branching.continued()
        todo = [number for number in self._numbers() if self._ended(number) is None]
        async with anyio.create_task_group() as tasks:
            await self._begin(tasks, todo)
            tasks.start_soon(self._watch_rewinds, tasks)
            while True:
                await self._all_ended()
                if not await self._rewind(tasks):
                    break
            tasks.cancel_scope.cancel()
        return tuple(ended for number in self._numbers() if (ended := self._ended(number)) is not None)

    def _numbers(self) -> tuple[int, ...]:
        """The attempts of this round."""
        return (*self._first, *self._branching.forked())

    async def _begin(self, tasks: TaskGroup, todo: list[int]) -> None:
        """Start attempts together: none works before all have their sandboxes."""
        if self.alone or not todo:
            for number in todo:
                self._start(tasks, number)
            return
        gate = _Gate(todo)
        started = anyio.current_time()
        await self._journal.append(PhaseStarted("fork"))
        for number in todo:
            self._start(tasks, number, gate)
        await gate.all_here.wait()
        await self._journal.append(PhaseEnded("fork", anyio.current_time() - started))
        gate.open.set()

    def _start(self, tasks: TaskGroup, number: int, gate: _Gate | None = None) -> None:
        self._at_work[number] = anyio.CancelScope()
        tasks.start_soon(self._attempt, tasks, number, gate)

    async def _all_ended(self) -> None:
        while self._at_work:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _ended(self, number: int) -> AttemptEnded | None:
        return self._journal.index.first(AttemptEnded, attempt=number)

    async def _attempt(self, tasks: TaskGroup, number: int, gate: _Gate | None) -> None:
        with self._at_work[number] as scope:
            if (why := self._needless(number)) is not None:
                self._stop(number, why)
            else:
                await self._guarded(tasks, number, gate)
        if gate is not None:
            gate.arrive(number)
        if scope.cancelled_caught or self._ended(number) is None:
            await self._end(number, "stopped", self._stopped.get(number) or self._needless(number) or "")
        del self._at_work[number]
        self._stop_the_rest()
        self._idle.set()

    def _needless(self, number: int) -> str | None:
        """Why the attempt need not work, from the log: a crash may have come between the decision and the stop."""
        winner, back = self._first_green(), self._branching.left_behind(number)
        if winner is not None:
            return _proven_first(winner)
        return back and back.reason

    def _first_green(self) -> int | None:
        """The proven attempt that stops all others."""
        if not self._setup.request.first_green:
            return None
        events = self._journal.events
        found = Index(events[round_start(events) :]).of(AttemptEnded)
        return next((body.attempt for body in found if body.outcome == "proven"), None)

    def _stop_the_rest(self) -> None:
        winner = self._first_green()
        if winner is not None:
            for number in list(self._at_work):
                if number != winner:
                    self._stop(number, _proven_first(winner))

    def _stop(self, number: int, why: str) -> None:
        self._stopped.setdefault(number, why)
        self._at_work[number].cancel()

    async def _guarded(self, tasks: TaskGroup, number: int, gate: _Gate | None) -> None:
        """Run an attempt; if it fails, the others continue."""
        try:
            await self._lives(tasks, number, gate)
        except Exception as error:
            cause = sole(error)
            if self.alone or isinstance(cause, Fenced) or not isinstance(cause, CloisterError):
                raise cause from None
            if await self._services.lack(cause):
                raise cause from None  # the whole run pauses
            await self._end(number, "failed", cause.message)

    async def _lives(self, tasks: TaskGroup, number: int, gate: _Gate | None) -> None:
        journal = AttemptJournal(self._journal, number)
        models = self._models(number)
        begun = await self._begun(number, models)
        for life in range(_LIVES):
            try:
                async with self._sandbox(number, journal, life, gate) as sandbox:
                    await self._work(tasks, begun, journal, models, sandbox)
                    self._stop_the_rest()
                    return
            except Exception as error:
                cause = sole(error)
                if not isinstance(cause, SandboxLost) or life == _LIVES - 1:
                    raise cause from None
                await self._journal.append(RunResumed(self._journal.events[-1].seq, number))
        raise Bug("an attempt without a life")

    def _wish(self, number: int) -> AttemptWish:
        """The wish of a forked attempt is that of its root."""
        return self._wishes[root_of(self._journal.events, number)]

    def _models(self, number: int) -> BudgetedModels:
        """A recorded harness stays the harness of its attempt."""
        wish = self._wish(number)
        models = self._setup.models
        if self._harness(number) == REPAIR:
            return models.none(NO_MODEL_CALLS)
        models = models if wish.model is None else models.instead(wish.model)
        return models if wish.temperature is None else models.at(wish.temperature)

    def _harness(self, number: int) -> str:
        begun = self._journal.index.first(AttemptStarted, attempt=number)
        if begun is not None:
            return begun.harness
        return self._services.harness(self._setup.request, self._wish(number))

    async def _begun(self, number: int, models: BudgetedModels) -> AttemptStarted:
        if begun := self._journal.index.first(AttemptStarted, attempt=number):
            return begun
        wish = self._wish(number)
        fork = self._branching.fork_of(number)
        started = AttemptStarted(
            number,
            models.role("code").name,
            parent=fork and fork.parent,
            at=fork and fork.at_seq,
            temperature=wish.temperature,
            hint=fork.hint if fork else wish.hint,
            budget=fork.budget if fork else self._share(number),
            harness=self._harness(number),
        )
        await self._journal.append(started, *self._left_out(started, models))
        return started

    def _share(self, number: int) -> Budget:
        """The attempt's part of the run's budget that was left when the attempts started."""
        whole = self._setup.request.budget
        if self.alone:
            return whole
        before = self._setup.models.spent(None)
        left = unspent(whole, before.steps, before.tokens, before.dollars)
        return shared(left, self._wishes)[number]

    def _left_out(self, started: AttemptStarted, models: BudgetedModels) -> tuple[ModelSwitched, ...]:
        """A note for each configured model that is not available here."""
        named = self._wish(started.attempt).model is not None
        if started.parent is not None or named or started.harness == REPAIR:
            return ()
        first = models.chain("code")[0]
        lacking = self._services.left_out(self._setup.request).items()
        return tuple(ModelSwitched(started.attempt, name, first, why) for name, why in lacking)

    @asynccontextmanager
    async def _sandbox(
        self, number: int, journal: Journal, life: int, gate: _Gate | None
    ) -> AsyncGenerator[Arrival]:
        """A sandbox with the files of the attempt's last save point; that with the base may still be on its way."""
        commit = progress(effective(journal.events), number).commit or self._setup.base
        if life == 0 and self.alone and number == self._numbers()[0]:
            yield partial(self._bring_base, commit)
        elif life == 0 and not self.alone:
            async with self._sandboxes.fork(number) as sandbox:
                if gate is not None:
                    gate.arrive(number)
                    await gate.open.wait()
                await self._bring(sandbox, commit)
                yield partial(_at_once, sandbox)
        else:
            if gate is not None:
                gate.arrive(number)  # the others do not wait for a late one
            async with self._sandboxes.fresh(number, commit) as sandbox:
                yield partial(_at_once, sandbox)

    async def _bring_base(self, commit: str) -> Sandbox:
        sandbox = await self._base.ready()
        await self._bring(sandbox, commit)
        return sandbox

    async def _bring(self, sandbox: Sandbox, commit: str) -> None:
        if commit != self._setup.base:
            await self._sandboxes.resume(sandbox, commit)

    async def _work(
        self,
        tasks: TaskGroup,
        begun: AttemptStarted,
        journal: Journal,
        models: BudgetedModels,
        arrival: Arrival,
    ) -> None:
        setup, number = self._setup, begun.attempt
        budget = begun.budget or setup.request.budget
        searching = setup.request.search is not None
        paying = models.of(number, budget)
        inside = paying.for_programs_inside(steps=begun.harness not in (NATIVE, REPAIR))
        policy = self._services.run_policy(setup.request)
        computer = ArrivingComputer()
        files = SavedFiles(computer, setup, number, policy)
        helpers = Delegation(
            *(self._services, setup, self._journal, self._sandboxes, self._branching, self._instructions),
            *(number, budget, models, policy),
        )
        evidence = self._evidence(journal, computer, files, paying, inside)

        with ExitStack() as paid:

            async def arrive() -> None:
                sandbox = await arrival()
                paid.enter_context(setup.inside.paid(sandbox.info.id, number, inside))
                await evidence.begin(SavedFiles(sandbox, setup, number, policy))
                entrance = self._services.sandboxes.listed(setup.run, number, sandbox, policy)
                paid.enter_context(entrance)
                helpers.arrive(sandbox)
                computer.arrive(sandbox)

            where = ToolPlace(number, journal, computer, setup.request, setup.bare, setup.base, policy)
            async with anyio.create_task_group() as beside:
                beside.start_soon(arrive)
                async with open_tools((*self._services.tools, helpers.tools), where) as added:
                    place = Workplace(
                        attempt=number,
                        journal=journal,
                        computer=computer,
                        models=paying,
                        policy=added.granted(policy),
                        budget=budget,
                        ask_seconds=self._services.ask_seconds,
                        patience=self._services.patience,
                        escalate=partial(self._escalate, tasks) if searching else None,
                        seed=setup.request.seed + number,
                        tools=added,
                        guide=Guide(number, journal, self._instructions.load),
                        attached=lambda one: self._services.attachments.read(setup.run, one.sha256),
                    )
                    await work(place, evidence, choose_harness(begun.harness))
                beside.cancel_scope.cancel()

    def _evidence(
        self,
        journal: Journal,
        computer: ArrivingComputer,
        files: SavedFiles,
        paying: BudgetedModels,
        inside: InsideModel,
    ) -> Evidence:
        setup, number, known = self._setup, files.attempt, self._setup.results.known
        return Evidence(
            attempt=number,
            journal=journal,
            computer=computer,
            files=files,
            prove=partial(self._sandboxes.prove, number, inside),
            base=setup.base,
            checks=known.checks if known else (),
            baseline=known.diagnoses if known else (),
            goals=known.goals if known else None,
            elsewhere=self._sandboxes.proves_elsewhere,
            later=None if known else setup.results,
            allowed=setup.request.allow_test_changes,
            permission=self._permission(number, files),
            review=partial(self._review, Adviser(paying, journal, number)),
            cpus=self._services.quota.cpus,
        )

    def _permission(self, number: int, files: SavedFiles) -> Permission | None:
        new = self._setup.request
        if not new.ask_test_changes:
            return None
        patterns, seconds = new.allow_test_changes, self._services.ask_seconds
        return Permission(number, self._journal, files, patterns, seconds, self._asking)

    async def _review(self, adviser: Adviser, commit: str, summary: str) -> str:
        diff = await change.diff(self._setup.bare, self._setup.base, commit)
        return await review(adviser, self._setup.request.prompt, diff, summary)

    async def _escalate(self, tasks: TaskGroup, stuck: Stuck) -> Answer:
        """Continue a stuck attempt from the best save points, if the search finds any."""
        self._setup.inside.shut(stuck.attempt)
        forks = await self._branching.search(stuck, frozenset(self._at_work))
        for fork in forks:
            if fork.attempt not in self._at_work and self._ended(fork.attempt) is None:
                self._start(tasks, fork.attempt)
        if forks:
            return Branch(tuple(fork.attempt for fork in forks))
        return GiveUp(
            f"It is stuck ({stuck.evidence}), and no save point or budget is left to continue from."
        )

    async def _watch_rewinds(self, tasks: TaskGroup) -> None:
        seen = 0
        while True:
            new = self._journal.events[seen:]
            seen += len(new)
            if any(isinstance(event.body, RewindRequested) for event in new):
                await self._rewind(tasks)
            await self._journal.changed(seen)

    async def _rewind(self, tasks: TaskGroup) -> bool:
        """Answer the open requests to rewind; True if there were any."""
        forks = await self._branching.rewind()
        for fork in forks:
            for number in self._branching.beyond(fork, frozenset(self._at_work)):
                self._stop(number, fork.reason)
            if fork.attempt not in self._at_work:
                self._start(tasks, fork.attempt)
        return bool(forks)

    async def _end(self, number: int, outcome: Outcome, reason: str) -> None:
        """End an attempt from outside; its last save point stays."""
        await self._sandboxes.gone(number, reason)
        if self._ended(number) is not None:
            return
        so_far = progress(effective(AttemptJournal(self._journal, number).events), number)
        setup, base = self._setup, self._setup.results.so_far.diagnoses
        found: Comparison = so_far.comparison or compare(base, base)
        await self._journal.append(AttemptEnded(number, outcome, reason, so_far.commit or setup.base, found))


async def _at_once(sandbox: Sandbox) -> Sandbox:
    return sandbox


def _proven_first(winner: int) -> str:
    return f"Attempt {winner} was proven first."
