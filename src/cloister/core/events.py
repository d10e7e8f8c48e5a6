"""The entries of a run's log, and the live fragments that are streamed beside it.

The log is the run: the prompt, the screen, the audit, the cost and the resume are folds of these.
New fields get defaults and unknown fields are ignored, so old logs always load.
"""

from typing import Literal

import msgspec

from cloister.core.commands import Stream
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.ids import RunId
from cloister.core.records import FileChange, Isolation, NewRun, Outcome, ToolCall, Usage

Effect = Literal["allow", "deny", "ask"]
Blame = Literal["user", "host", "outside", "sandbox", "bug"]
Phase = Literal["fetch", "template", "create", "clone", "baseline", "fork", "work", "change"]


class Body(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """What happened. The tag is the class name."""


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


class PromptReceived(Body, frozen=True):
    """A person speaks to the run while it works."""

    text: str
    who: str


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


class ModelFailed(Body, frozen=True):
    """One call to a model failed; `retry_seconds` is None when it is not tried again."""

    attempt: int
    code: str
    message: str
    retry_seconds: float | None = None


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


class AskAnswered(Body, frozen=True):
    ask: str
    answer: Literal["allow", "deny"]
    who: str


class ToolReturned(Body, frozen=True):
    """The result of one tool call, as the model sees it."""

    attempt: int
    call: str
    tool: str
    ok: bool
    text: str
    seconds: float
    exit_code: int | None = None


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


class ConnectionDecided(Body, frozen=True):
    """Something inside asked the door for a way out."""

    sandbox: str
    host: str
    port: int
    effect: Literal["allow", "deny"]
    rule: str


class ConnectionClosed(Body, frozen=True):
    sandbox: str
    host: str
    port: int
    sent_bytes: int
    received_bytes: int
    seconds: float


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
    | PhaseStarted
    | PhaseEnded
    | BaseFixed
    | SandboxOpened
    | SandboxClosed
    | ChecksChosen
    | BaselineTaken
    | AttemptStarted
    | PromptReceived
    | ModelReplied
    | ModelFailed
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
    | ConnectionDecided
    | ConnectionClosed
    | ChangeMade
    | ChangeDelivered
    | RunFinished
)

FromOutside = PromptReceived | StopRequested | AskAnswered
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
