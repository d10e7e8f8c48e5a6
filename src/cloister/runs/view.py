"""The state of a run for people: `ps`, the server and the final summary. Pure, from the log."""

from collections.abc import Iterable, Sequence

import msgspec

from cloister.core.attempts import ForkedFrom, Score
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.errors import Bug
from cloister.core.events import (
    BESIDE_WORK,
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
    Delegated,
    DeliveryFailed,
    Event,
    EventBody,
    FinishRefused,
    ModelChosen,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    ModelSwitched,
    NoteProposed,
    PauseRequested,
    Phase,
    PhaseEnded,
    PhaseStarted,
    PolicyFixed,
    PromptReceived,
    ProofTaken,
    QuestionAnswered,
    QuestionAsked,
    ResumeRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunPaused,
    SandboxOpened,
    SaveRefused,
    StopRequested,
    StuckNoticed,
    TurnEnded,
)
from cloister.core.events.run import BasePart, pause_reason
from cloister.core.ids import RunId
from cloister.core.log import Index, effective, pictures_of, round_start
from cloister.core.requests import Attachment, Budget, FileChange, Isolation, Outcome, State, Usage
from cloister.feedback.compare import compare

BudgetNote = BudgetWarned | BudgetSpent | BudgetExtended
"""What happened to a budget that the run draws from."""


class Message(msgspec.Struct, frozen=True):
    """A message of a person to the run."""

    text: str
    who: str
    at: float
    """Unix seconds."""


class AttemptView(msgspec.Struct, frozen=True):
    """The state of one attempt."""

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
    """US dollars, as far as prices are known; None if none is."""
    harness: str | None = None
    """What drives it: `native` or `repair`; None before it started."""


class RepositoryView(msgspec.Struct, frozen=True):
    """One repository of a run on several."""

    folder: str
    """Where it is in the work tree."""
    repo: str
    base: str
    base_branch: str | None
    commit: str | None
    """Its part of the result; None if it is unchanged."""
    files: int
    """How many of its files changed."""
    branch: str | None = None
    """Of the result, once it is delivered."""
    delivered_to: str | None = None
    pull_request: str = ""
    not_delivered: str = ""


class Looked(msgspec.Struct, frozen=True):
    """The pictures of one page that the attempt took: the winning one, else the first."""

    name: str
    before: Attachment
    """The first."""
    after: Attachment | None
    """The last; None if there is only one."""


class RunView(msgspec.Struct, frozen=True):
    """The state of one run."""

    id: RunId
    state: State
    prompt: str
    repo: str
    who: str
    created_at: float
    """Unix seconds."""
    last_seq: int
    phase: Phase | None
    """The current phase; None between phases and after the end."""
    base_commit: str | None
    base_branch: str | None
    note: str | None
    """A note for the caller about the base."""
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
    """The summary of the change."""
    outcome: Outcome | None
    reason: str | None
    """How it ended, or why it is paused."""
    winner: int | None
    """The attempt that won."""
    isolation: Isolation | None
    attempts: tuple[AttemptView, ...]
    asks: tuple[AskRaised, ...]
    """Questions that wait for a person."""
    messages: tuple[Message, ...]
    stopping: bool
    """A person asked it to stop, and it has not ended yet."""
    forked_from: ForkedFrom | None = None
    """The save point of another run that it continues from."""
    ranking: tuple[Score, ...] = ()
    """The evidence for its attempts, best first."""
    budget: Budget = Budget()
    """The budget of all its attempts together."""
    cost: float | None = None
    """US dollars, as far as prices are known; None if none is."""
    budget_notes: tuple[BudgetNote, ...] = ()
    """Warnings, refusals and extensions of any level that it draws from."""
    pull_request: str = ""
    """The page of the pull request with the newest change; empty without one."""
    not_delivered: str = ""
    """Why the forge did not take the newest change."""
    questions: tuple[QuestionAsked, ...] = ()
    """Questions of the model without an answer; past their deadline the run goes on."""
    rounds: int = 1
    """1, and one more each time a message continued the finished run."""
    notes: tuple[str, ...] = ()
    """What it learned and proposes for later runs."""
    repositories: tuple[RepositoryView, ...] = ()
    """Of a run on several repositories: each one, with its part of the result."""
    shown_by: int | None = None
    """The event that shows why it did not end well; None while it works, and after a good end."""
    pictures: tuple[Looked, ...] = ()
    """Of the pages that it looked at."""


def fold(events: Sequence[Event], now: float | None = None) -> RunView:
    """Return the run that the whole log `events` describes, at `now` in Unix seconds (None: at its last event)."""
    if not events or not isinstance(events[0].body, RunAdmitted):
        raise Bug("A run's log starts with its admission.")
    admitted, counted = events[0].body, effective(events)
    index, newest = Index(counted), Index(counted[round_start(counted) :])
    now = events[-1].at if now is None else now
    request, finished, attempts = admitted.request, newest.last(RunFinished), _attempts(index)
    base, change, delivered = index.last(BaseFixed), index.last(ChangeMade), _delivered(index)
    opened, chosen, beside = index.last(SandboxOpened), index.last(ChecksChosen), _beside(index, attempts)
    baseline, ranked = index.last(BaselineTaken), newest.last(AttemptsRanked)
    before = None if baseline is None else red(baseline.diagnoses)
    leading = _leading([view for view in attempts if view.attempt in _numbers(newest)] or attempts, finished)
    return RunView(
        id=events[0].run,
        state=_state(newest),
        prompt=request.prompt,
        repo=request.repo,
        who=admitted.who,
        created_at=events[0].at,
        last_seq=events[-1].seq,
        phase=None if finished else _phase(newest),
        base_commit=base and base.commit,
        base_branch=base and base.branch,
        note=base and base.note,
        models=tuple(dict.fromkeys(view.model for view in attempts if view.model)),
        checks=chosen.checks if chosen else (),
        red_before=before,
        red_now=before if leading is None else leading.red,
        fixed=leading.fixed if leading else (),
        steps=sum(view.steps for view in attempts),
        usage=sum((one.usage for one in (*attempts, *beside)), Usage()),
        seconds=_seconds(index, now),
        files=change.files if change else (),
        branch=delivered.branch if delivered else change and change.branch,
        commit=change and change.commit,
        delivered_to=delivered and delivered.where,
        pull_request=delivered.url if delivered else "",
        not_delivered=_not_delivered(index),
        repositories=_repositories(index),
        summary=change and change.summary,
        outcome=finished and finished.outcome,
        reason=_reason(newest),
        winner=finished and finished.attempt,
        isolation=opened and opened.isolation,
        attempts=attempts,
        asks=() if finished else tuple(ask for ask in _open_asks(newest) if ask.deadline > now),
        questions=() if finished else _open_questions(newest),
        messages=_messages(index),
        stopping=finished is None and newest.first(StopRequested) is not None,
        forked_from=request.forked_from,
        ranking=ranked.scores if ranked else (),
        budget=_budget(newest, request.budget),
        cost=_total([*(view.cost for view in attempts), _total(spent.cost for spent in beside)]),
        budget_notes=tuple(index.of(BudgetWarned, BudgetSpent, BudgetExtended)),
        rounds=1 + len(index.of(RunContinued)),
        notes=_notes(index),
        shown_by=_shown_by(newest, finished),
        pictures=_pictures(counted, finished and finished.attempt),
    )


_SHOWS: dict[Outcome, tuple[type[EventBody], ...]] = {
    "red": (ChecksRan, ProofTaken, FinishRefused),
    "unbroken": (ProofTaken, FinishRefused),
    "unproven": (ProofTaken, FinishRefused, ChecksRan),
    "budget": (BudgetSpent,),
    "stopped": (StopRequested,),
    "failed": (ModelFailed, StuckNoticed, SaveRefused, FinishRefused, AttemptEnded),
}
"""Outcome → the events that show why, of which the last counts."""


def _shown_by(newest: Index, finished: RunFinished | None) -> int | None:
    if finished is None or finished.outcome not in _SHOWS:
        return None
    found = [event.seq for event, _ in newest.events(*_SHOWS[finished.outcome])]
    ends = [event.seq for event, _ in newest.events(RunFinished)]
    return (found or ends)[-1]


def _pictures(events: Sequence[Event], attempt: int | None) -> tuple[Looked, ...]:
    found = pictures_of(events, 0 if attempt is None else attempt)
    return tuple(Looked(name, all[0], all[-1] if len(all) > 1 else None) for name, all in found.items())


def _beside(index: Index, attempts: Sequence[AttemptView]) -> list[ModelReplied | ModelSpent]:
    """What the run itself and helpers paid."""
    numbers = {view.attempt for view in attempts}
    return [paid for paid in index.of(ModelReplied, ModelSpent) if paid.attempt not in numbers]


def _notes(index: Index) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.text for one in index.of(NoteProposed) if not one.written))


def _messages(index: Index) -> tuple[Message, ...]:
    return tuple(Message(body.text, body.who, event.at) for event, body in index.events(PromptReceived))


def _state(newest: Index) -> State:
    if newest.last(RunFinished) is not None:
        return "finished"
    match newest.last(RunClaimed, RunPaused):
        case RunPaused():
            return "paused"
        case RunClaimed() if _pause(newest):
            return "paused"
        case found:
            return "running" if found else "queued"


def _pause(newest: Index) -> PauseRequested | None:
    """Return the pause of a person that the run is in."""
    asked = newest.last(PauseRequested, ResumeRequested)
    return asked if isinstance(asked, PauseRequested) else None


def _reason(newest: Index) -> str | None:
    told = newest.last(RunFinished) or newest.last(RunClaimed, RunPaused)
    if isinstance(told, RunClaimed) and (pause := _pause(newest)):
        return pause_reason(pause.who)
    return None if told is None or isinstance(told, RunClaimed) else told.reason


def _repositories(index: Index) -> tuple[RepositoryView, ...]:
    base, change = index.last(BaseFixed), index.last(ChangeMade)
    if base is None or not base.parts:
        return ()
    made = max((event.seq for event, _ in index.events(ChangeMade)), default=0)
    ends = [(event.seq, body) for event, body in index.events(ChangeDelivered, DeliveryFailed)]
    newest = {body.folder: body for seq, body in ends if seq > made}
    commits = {part.folder: part.commit for part in change.parts} if change else {}

    def of(part: BasePart) -> RepositoryView:
        end, files = newest.get(part.folder), change.files if change else ()
        changed = sum(file.path.startswith(f"{part.folder}/") for file in files)
        view = RepositoryView(
            *(part.folder, part.repo, part.commit, part.branch, commits.get(part.folder), changed)
        )
        match end:
            case ChangeDelivered():
                return msgspec.structs.replace(
                    view, branch=end.branch, delivered_to=end.where, pull_request=end.url
                )
            case DeliveryFailed():
                return msgspec.structs.replace(view, not_delivered=end.reason)
            case None:
                return view

    return tuple(map(of, base.parts))


def _delivered(index: Index) -> ChangeDelivered | None:
    """Return the delivery of the newest change, if it was delivered."""
    newest = index.last(ChangeMade, ChangeDelivered)
    return newest if isinstance(newest, ChangeDelivered) else None


def _not_delivered(index: Index) -> str:
    newest = index.last(ChangeMade, ChangeDelivered, DeliveryFailed)
    if isinstance(newest, ChangeDelivered) and newest.folder:
        return " ".join(one.not_delivered for one in _repositories(index) if one.not_delivered)
    return newest.reason if isinstance(newest, DeliveryFailed) else ""


def red(diagnoses: Sequence[Diagnosis]) -> int:
    """Count the red as a comparison does: failing tests, and checks that no test explains."""
    return compare(diagnoses, diagnoses).red


_OF_AN_ATTEMPT = (
    AttemptStarted,
    AttemptForked,
    ModelReplied,
    ModelSpent,
    ChecksRan,
    TurnEnded,
    AttemptEnded,
)


def _numbers(index: Index) -> set[int]:
    named = {body.attempt for body in index.of(*_OF_AN_ATTEMPT)}
    helpers = {body.attempt for body in index.of(Delegated)}
    return {number for number in named if number is not None and number not in helpers}


def _attempts(index: Index) -> tuple[AttemptView, ...]:
    return tuple(_attempt(index, number) for number in sorted(_numbers(index)))


def _attempt(index: Index, number: int) -> AttemptView:
    started, forked = index.last(AttemptStarted, attempt=number), index.last(AttemptForked, attempt=number)
    ended = index.last(AttemptEnded, attempt=number)
    cut_off = None if ended else _round_end(index, number)
    saved = index.last(TurnEnded, AttemptEnded, attempt=number)
    evidence = index.last(ChecksRan, ProofTaken, AttemptEnded, attempt=number)
    paid = index.of(ModelReplied, ModelSpent, attempt=number)
    return AttemptView(
        attempt=number,
        model=_model(index, number),
        steps=len(index.of(ModelReplied, attempt=number)),
        usage=sum((body.usage for body in paid), Usage()),
        commit=saved and saved.commit,
        comparison=evidence and evidence.comparison,
        outcome=ended.outcome if ended else cut_off and "stopped",
        reason=ended.reason if ended else cut_off and cut_off.reason,
        parent=forked and forked.parent,
        at=forked and forked.at_seq,
        temperature=started and started.temperature,
        cost=_total(body.cost for body in paid),
        harness=started and started.harness,
    )


def _round_end(index: Index, number: int) -> RunFinished | None:
    """Return the end of the round in which an attempt worked, if it is over."""
    began = next((event.seq for event, _ in index.events(*_OF_AN_ATTEMPT, attempt=number)), 0)
    return next((body for event, body in index.events(RunFinished) if event.seq > began), None)


def _model(index: Index, number: int) -> str | None:
    """Return the model of an attempt: the one it started with, switched to, or that a person chose while it worked."""
    model: str | None = None
    working = False
    for body in index.of(
        AttemptForked, AttemptStarted, ModelReplied, ModelSwitched, ModelChosen, AttemptEnded
    ):
        if isinstance(body, ModelChosen):
            model = body.model if working else model
        elif body.attempt == number:
            working = not isinstance(body, AttemptEnded)
            if isinstance(body, AttemptStarted):
                model = body.model or None
            elif isinstance(body, ModelSwitched):
                model = body.to_model
    return model


def _leading(attempts: Sequence[AttemptView], finished: RunFinished | None) -> Comparison | None:
    """Return the comparison that stands for the run: the winner's, or the one with the least red."""
    if finished is not None:
        for view in attempts:
            if view.attempt == finished.attempt:
                return view.comparison
    found = [view.comparison for view in attempts if view.comparison is not None]
    return min(found, key=lambda comparison: comparison.red, default=None)


def _phase(index: Index) -> Phase | None:
    """Return the innermost open phase. A new owner starts without any: those of the dead owner are over.

    While attempts work, the phases beside them do not count.
    """
    phases: list[Phase] = []
    for body in index.of(RunClaimed, RunPaused, PhaseStarted, PhaseEnded):
        if isinstance(body, RunClaimed | RunPaused):
            phases.clear()
        elif isinstance(body, PhaseStarted):
            phases.append(body.phase)
        elif body.phase in phases:
            phases.remove(body.phase)
    if "work" in phases:
        phases = [phase for phase in phases if phase not in BESIDE_WORK]
    return phases[-1] if phases else None


def _open_asks(index: Index) -> Iterable[AskRaised]:
    asks: dict[str, AskRaised] = {}
    for body in index.of(AskRaised, AskAnswered):
        if isinstance(body, AskRaised):
            asks[body.ask] = body
        else:
            asks.pop(body.ask, None)
    return asks.values()


def _open_questions(index: Index) -> tuple[QuestionAsked, ...]:
    answered = {body.question for body in index.of(QuestionAnswered)}
    return tuple(body for body in index.of(QuestionAsked) if body.question not in answered)


def _budget(newest: Index, asked: Budget) -> Budget:
    """The budget within the limits of the rules in force."""
    fixed = newest.last(PolicyFixed)
    return asked if fixed is None or fixed.budget is None else fixed.budget


def _seconds(index: Index, now: float) -> float:
    """Sum the time of all rounds, each from its first claim to its end."""
    total, claimed = 0.0, None
    for event, body in index.events(RunClaimed, RunFinished):
        if isinstance(body, RunClaimed):
            claimed = event.at if claimed is None else claimed
        elif claimed is not None:
            total += max(0.0, event.at - claimed)  # the clock of the machine may be set back
            claimed = None
    return total if claimed is None else total + max(0.0, now - claimed)


def _total(costs: Iterable[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None
