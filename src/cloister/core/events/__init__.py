"""The entries of a run's log, and the live fragments that are streamed beside it.

The log is the run: the prompt, the screen, the audit, the cost and the resume are folds of these events.
A new kind of event goes into the module of its subject and into `AnyBody`; docs/extending/event.md lists the
places that may handle it.
"""

import msgspec

from cloister.core.computer import Stream
from cloister.core.events.attempt import (
    ActionDecided,
    Advised,
    AskAnswered,
    AskRaised,
    AttemptEnded,
    AttemptForked,
    AttemptsRanked,
    AttemptStarted,
    BudgetExtended,
    BudgetSpent,
    BudgetWarned,
    ChecksRan,
    ConnectionClosed,
    ConnectionDecided,
    ContextSummarised,
    Delegated,
    DelegationEnded,
    FinishRefused,
    InstructionsGiven,
    JudgeSpoke,
    ModelChosen,
    ModelFailed,
    ModelReplied,
    ModelSpent,
    ModelSwitched,
    NoteProposed,
    PagesPictured,
    ProofTaken,
    QuestionAnswered,
    QuestionAsked,
    RequestDecided,
    RewindRequested,
    SaveRefused,
    SkillsPinned,
    StuckNoticed,
    ToolReturned,
    ToolsOffered,
    TurnEnded,
)
from cloister.core.events.attempt import (
    ChangedTests as ChangedTests,
)
from cloister.core.events.attempt import (
    Effect as Effect,
)
from cloister.core.events.attempt import (
    InstructionKind as InstructionKind,
)
from cloister.core.events.attempt import (
    OfferedTool as OfferedTool,
)
from cloister.core.events.attempt import (
    PinnedSkill as PinnedSkill,
)
from cloister.core.events.attempt import (
    StuckKind as StuckKind,
)
from cloister.core.events.repair import (
    CandidatesTried,
    FaultLocalised,
    PatchChosen,
    PatchFound,
)
from cloister.core.events.repair import (
    Suspect as Suspect,
)
from cloister.core.events.run import (
    BESIDE_WORK as BESIDE_WORK,
)
from cloister.core.events.run import (
    BaseFixed,
    BaselineSampled,
    BaselineTaken,
    ChangeDelivered,
    ChangeMade,
    ChecksChosen,
    DeliveryFailed,
    EnvironmentPrepared,
    EventBody,
    InterruptRequested,
    PauseRequested,
    Phase,
    PhaseEnded,
    PhaseStarted,
    PolicyFixed,
    PromptReceived,
    ResumeRequested,
    RunAdmitted,
    RunClaimed,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    SandboxClosed,
    SandboxOpened,
    SandboxUsed,
    ServiceFailed,
    StopRequested,
)
from cloister.core.events.run import (
    BasePart as BasePart,
)
from cloister.core.events.run import (
    Blame as Blame,
)
from cloister.core.ids import RunId


class Inherited(EventBody, frozen=True):
    """A part of the conversation that a forked run inherits, as it is in the log of its origin."""

    seq: int
    """Its number there."""
    at: float
    body: "AnyBody"


AnyBody = (
    RunAdmitted
    | RunClaimed
    | RunResumed
    | RunPaused
    | RunContinued
    | PhaseStarted
    | PhaseEnded
    | BaseFixed
    | PolicyFixed
    | EnvironmentPrepared
    | SandboxOpened
    | SandboxClosed
    | ServiceFailed
    | ChecksChosen
    | BaselineSampled
    | BaselineTaken
    | AttemptStarted
    | ToolsOffered
    | InstructionsGiven
    | SkillsPinned
    | NoteProposed
    | AttemptForked
    | Delegated
    | DelegationEnded
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
    | QuestionAsked
    | QuestionAnswered
    | ToolReturned
    | ChecksRan
    | ProofTaken
    | PagesPictured
    | SaveRefused
    | FinishRefused
    | TurnEnded
    | FaultLocalised
    | CandidatesTried
    | PatchFound
    | PatchChosen
    | AttemptEnded
    | StopRequested
    | InterruptRequested
    | PauseRequested
    | ResumeRequested
    | RewindRequested
    | SandboxUsed
    | ConnectionDecided
    | ConnectionClosed
    | RequestDecided
    | ChangeMade
    | ChangeDelivered
    | DeliveryFailed
    | RunFinished
)

FromOutside = (
    PromptReceived
    | StopRequested
    | InterruptRequested
    | PauseRequested
    | ResumeRequested
    | AskAnswered
    | QuestionAnswered
    | RewindRequested
    | ModelChosen
    | SandboxUsed
    | ChangeDelivered
)
"""Events that people may append without owning the run."""


class Event(msgspec.Struct, frozen=True):
    """One entry of a run's log; `seq` counts from 1 without gaps."""

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
    """The progress of a phase."""

    phase: Phase
    fraction: float | None
    note: str


Delta = ModelText | CommandOutput | Progress
"""Streamed to the followers of a run, never stored."""

encode_body = msgspec.json.Encoder().encode
decode_body = msgspec.json.Decoder(AnyBody).decode
