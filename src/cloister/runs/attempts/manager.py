"""The attempts of one run, each in its own sandbox: started, rebuilt when their sandbox dies, stopped, ended."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio.abc import TaskGroup

from cloister.agent.attempt import NATIVE, choose_harness, work
from cloister.agent.budget.metering import BudgetedModels
from cloister.agent.evidence.evidence import Evidence
from cloister.agent.harness import Workplace
from cloister.agent.progress import progress
from cloister.agent.ranking import unspent
from cloister.agent.roles import Adviser, review
from cloister.core.attempts import Answer, AttemptWish, Branch, GiveUp, Stuck, shared, wishes
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
from cloister.core.log import Journal, effective, root_of
from cloister.core.requests import Budget, Outcome
from cloister.feedback.compare import compare
from cloister.feedback.goals import asked
from cloister.forge import change
from cloister.log.journal import AttemptJournal
from cloister.runs.attempts.branching import Growth
from cloister.runs.attempts.context import Course, Places, SavedFiles
from cloister.runs.services import Means
from cloister.sandbox.api import Sandbox

_LIVES = 3
"""Sandboxes one attempt may use up before it fails."""


class _Gate:
    """Attempts that begin together wait until all have their sandboxes."""

    def __init__(self, awaited: Iterable[int]) -> None:
        self._awaited = set(awaited)
        self.all_here = anyio.Event()
        self.open = anyio.Event()

    def arrive(self, number: int) -> None:
        """It has its sandbox, or will not come."""
        self._awaited.discard(number)
        if not self._awaited:
            self.all_here.set()


class Attempts:
    """All attempts of one run: those it begins with and those that searching and rewinding add."""

    def __init__(self, means: Means, journal: Journal, course: Course, sandbox: Sandbox) -> None:
        self._means = means
        self._journal = journal
        self._course = course
        self._places = Places(means, journal, course, sandbox)
        self._growth = Growth(journal, course)
        self._wishes = wishes(course.request)
        self._alone = len(self._wishes) == 1 and course.request.search is None
        """A single attempt works in the warm sandbox itself, several in forks of it."""
        self._at_work: dict[int, anyio.CancelScope] = {}
        self._stopped: dict[int, str] = {}
        """Attempts that are to end now → why."""
        self._idle = anyio.Event()

    async def run(self) -> tuple[AttemptEnded, ...]:
        """Run them all to their ends; returns those, by number. What the log knows is not done again."""
        self._course.inside.shut(None)  # what began before the attempts did is nobody's from here on
        known = [*range(len(self._wishes)), *self._growth.forked()]
        todo = [number for number in known if self._ended(number) is None]
        async with anyio.create_task_group() as tasks:
            await self._begin(tasks, todo)
            tasks.start_soon(self._heed_rewinds, tasks)
            while True:
                await self._all_ended()
                if not await self._rewind(tasks):
                    break
            tasks.cancel_scope.cancel()
        numbers = [*range(len(self._wishes)), *self._growth.forked()]
        return tuple(ended for number in numbers if (ended := self._ended(number)) is not None)

    async def _begin(self, tasks: TaskGroup, todo: list[int]) -> None:
        """Start attempts together: all have their sandboxes before any of them works."""
        if self._alone or not todo:
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
        """Why it need not work, as the log has it: also what was decided and not yet done when somebody crashed."""
        winner, back = self._first_green(), self._growth.left_behind(number)
        if winner is not None:
            return _proven_first(winner)
        return back and back.reason

    def _first_green(self) -> int | None:
        """The attempt that makes all others needless."""
        if not self._course.request.first_green:
            return None
        found = self._journal.index.of(AttemptEnded)
        return next((body.attempt for body in found if body.outcome == "green"), None)

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
        """One of several that fails does not take the others with it."""
        try:
            await self._lives(tasks, number, gate)
        except Exception as error:
            cause = sole(error)
            if self._alone or isinstance(cause, Fenced) or not isinstance(cause, CloisterError):
                raise cause from None
            await self._end(number, "failed", cause.message)

    async def _lives(self, tasks: TaskGroup, number: int, gate: _Gate | None) -> None:
        journal = AttemptJournal(self._journal, number)
        models = self._models(number)
        begun = await self._begun(number, models)
        for life in range(_LIVES):
            try:
                async with self._place(number, journal, life, gate) as sandbox:
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
        """Attempts that were forked are like the one that they descend from."""
        return self._wishes[root_of(self._journal.events, number)]

    def _models(self, number: int) -> BudgetedModels:
        wish = self._wish(number)
        models = self._course.models
        models = models if wish.model is None else models.instead(wish.model)
        return models if wish.temperature is None else models.at(wish.temperature)

    async def _begun(self, number: int, models: BudgetedModels) -> AttemptStarted:
        if begun := self._journal.index.first(AttemptStarted, attempt=number):
            return begun
        wish = self._wish(number)
        fork = self._growth.fork_of(number)
        started = AttemptStarted(
            number,
            models.role("code").name,
            parent=fork and fork.parent,
            at=fork and fork.at_seq,
            temperature=wish.temperature,
            hint=fork.hint if fork else wish.hint,
            budget=fork.budget if fork else self._share(number),
        )
        await self._journal.append(started, *self._left_out(started, models))
        return started

    def _share(self, number: int) -> Budget:
        """Its part of what the run had left when the attempts began."""
        whole = self._course.request.budget
        if self._alone:
            return whole
        before = self._course.models.spent(None)
        left = unspent(whole, before.steps, before.tokens, before.dollars)
        return shared(left, self._wishes)[number]

    def _left_out(self, started: AttemptStarted, models: BudgetedModels) -> tuple[ModelSwitched, ...]:
        """A note for each model that would come before or after its own and cannot be asked here."""
        if started.parent is not None or self._wish(started.attempt).model is not None:
            return ()
        first = models.chain("code")[0]
        lacking = self._means.left_out(self._course.request).items()
        return tuple(ModelSwitched(started.attempt, name, first, why) for name, why in lacking)

    @asynccontextmanager
    async def _place(
        self, number: int, journal: Journal, life: int, gate: _Gate | None
    ) -> AsyncGenerator[Sandbox]:
        """A sandbox whose files are those of the attempt's last save point."""
        commit = progress(effective(journal.events), number).commit or self._course.base
        if life == 0 and self._alone and number == 0:
            await self._bring(self._places.warm, commit)
            yield self._places.warm
        elif life == 0 and not self._alone:
            async with self._places.fork(number) as sandbox:
                if gate is not None:
                    gate.arrive(number)
                    await gate.open.wait()
                await self._bring(sandbox, commit)
                yield sandbox
        else:
            if gate is not None:
                gate.arrive(number)  # the others need not wait for one that comes late
            async with self._places.fresh(number, commit) as sandbox:
                yield sandbox

    async def _bring(self, sandbox: Sandbox, commit: str) -> None:
        if commit != self._course.base:
            await self._places.restore(sandbox, commit)

    async def _work(
        self,
        tasks: TaskGroup,
        begun: AttemptStarted,
        journal: Journal,
        models: BudgetedModels,
        sandbox: Sandbox,
    ) -> None:
        course, number = self._course, begun.attempt
        budget = begun.budget or course.request.budget
        searching = course.request.search is not None
        paying = models.of(number, budget)
        inside = paying.for_programs_inside()
        place = Workplace(
            attempt=number,
            journal=journal,
            computer=sandbox,
            models=paying,
            policy=self._means.run_policy(course.request),
            budget=budget,
            ask_seconds=self._means.ask_seconds,
            patience=self._means.patience,
            escalate=partial(self._escalate, tasks) if searching else None,
        )
        evidence = Evidence(
            attempt=number,
            journal=journal,
            computer=sandbox,
            files=SavedFiles(sandbox, course, number),
            prove=partial(self._places.prove, number, inside),
            base=course.base,
            checks=course.checks,
            baseline=course.baseline,
            goals=asked(course.request.prompt, course.baseline, course.request.checks, course.request.asked),
            review=partial(self._review, Adviser(paying, journal, number)),
            cpus=self._means.quota.cpus,
        )
        with course.inside.paid(sandbox.info.id, number, inside):
            await work(place, evidence, choose_harness(NATIVE))

    async def _review(self, adviser: Adviser, commit: str, summary: str) -> str:
        diff = await change.diff(self._course.bare, self._course.base, commit)
        return await review(adviser, self._course.request.prompt, diff, summary)

    async def _escalate(self, tasks: TaskGroup, stuck: Stuck) -> Answer:
        """A stuck attempt is gone on with from the best save points, if the search finds any."""
        self._course.inside.shut(stuck.attempt)
        forks = await self._growth.search(stuck, frozenset(self._at_work))
        for fork in forks:
            if fork.attempt not in self._at_work and self._ended(fork.attempt) is None:
                self._start(tasks, fork.attempt)
        if forks:
            return Branch(tuple(fork.attempt for fork in forks))
        return GiveUp(f"It is stuck ({stuck.evidence}) and there is no save point or budget to go on from.")

    async def _heed_rewinds(self, tasks: TaskGroup) -> None:
        seen = 0
        while True:
            new = self._journal.events[seen:]
            seen += len(new)
            if any(isinstance(event.body, RewindRequested) for event in new):
                await self._rewind(tasks)
            await self._journal.changed(seen)

    async def _rewind(self, tasks: TaskGroup) -> bool:
        """Do what people asked for and nobody did yet: whether there was anything."""
        forks = await self._growth.rewind()
        for fork in forks:
            for number in self._growth.beyond(fork, frozenset(self._at_work)):
                self._stop(number, fork.reason)
            if fork.attempt not in self._at_work:
                self._start(tasks, fork.attempt)
        return bool(forks)

    async def _end(self, number: int, outcome: Outcome, reason: str) -> None:
        """End it from outside; what its last save point holds stays."""
        await self._places.gone(number, reason)
        if self._ended(number) is not None:
            return
        so_far = progress(effective(AttemptJournal(self._journal, number).events), number)
        course = self._course
        found: Comparison = so_far.comparison or compare(course.baseline, course.baseline)
        await self._journal.append(AttemptEnded(number, outcome, reason, so_far.commit or course.base, found))


def _proven_first(winner: int) -> str:
    return f"Attempt {winner} was proven first."
