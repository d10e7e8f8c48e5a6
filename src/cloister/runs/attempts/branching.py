"""New attempts of a run: a search continues from save points, people rewind to them, later rounds begin at them."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import anyio

from cloister.core import limits
from cloister.core.attempts import Stuck, parse_search, wishes
from cloister.core.events import (
    AttemptEnded,
    AttemptForked,
    AttemptStarted,
    BaseFixed,
    Delegated,
    RewindRequested,
    RunContinued,
    StuckNoticed,
)
from cloister.core.log import (
    Index,
    Journal,
    SavePoint,
    attempts_of,
    depth,
    next_attempt,
    root_of,
    round_start,
    save_points,
)
from cloister.core.requests import Budget
from cloister.core.text import one_line
from cloister.feedback.compare import compare
from cloister.runs.attempts.context import RunSetup
from cloister.runs.attempts.scores import Node, Tree, plan, unspent
from cloister.runs.attempts.tree import all_points, point_at


class Branching:
    """Decides on forks and records them; the caller starts the attempts."""

    def __init__(self, journal: Journal, setup: RunSetup) -> None:
        self._journal = journal
        self._setup = setup
        self._one_at_a_time = anyio.Lock()
        """The log gives out the numbers of attempts, so decisions must not overlap."""

    def forked(self) -> tuple[int, ...]:
        """The attempts that were forked in this round."""
        events = self._journal.events
        return tuple(
            e.body.attempt for e in events[round_start(events) :] if isinstance(e.body, AttemptForked)
        )

    async def continued(self) -> bool:
        """Fork the attempt with which a later round begins; False if there is nothing to continue.

        It has the conversation and the files of the result of the rounds before, and the whole budget.
        """
        events = self._journal.events
        start = round_start(events)
        if not (before := attempts_of(events[:start])):
            return False
        body, asked = events[start].body, events[start].seq
        assert isinstance(body, RunContinued)  # noqa: S101  (by `round_start`)
        if not any(isinstance(e.body, AttemptForked) and e.body.asked == asked for e in events[start:]):
            parent, at = before[0], 0
            moved = any(isinstance(event.body, BaseFixed) for event in events[start:])
            now = events if moved else events[:start]
            if all_points(now):
                parent, point = point_at(now, None)
                at = point.seq
            reason = f"Continued by {one_line(body.who, 100)}."
            budget = self._setup.request.budget
            fork = AttemptForked(self._next(), parent, at, reason, budget, "", asked=asked)
            await self._journal.append(fork)
        return True

    def fork_of(self, attempt: int) -> AttemptForked | None:
        return self._journal.index.first(AttemptForked, attempt=attempt)

    async def search(self, stuck: Stuck, at_work: AbstractSet[int]) -> tuple[AttemptForked, ...]:
        """The forks that replace a stuck attempt; after a crash the same ones again."""
        search = parse_search(self._setup.request.search or "")
        if search is None:
            return ()
        await self._setup.results.ready()  # the search compares save points with the base
        async with self._one_at_a_time:
            earlier = self._journal.index.of(AttemptForked)
            if known := tuple(fork for fork in earlier if fork.stuck == stuck.attempt):
                return known
            wanted = plan(
                search,
                self._tree(stuck.attempt, at_work),
                stuck.attempt,
                self._left(stuck.attempt, held=True),
            )
            evidence = one_line(stuck.evidence, 400)
            number = self._next()
            forks = tuple(
                AttemptForked(
                    attempt=number + offset,
                    parent=fork.parent,
                    at_seq=fork.point.seq,
                    reason=f"attempt {stuck.attempt} is stuck: {evidence}",
                    budget=fork.budget,
                    hint=_ANOTHER_WAY.format(evidence=evidence),
                    stuck=stuck.attempt,
                )
                for offset, fork in enumerate(wanted)
            )
            if forks:
                await self._journal.append(*forks)
            return forks

    async def delegated(self, made: Callable[[int], Delegated]) -> Delegated:
        """Record the helper that `made` describes, with a number of its own."""
        async with self._one_at_a_time:
            body = made(self._next())
            await self._journal.append(body)
            return body

    async def rewind(self) -> tuple[AttemptForked, ...]:
        """Answer every open request to rewind."""
        async with self._one_at_a_time:
            events = self._journal.events
            index = Index(events[round_start(events) :])
            answered = {fork.asked for fork in index.of(AttemptForked)}
            forks: list[AttemptForked] = []
            for event, body in list(index.events(RewindRequested)):
                if event.seq not in answered:
                    fork = self._rewound(event.seq, body, self._next() + len(forks))
                    if fork is not None:
                        forks.append(fork)
            if forks:
                await self._journal.append(*forks)
            return tuple(forks)

    def beyond(self, fork: AttemptForked, at_work: AbstractSet[int]) -> tuple[int, ...]:
        """The working attempts that passed the save point to which a person went back."""
        events = self._journal.events
        return tuple(
            number
            for number in sorted(at_work)
            if number != fork.attempt and any(p.seq == fork.at_seq for p in save_points(events, number))
        )

    def left_behind(self, number: int) -> AttemptForked | None:
        """The rewinding that replaced attempt `number`; a crash may have come before the stop."""
        forks = self._journal.index.of(AttemptForked)
        asked = (fork for fork in forks if fork.asked is not None and number < fork.attempt)
        return next((fork for fork in asked if self.beyond(fork, {number})), None)

    def _rewound(self, asked: int, body: RewindRequested, number: int) -> AttemptForked | None:
        events = self._journal.events
        for attempt in attempts_of(events):
            for point in save_points(events, attempt):
                if point.seq == body.to and number < limits.SEARCH_NODES:
                    # A call under way is cut off and its reservation released.
                    left = self._left(attempt, held=False)
                    budget = self._minus_replacements(left, attempt, point.seq)
                    reason = f"Rewound to event {body.to} by {body.who}."
                    return AttemptForked(number, attempt, point.seq, reason, budget, "", asked=asked)
        return None

    def _minus_replacements(self, left: Budget, attempt: int, back_to: int) -> Budget:
        """`left` minus the budget of the attempts that replaced `attempt`, spent or still reserved."""
        events, index = self._journal.events, self._journal.index
        ended = {body.attempt for body in index.of(AttemptEnded)}
        for fork in index.of(AttemptForked):
            if attempt != (fork.parent if fork.stuck is None else fork.stuck):
                continue
            given = fork.budget
            if fork.attempt in ended or any(p.seq == back_to for p in save_points(events, fork.attempt)):
                rest = self._left(fork.attempt, held=False)
                rest = self._minus_replacements(rest, fork.attempt, back_to)
                dollars = (given.dollars or 0.0) - (rest.dollars or 0.0)
                left = unspent(left, given.steps - rest.steps, given.tokens - rest.tokens, dollars)
            else:
                left = unspent(left, given.steps, given.tokens, given.dollars or 0.0)
        return left

    def _next(self) -> int:
        # The first attempts have their numbers before they begin.
        return max(next_attempt(self._journal.events), len(wishes(self._setup.request)))

    def _tree(self, stuck: int, at_work: AbstractSet[int]) -> Tree:
        events, index = self._journal.events, self._journal.index
        setup = self._setup
        given_up = {body.attempt for body in index.of(StuckNoticed) if body.stage != "nudge"}
        nodes = tuple(
            Node(
                attempt=number,
                root=root_of(events, number),
                depth=depth(events, number),
                live=number in at_work and number != stuck,
                stuck=number == stuck or (number in given_up and number not in at_work),
                points=save_points(events, number),
            )
            for number in attempts_of(events[round_start(events) :])
        )
        commits = {point.seq: point.commit for node in nodes for point in node.points} | {0: setup.base}
        taken = frozenset(
            (root_of(events, fork.parent), commits[fork.at_seq])
            for fork in index.of(AttemptForked)
            if fork.at_seq in commits
        )
        base = SavePoint(0, 0, setup.base, None)
        found = setup.results.so_far.diagnoses
        return Tree(nodes, base, compare(found, found).red, taken)

    def _left(self, attempt: int, *, held: bool) -> Budget:
        """The unspent budget of an attempt."""
        started = self._journal.index.first(AttemptStarted, attempt=attempt)
        given = started and started.budget
        took = self._setup.models.spent(attempt, held=held)
        return unspent(given or self._setup.request.budget, took.steps, took.tokens, took.dollars)


_ANOTHER_WAY = (
    "An earlier attempt continued from exactly this point and got stuck: {evidence} "
    "Its work after this point is undone. Take another way."
)
