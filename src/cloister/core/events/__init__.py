"""The entries of a run's log, and the live fragments that are streamed beside it.

The log is the run: the prompt, the screen, the audit, the cost and the resume are folds of these.
New fields get defaults and unknown fields are ignored, so old logs always load.
"""

from typing import Literal

import msgspec

from cloister.core.computer import Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events.attempt import AttemptForked, AttemptsRanked, JudgeSpoke, RewindRequested
from cloister.core.events.base import Body
from cloister.core.events.budget import BudgetExtended, BudgetSpent, BudgetWarned, ModelSpent
from cloister.core.events.network import ConnectionClosed, ConnectionDecided, RequestDecided
from cloister.core.ids import RunId
from cloister.core.requests import (
    Budget,
    FileChange,
    Isolation,
    NewRun,
    Origin,
    Outcome,
    Role,
    ToolCall,
    Usage,
)

Effect = Literal["allow", "deny", "ask"]
Blame = Literal["user", "host", "outside", "sandbox", "bug"]
StuckKind = Literal["repeats", "alternations", "unchanged", "idle", "malformed"]
Phase = Literal["fetch", "template", "create", "clone", "baseline", "fork", "work", "change"]


class RunAdmitted(Body, frozen=True):
    """Event 1: somebody asked, and the request is durable."""

    request: NewRun
    who: str


class RunClaimed(Body, frozen=True):
    """An owner drives the run from here. A second claim means the first owner died."""

    owner: str
    epoch: int


class RunResumed(Body, frozen=True):
    """The new owner goes on from the last ended turn; results of a half-done turn no longer count."""

    after_seq: int
    """The last event that still counts for each attempt's conversation is the last `TurnEnded` up to here."""
    attempt: int | None = None
    """The attempt whose sandbox was lost; None when all of them were."""


class RunContinued(Body, frozen=True):
    """A message reopened the finished run: a new round begins here, with the message as its next event."""

    who: str
    origin: Origin = "user"
    """Where the message came from: a person, a review comment, a failed CI job."""


class PhaseStarted(Body, frozen=True):
    phase: Phase


class PhaseEnded(Body, frozen=True):
    phase: Phase
    seconds: float


class BaseFixed(Body, frozen=True):
    """The commit everything starts from."""

    commit: str
    branch: str | None
    """None for a detached HEAD."""
    note: str | None = None
    """What the caller should know, e.g. that uncommitted files are not part of the run."""


class PolicyFixed(Body, frozen=True):
    """The rules that hold from here on."""

    layers: tuple[str, ...]
    """Strongest first: each layer's name and the file it was read from."""
    limited: tuple[str, ...] = ()
    """What the run gets less of than it asked for, and the rule that says so."""


class SandboxOpened(Body, frozen=True):
    sandbox: str
    isolation: Isolation
    attempt: int | None = None
    template: str = "default"
    """What it started from."""


class SandboxClosed(Body, frozen=True):
    sandbox: str
    reason: str


class ChecksChosen(Body, frozen=True):
    checks: tuple[str, ...]
    found: bool
    """True when we looked for them, False when the caller named them."""


class BaselineTaken(Body, frozen=True):
    """The checks on the untouched base."""

    diagnoses: tuple[Diagnosis, ...]
    known: bool = False
    """True when the template had seen this very commit and nothing was run again."""
    comparison: Comparison | None = None
    """What of it the run was asked for, and what is not its business."""


class AttemptStarted(Body, frozen=True):
    attempt: int
    model: str
    parent: int | None = None
    """The attempt that it was forked from."""
    at: int | None = None
    """The save point of the parent: the number of its event; 0 is the untouched base."""
    temperature: float | None = None
    hint: str | None = None
    """What it is told besides the task."""
    budget: Budget | None = None
    """Its share of the run's, for what it does itself."""


class Inherited(Body, frozen=True):
    """A part of the conversation that a forked run goes on with, as it is in the log of its origin."""

    seq: int
    """Its number there."""
    at: float
    body: "AnyBody"


class PromptReceived(Body, frozen=True):
    """A person speaks to the run while it works."""

    text: str
    who: str
    origin: Origin = "user"
    """Where the text came from."""


class ModelReplied(Body, frozen=True):
    attempt: int
    step: int
    model: str
    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    seconds: float
    opaque: str | None = None
    """What the provider wants back unchanged next time, in its own encoding."""
    cost: float | None = None
    """US dollars; None when nobody knows the model's price."""
    seen: int | None = None
    """The last event that the request was made from: what came after it, the model has not been told."""


class ModelFailed(Body, frozen=True):
    """One call to a model failed; `retry_seconds` is None when it is not tried again."""

    attempt: int
    code: str
    message: str
    retry_seconds: float | None = None
    model: str = ""
    role: str = "code"
    """What it was asked to be; `code` is a step of the loop."""


class Advised(Body, frozen=True):
    """A model with a role of its own had something to say: the kind of task, a plan, or a review of the change."""

    attempt: int
    role: Literal["plan", "review", "classify"]
    model: str
    text: str
    """The plan; what a review objects to, empty when it approves; the kind of task, empty when it is none of them."""


class ModelSwitched(Body, frozen=True):
    """Another model goes on with the same conversation, because the one before it failed."""

    attempt: int
    from_model: str
    to_model: str
    reason: str


class ModelChosen(Body, frozen=True):
    """A person wants another model to go on; each attempt takes it for its next step."""

    model: str
    who: str


class ContextSummarised(Body, frozen=True):
    """From here on the model sees this in place of the conversation up to `up_to_seq`."""

    attempt: int
    up_to_seq: int
    """The last `TurnEnded` that it stands for."""
    text: str
    """The model's own summary; empty when it was of no use, and then only what the log itself says is told."""
    files: tuple[str, ...] = ()
    """What differed from the base in the sandbox at that moment."""
    before_tokens: int = 0
    after_tokens: int = 0
    """Of the whole request, estimated."""
    kept_turns: int | None = None
    """How many turns stay: the same as `up_to_seq` says, in a way that also holds in the log of a fork."""


class StuckNoticed(Body, frozen=True):
    """The attempt goes round in circles; `stage` is what is done about it."""

    attempt: int
    kind: StuckKind
    evidence: str
    step: int
    stage: Literal["nudge", "escalate", "stop"] = "nudge"


class ActionDecided(Body, frozen=True):
    attempt: int
    call: str
    action: str
    effect: Effect
    rule: str
    """The rule that decided, and where it is written."""


class AskRaised(Body, frozen=True):
    """A rule says `ask`: the run waits for a person until the deadline, then takes the default."""

    ask: str
    attempt: int
    action: str
    detail: str
    deadline: float
    """Unix seconds."""
    default: Literal["allow", "deny"] = "deny"
    rule: str = ""
    """The rule that asks, and where it is written."""
    approver: Role = "operator"
    """The least role that may say yes."""


class AskAnswered(Body, frozen=True):
    ask: str
    answer: Literal["allow", "deny"]
    who: str
    role: Role = "admin"
    """In which role."""


class ToolReturned(Body, frozen=True):
    """The result of one tool call, as the model sees it."""

    attempt: int
    call: str
    tool: str
    ok: bool
    text: str
    seconds: float
    exit_code: int | None = None
    origin: Origin = "tool"
    """Where the text came from: after something came over the network, all that a tool shows may be from there."""


class ChecksRan(Body, frozen=True):
    attempt: int
    step: int
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class ProofTaken(Body, frozen=True):
    """The checks on the saved commit, in a fresh sandbox that holds nothing else: what a green end rests on."""

    attempt: int
    step: int
    commit: str
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class SaveRefused(Body, frozen=True):
    """The files of this turn could not be saved; the model is told why, and the save point before it stands."""

    attempt: int
    step: int
    text: str


class FinishRefused(Body, frozen=True):
    """The model said it was done and the evidence disagrees. `text` is what it is told."""

    attempt: int
    text: str


class TurnEnded(Body, frozen=True):
    """A save point: everything up to here survives the loss of the sandbox."""

    attempt: int
    step: int
    commit: str
    """Of the run's own repository, with untracked files; the base commit when nothing changed."""
    changed: bool
    """Whether this turn changed files."""


class AttemptEnded(Body, frozen=True):
    attempt: int
    outcome: Outcome
    reason: str
    commit: str
    comparison: Comparison


class StopRequested(Body, frozen=True):
    who: str


class ChangeMade(Body, frozen=True):
    """The result: one commit on a branch of the run's own repository."""

    branch: str
    commit: str
    files: tuple[FileChange, ...]
    summary: str


class ChangeDelivered(Body, frozen=True):
    """The repository that the run started from has the change, as a branch. Without it, `apply` brings it over."""

    where: str
    branch: str
    receipt: bool = False
    """Whether the receipt went along, as the commit's note under `refs/notes/cloister`."""


class RunFinished(Body, frozen=True):
    outcome: Outcome
    reason: str
    attempt: int | None = None
    """The attempt that won; None when none got that far."""
    blame: Blame | None = None
    """Whose problem a failure is."""


AnyBody = (
    RunAdmitted
    | RunClaimed
    | RunResumed
    | RunContinued
    | PhaseStarted
    | PhaseEnded
    | BaseFixed
    | PolicyFixed
    | SandboxOpened
    | SandboxClosed
    | ChecksChosen
    | BaselineTaken
    | AttemptStarted
    | AttemptForked
    | AttemptsRanked
    | JudgeSpoke
    | Inherited
    | PromptReceived
    | ModelReplied
    | ModelFailed
    | Advised
    | ModelSpent
    | BudgetWarned
    | BudgetSpent
    | BudgetExtended
    | ContextSummarised
    | StuckNoticed
    | ModelSwitched
    | ModelChosen
    | ActionDecided
    | AskRaised
    | AskAnswered
    | ToolReturned
    | ChecksRan
    | ProofTaken
    | SaveRefused
    | FinishRefused
    | TurnEnded
    | AttemptEnded
    | StopRequested
    | RewindRequested
    | ConnectionDecided
    | ConnectionClosed
    | RequestDecided
    | ChangeMade
    | ChangeDelivered
    | RunFinished
)

FromOutside = PromptReceived | StopRequested | AskAnswered | RewindRequested | ModelChosen
"""What may be appended by someone who does not own the run."""


class Event(msgspec.Struct, frozen=True):
    """One entry: gapless `seq` from 1, per run."""

    run: RunId
    seq: int
    at: float
    """Unix seconds."""
    body: AnyBody


class ModelText(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Tokens as they arrive."""

    attempt: int
    text: str


class CommandOutput(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Output of a tool call or a check as it arrives. Untrusted text."""

    attempt: int
    source: str
    """The tool call's id, or the check's command line."""
    stream: Stream
    text: str


class Progress(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """How far a phase is."""

    phase: Phase
    fraction: float | None
    note: str


Delta = ModelText | CommandOutput | Progress
"""Streamed to whoever watches, never stored."""

encode_body = msgspec.json.Encoder().encode
decode_body = msgspec.json.Decoder(AnyBody).decode
