"""A run as people see it: what `ps`, the server and the final summary show. A pure fold of the log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from cloister.core.attempts import ForkedFrom, Score
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import Bug
from cloister.core.events import (
    ActionDecided,
    Advised,
    AskAnswered,
    AskRaised,
    AttemptEnded,
    AttemptForked,
    AttemptsRanked,
    AttemptStarted,
    BaseFixed,
    BaselineTaken,
    BudgetExtended,
    BudgetSpent,
    BudgetWarned,
    ChangeDelivered,
    ChangeMade,
    ChecksChosen,
    ChecksRan,
    ConnectionClosed,
    ConnectionDecided,
    ContextSummarised,
    Event,
    FinishRefused,
    Inherited,
    JudgeSpoke,
    ModelChosen,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    ModelSwitched,
    Phase,
    PhaseEnded,
    PhaseStarted,
    PolicyFixed,
    PromptReceived,
    ProofTaken,
    RequestDecided,
    RewindRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
    SaveRefused,
    StopRequested,
    StuckNoticed,
    ToolReturned,
    TurnEnded,
)
from cloister.core.ids import RunId
from cloister.core.log import effective
from cloister.core.requests import Budget, FileChange, Isolation, NewRun, Outcome, State, Usage
from cloister.feedback.compare import compare

_OfTheRun = (
    RunAdmitted
    | RunClaimed
    | RunResumed
    | RunContinued
    | PhaseStarted
    | PhaseEnded
    | StopRequested
    | RunFinished
)
_OfTheChoice = AttemptsRanked | JudgeSpoke | RewindRequested | Inherited
_OfThePlace = (
    BaseFixed
    | PolicyFixed
    | SandboxOpened
    | SandboxClosed
    | ChecksChosen
    | BaselineTaken
    | ConnectionDecided
    | ConnectionClosed
    | RequestDecided
    | ChangeMade
    | ChangeDelivered
)
_OfAnAttempt = (
    AttemptStarted
    | AttemptForked
    | ModelReplied
    | ModelFailed
    | ModelSwitched
    | ActionDecided
    | ToolReturned
    | ChecksRan
    | ProofTaken
    | SaveRefused
    | FinishRefused
    | TurnEnded
    | AttemptEnded
    | ContextSummarised
    | StuckNoticed
    | Advised
)
_OfTheBudget = ModelSpent | BudgetWarned | BudgetSpent | BudgetExtended
_OfPeople = PromptReceived | AskRaised | AskAnswered | ModelChosen


BudgetNote = BudgetWarned | BudgetSpent | BudgetExtended
"""What happened to a budget that the run draws from."""


class Message(msgspec.Struct, frozen=True):
    """What somebody said to the run while it worked."""

    text: str
    who: str
    at: float
    """Unix seconds."""


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt as it stands."""

    attempt: int
    model: str | None
    steps: int
    """Replies of the model, also those of turns that were lost."""
    usage: Usage
    commit: str | None
    """Its last save point."""
    comparison: Comparison | None
    """The newest checks against the baseline; None before the first."""
    outcome: Outcome | None
    """None while it works."""
    reason: str | None
    parent: int | None = None
    """The attempt that it was forked from."""
    at: int | None = None
    """The save point of the parent."""
    temperature: float | None = None
    cost: float | None = None
    """US dollars, as far as prices are known; None when none is."""


class RunView(msgspec.Struct, frozen=True):
    """One run as it stands."""

    id: RunId
    state: State
    prompt: str
    repo: str
    who: str
    created_at: float
    """Unix seconds."""
    last_seq: int
    phase: Phase | None
    """What it is busy with; None between phases and after the end."""
    base_commit: str | None
    base_branch: str | None
    note: str | None
    """What the caller should know about the base."""
    models: tuple[str, ...]
    checks: tuple[str, ...]
    red_before: int | None
    """Failing tests, or whole checks where no test explains it, on the untouched base; None before the baseline."""
    red_now: int | None
    """The same for the attempt that won; until then for the one that is furthest."""
    fixed: tuple[str, ...]
    """Red before and green now, in that same attempt."""
    steps: int
    usage: Usage
    seconds: float
    """Wall time from the first claim to the end, or to now."""
    files: tuple[FileChange, ...]
    branch: str | None
    """Of the result."""
    commit: str | None
    """Of the result."""
    delivered_to: str | None
    summary: str | None
    """What the change says of itself."""
    outcome: Outcome | None
    reason: str | None
    winner: int | None
    """The attempt that won."""
    isolation: Isolation | None
    attempts: tuple[AttemptView, ...]
    asks: tuple[AskRaised, ...]
    """Questions that wait for a person."""
    messages: tuple[Message, ...]
    stopping: bool
    """Somebody asked it to stop and it has not ended yet."""
    forked_from: ForkedFrom | None = None
    """The save point of another run that it goes on from."""
    ranking: tuple[Score, ...] = ()
    """What the evidence said of its attempts, best first."""
    budget: Budget = Budget()
    """What all its attempts together may spend."""
    cost: float | None = None
    """US dollars, as far as prices are known; None when none is."""
    budget_notes: tuple[BudgetNote, ...] = ()
    """Warnings, refusals and extensions of any level that it draws from."""
    rounds: int = 1
    """1, and one more each time a message continued the finished run."""


@dataclass(slots=True)
class _Attempt:
    model: str | None = None
    temperature: float | None = None
    parent: int | None = None
    at: int | None = None
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    commit: str | None = None
    comparison: Comparison | None = None
    ended: AttemptEnded | None = None
    cut_off: RunFinished | None = None
    """The end of the round in which it worked, if a later round began."""
    cost: float | None = None

    def pay(self, cost: float | None) -> None:
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


@dataclass(slots=True)
class _Draft:
    """What was gathered so far."""

    admitted: RunAdmitted
    claimed_at: float | None = None
    finished_at: float | None = None
    finished: RunFinished | None = None
    rounds: int = 1
    seconds_before: float = 0.0
    """Of the rounds before this one."""
    phases: list[Phase] = field(default_factory=list[Phase])
    """Those that are open, the innermost last."""
    stop_asked: bool = False
    ranking: tuple[Score, ...] = ()
    base: BaseFixed | None = None
    isolation: Isolation | None = None
    checks: tuple[str, ...] = ()
    baseline: tuple[Diagnosis, ...] | None = None
    change: ChangeMade | None = None
    delivered: ChangeDelivered | None = None
    attempts: dict[int, _Attempt] = field(default_factory=dict[int, _Attempt])
    asks: dict[str, AskRaised] = field(default_factory=dict[str, AskRaised])
    messages: list[Message] = field(default_factory=list[Message])
    beside: _Attempt = field(default_factory=_Attempt)
    """What was spent for the run and for no attempt of it."""
    budget_notes: list[BudgetNote] = field(default_factory=list[BudgetNote])


def fold(events: Sequence[Event], now: float | None = None) -> RunView:
    """The run that the whole log `events` tells of; `now` (None: when its last event happened) is Unix seconds."""
    if not events or not isinstance(events[0].body, RunAdmitted):
        raise Bug("A run's log starts with its admission.")
    draft = _Draft(admitted=events[0].body)
    for event in effective(events):
        body = event.body
        match body:
            case (
                RunAdmitted()
                | RunClaimed()
                | RunResumed()
                | RunContinued()
                | PhaseStarted()
                | PhaseEnded()
                | StopRequested()
                | RunFinished()
            ):
                _of_the_run(draft, body, event.at)
            case AttemptsRanked() | JudgeSpoke() | RewindRequested() | Inherited():
                _of_the_choice(draft, body)
            case (
                BaseFixed()
                | PolicyFixed()
                | SandboxOpened()
                | SandboxClosed()
                | ChecksChosen()
                | BaselineTaken()
                | ConnectionDecided()
                | ConnectionClosed()
                | RequestDecided()
                | ChangeMade()
                | ChangeDelivered()
            ):
                _of_the_place(draft, body)
            case PromptReceived() | AskRaised() | AskAnswered() | ModelChosen():
                _of_people(draft, body, event.at)
            case ModelSpent() | BudgetWarned() | BudgetSpent() | BudgetExtended():
                _of_the_budget(draft, body)
            case _:
                _of_an_attempt(draft.attempts.setdefault(body.attempt, _Attempt()), body)
    return _view(draft, events, events[-1].at if now is None else now)


def _of_the_run(draft: _Draft, body: _OfTheRun, at: float) -> None:
    match body:
        case RunAdmitted():
            draft.admitted = body
        case RunClaimed():
            draft.claimed_at = at if draft.claimed_at is None else draft.claimed_at
            draft.phases.clear()  # what a dead owner had begun is over
        case PhaseStarted():
            draft.phases.append(body.phase)
        case PhaseEnded():
            if body.phase in draft.phases:
                draft.phases.remove(body.phase)
        case StopRequested():
            draft.stop_asked = True
        case RunFinished():
            draft.finished, draft.finished_at = body, at
        case RunContinued():
            _reopen(draft)
        case RunResumed():
            pass
        case _:
            assert_never(body)


def _reopen(draft: _Draft) -> None:
    """A new round begins: its outcome is open, its time comes on top of that of the rounds before."""
    draft.seconds_before = _seconds(draft, 0.0)
    draft.claimed_at = draft.finished_at = None
    for attempt in draft.attempts.values():
        attempt.cut_off = attempt.cut_off or draft.finished
    draft.finished, draft.stop_asked, draft.ranking = None, False, ()
    draft.asks.clear()
    draft.rounds += 1


def _of_the_choice(draft: _Draft, body: _OfTheChoice) -> None:
    match body:
        case AttemptsRanked():
            draft.ranking = body.scores
        case JudgeSpoke() | RewindRequested() | Inherited():
            pass
        case _:
            assert_never(body)


def _of_the_place(draft: _Draft, body: _OfThePlace) -> None:
    match body:
        case BaseFixed():
            draft.base = body
        case SandboxOpened():
            draft.isolation = body.isolation
        case ChecksChosen():
            draft.checks = body.checks
        case BaselineTaken():
            draft.baseline = body.diagnoses
        case ChangeMade():
            draft.change, draft.delivered = body, None
        case ChangeDelivered():
            draft.delivered = body
        case SandboxClosed() | ConnectionDecided() | ConnectionClosed() | RequestDecided() | PolicyFixed():
            pass
        case _:
            assert_never(body)


def _of_an_attempt(attempt: _Attempt, body: _OfAnAttempt) -> None:
    match body:
        case AttemptForked():
            attempt.parent, attempt.at = body.parent, body.at_seq
        case AttemptStarted():
            attempt.model, attempt.temperature = body.model, body.temperature
        case ModelSwitched():
            attempt.model = body.to_model
        case ModelReplied():
            attempt.steps += 1
            attempt.usage += body.usage
            attempt.pay(body.cost)
        case ChecksRan() | ProofTaken():
            attempt.comparison = body.comparison
        case TurnEnded():
            attempt.commit = body.commit
        case AttemptEnded():
            attempt.ended, attempt.comparison, attempt.commit = body, body.comparison, body.commit
        case ModelFailed() | ActionDecided() | ToolReturned() | SaveRefused() | FinishRefused():
            pass
        case ContextSummarised() | StuckNoticed() | Advised():
            pass
        case _:
            assert_never(body)


def _of_the_budget(draft: _Draft, body: _OfTheBudget) -> None:
    match body:
        case ModelSpent():
            whose = body.attempt
            payer = draft.beside if whose is None else draft.attempts.setdefault(whose, _Attempt())
            payer.usage += body.usage
            payer.pay(body.cost)
        case BudgetWarned() | BudgetSpent() | BudgetExtended():
            draft.budget_notes.append(body)
        case _:
            assert_never(body)


def _of_people(draft: _Draft, body: _OfPeople, at: float) -> None:
    match body:
        case PromptReceived():
            draft.messages.append(Message(body.text, body.who, at))
        case AskRaised():
            draft.asks[body.ask] = body
        case AskAnswered():
            draft.asks.pop(body.ask, None)
        case ModelChosen():
            for attempt in draft.attempts.values():
                attempt.model = attempt.model if attempt.ended else body.model
        case _:
            assert_never(body)


def red(diagnoses: Sequence[Diagnosis]) -> int:
    """How many are red, counted as a comparison counts: failing tests, and checks that tests do not explain."""
    return compare(diagnoses, diagnoses).red


def _leading(draft: _Draft) -> Comparison | None:
    """The comparison that stands for the run: the winner's, or the one with the least red."""
    winner = draft.finished.attempt if draft.finished else None
    if winner is not None and winner in draft.attempts:
        return draft.attempts[winner].comparison
    attempts = draft.attempts.values()
    own = [attempt for attempt in attempts if attempt.cut_off is None]
    found = [one.comparison for one in own or attempts if one.comparison is not None]
    return min(found, key=lambda comparison: comparison.red, default=None)


def _state(draft: _Draft) -> State:
    if draft.finished is not None:
        return "finished"
    return "queued" if draft.claimed_at is None else "running"


def _seconds(draft: _Draft, now: float) -> float:
    if draft.claimed_at is None:
        return draft.seconds_before
    end = now if draft.finished_at is None else draft.finished_at
    # The clock of the machine may be set back.
    return draft.seconds_before + max(0.0, end - draft.claimed_at)


def _attempt_views(draft: _Draft) -> tuple[AttemptView, ...]:
    def ended(attempt: _Attempt) -> tuple[Outcome | None, str | None]:
        """Its own end, or else that of its round."""
        if attempt.ended:
            return attempt.ended.outcome, attempt.ended.reason
        cut_off = attempt.cut_off or draft.finished
        return ("stopped", cut_off.reason) if cut_off else (None, None)

    return tuple(
        AttemptView(
            attempt=number,
            model=attempt.model,
            steps=attempt.steps,
            usage=attempt.usage,
            commit=attempt.commit,
            comparison=attempt.comparison,
            outcome=ended(attempt)[0],
            reason=ended(attempt)[1],
            parent=attempt.parent,
            at=attempt.at,
            temperature=attempt.temperature,
            cost=attempt.cost,
        )
        for number, attempt in sorted(draft.attempts.items())
    )


def _view(draft: _Draft, events: Sequence[Event], now: float) -> RunView:
    request: NewRun = draft.admitted.request
    attempts = _attempt_views(draft)
    base, change, finished = draft.base, draft.change, draft.finished
    delivered = draft.delivered
    before = None if draft.baseline is None else red(draft.baseline)
    leading = _leading(draft)
    return RunView(
        id=events[0].run,
        state=_state(draft),
        prompt=request.prompt,
        repo=request.repo,
        who=draft.admitted.who,
        created_at=events[0].at,
        last_seq=events[-1].seq,
        phase=draft.phases[-1] if draft.phases and finished is None else None,
        base_commit=base and base.commit,
        base_branch=base and base.branch,
        note=base and base.note,
        models=tuple(dict.fromkeys(view.model for view in attempts if view.model is not None)),
        checks=draft.checks,
        red_before=before,
        red_now=before if leading is None else leading.red,
        fixed=leading.fixed if leading else (),
        steps=sum(view.steps for view in attempts),
        usage=sum((view.usage for view in attempts), draft.beside.usage),
        seconds=_seconds(draft, now),
        files=change.files if change else (),
        branch=delivered.branch if delivered else change and change.branch,
        commit=change and change.commit,
        delivered_to=delivered and delivered.where,
        summary=change and change.summary,
        outcome=finished and finished.outcome,
        reason=finished and finished.reason,
        winner=finished and finished.attempt,
        isolation=draft.isolation,
        attempts=attempts,
        asks=() if finished else tuple(ask for ask in draft.asks.values() if ask.deadline > now),
        messages=tuple(draft.messages),
        stopping=draft.stop_asked and finished is None,
        forked_from=request.forked_from,
        ranking=draft.ranking,
        budget=request.budget,
        cost=_total([*(view.cost for view in attempts), draft.beside.cost]),
        budget_notes=tuple(draft.budget_notes),
        rounds=draft.rounds,
    )


def _total(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None
