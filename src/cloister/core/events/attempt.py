"""What happens in an attempt: turns, checks, calls to models, their cost, tool calls and connections."""

from typing import Literal

import msgspec

from cloister.core.attempts import NATIVE, Score
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events.run import EventBody
from cloister.core.requests import Attachment, Budget, Origin, Outcome, Role, ToolCall, Usage

StuckKind = Literal["repeats", "alternations", "unchanged", "idle", "malformed"]


class AttemptStarted(EventBody, frozen=True):
    attempt: int
    model: str
    parent: int | None = None
    """The attempt that it was forked from."""
    at: int | None = None
    """The number of the parent's save point; 0 is the untouched base."""
    temperature: float | None = None
    hint: str | None = None
    """Added to the task."""
    budget: Budget | None = None
    """Its share of the run's budget."""
    harness: str = NATIVE
    """What drives it. The repair harness has no model: `model` is empty."""


class AttemptForked(EventBody, frozen=True):
    """A new attempt continues from a save point of another, with its files and its conversation."""

    attempt: int
    parent: int
    at_seq: int
    """The `TurnEnded` event of the save point; 0 is the untouched base."""
    reason: str
    budget: Budget
    hint: str
    """A message to the new attempt."""
    asked: int | None = None
    """The `RewindRequested` or `RunContinued` event that this answers; None when a search decided."""
    stuck: int | None = None
    """The stuck attempt that a search replaced by this one."""


class Delegated(EventBody, frozen=True):
    """An attempt hands a bounded piece of work to a helper: a model of its own, in a fork of the attempt's sandbox."""

    attempt: int
    """The number of the helper; it counts with the attempts."""
    parent: int
    task: str
    commit: str
    """The files that it begins with."""
    budget: Budget
    model: str
    untrusted: bool = False
    """True if the parent had read untrusted text: the task may come from there."""


class DelegationEnded(EventBody, frozen=True):
    """A helper is done. What it says is text of a model that may have read anything."""

    attempt: int
    outcome: Literal["done", "budget", "red", "failed"]
    report: str
    commit: str
    """The files that it leaves."""


class RewindRequested(EventBody, frozen=True):
    """A person wants the run to continue from an earlier save point."""

    to: int
    """The number of the save point's `TurnEnded` event."""
    who: str
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class ChecksRan(EventBody, frozen=True):
    attempt: int
    step: int
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison
    note: str = ""
    """What the results leave open: the change names packages that only its proof has."""


class ProofTaken(EventBody, frozen=True):
    """The checks on the saved commit in a fresh sandbox: the proof of a green end."""

    attempt: int
    step: int
    commit: str
    diagnoses: tuple[Diagnosis, ...]
    comparison: Comparison


class PagesPictured(EventBody, frozen=True):
    """The pages that the repository's settings name, on the base and on the saved commit, without the agent."""

    attempt: int
    commit: str
    before: tuple[Attachment, ...]
    after: tuple[Attachment, ...]
    """The picture of a page has the same name in both."""
    problems: tuple[str, ...] = ()
    """One sentence for each picture that there is not."""


class SaveRefused(EventBody, frozen=True):
    """The files of this turn could not be saved. `text` tells the model why; the previous save point stays."""

    attempt: int
    step: int
    text: str


class FinishRefused(EventBody, frozen=True):
    """The model called `finish` and the evidence disagrees. `text` tells the model why."""

    attempt: int
    text: str


class TurnEnded(EventBody, frozen=True):
    """A save point: everything up to here survives the loss of the sandbox."""

    attempt: int
    step: int
    commit: str
    """In the run's own repository, untracked files included; the base commit if nothing changed."""
    changed: bool
    """Whether this turn modified files."""


class StuckNoticed(EventBody, frozen=True):
    """The attempt makes no progress; `stage` is the reaction."""

    attempt: int
    kind: StuckKind
    evidence: str
    step: int
    stage: Literal["nudge", "escalate", "stop"] = "nudge"


class AttemptEnded(EventBody, frozen=True):
    attempt: int
    outcome: Outcome
    reason: str
    commit: str
    comparison: Comparison


class AttemptsRanked(EventBody, frozen=True):
    """All attempts ended and were ranked by their evidence."""

    scores: tuple[Score, ...]
    """Best first."""
    tied: tuple[int, ...] = ()
    """Attempts with the same evidence as the best one, which is included; empty without a tie."""


class JudgeSpoke(EventBody, frozen=True):
    """A model chose among tied attempts."""

    model: str
    tied: tuple[int, ...]
    choice: int | None
    """None: no usable answer, the earliest attempt wins."""
    text: str
    seconds: float


class ModelReplied(EventBody, frozen=True):
    attempt: int
    step: int
    model: str
    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    seconds: float
    opaque: str | None = None
    """Data that the provider wants back unchanged, in its own encoding."""
    cost: float | None = None
    """US dollars; None if the model's price is unknown."""
    seen: int | None = None
    """The last event that the request included."""


class ModelFailed(EventBody, frozen=True):
    """A call to a model failed; `retry_seconds` is None if it is not retried."""

    attempt: int
    code: str
    message: str
    retry_seconds: float | None = None
    model: str = ""
    role: str = "code"
    """The role of the call; `code` is a step of the loop."""


class Advised(EventBody, frozen=True):
    """The answer of a model in another role: the kind of task, a plan, or a review of the change."""

    attempt: int
    role: Literal["plan", "review", "classify"]
    model: str
    text: str
    """The plan; the objections of a review, empty if it approves; the kind of task, empty if none fits."""


class ModelSwitched(EventBody, frozen=True):
    """Another model continues the conversation because the previous one failed."""

    attempt: int
    from_model: str
    to_model: str
    reason: str


class ModelChosen(EventBody, frozen=True):
    """A person chose another model; each attempt uses it from its next step on."""

    model: str
    who: str
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class ContextSummarised(EventBody, frozen=True):
    """From here on the model sees this summary instead of the conversation up to `up_to_seq`."""

    attempt: int
    up_to_seq: int
    """The last `TurnEnded` that it covers."""
    text: str
    """The model's summary; empty if it was unusable: then only facts from the log are kept."""
    files: tuple[str, ...] = ()
    """Files that differed from the base in the sandbox."""
    before_tokens: int = 0
    after_tokens: int = 0
    """Estimated size of the whole request."""
    kept_turns: int | None = None
    """How many turns stay: `up_to_seq` in a form that is also valid in the log of a fork."""


# Money: what calls to models took, and what the budgets said about it.


Level = Literal["organisation", "project", "user", "run", "attempt"]
"""Whose budget it is, the widest first."""
Resource = Literal["steps", "tokens", "dollars", "seconds"]


class ModelSpent(EventBody, frozen=True):
    """The usage of a call to a model that was not a step of the loop, or of a step without a reply."""

    attempt: int | None
    purpose: str
    """`summarise`, `wrap_up`, `judge` …"""
    model: str
    usage: Usage
    seconds: float
    cost: float | None = None
    estimated: bool = False
    """True: the call was cut off before the provider reported its usage."""


class _OfBudget(EventBody, frozen=True):
    level: Level
    name: str
    """The organisation, project, user, run id or attempt number."""
    what: Resource
    spent: float
    limit: float
    attempt: int | None = None


class BudgetWarned(_OfBudget, frozen=True):
    """Most of a budget is spent."""


class BudgetSpent(_OfBudget, frozen=True):
    """A call to a model was rejected: this budget has no room for it."""


class BudgetExtended(EventBody, frozen=True):
    """A person added `amount` to the limit, for the rest of its period."""

    level: Level
    name: str
    what: Resource
    amount: float
    who: str
    attempt: int | None = None


Effect = Literal["allow", "deny", "ask"]


class ActionDecided(EventBody, frozen=True):
    attempt: int
    call: str
    action: str
    effect: Effect
    rule: str
    """The deciding rule and its source."""


class ChangedTests(msgspec.Struct, frozen=True):
    """A file of tests, or of their settings, as a change leaves it."""

    path: str
    content: str
    """The name of its content in git; only zeros if the file is gone."""


class AskRaised(EventBody, frozen=True):
    """A rule says `ask`: the run waits for a person until the deadline, then uses the default."""

    ask: str
    attempt: int
    action: str
    detail: str
    deadline: float
    """Unix seconds."""
    default: Literal["allow", "deny"] = "deny"
    rule: str = ""
    """The asking rule and its source."""
    approver: Role = "operator"
    """The lowest role that may allow it."""
    tests: tuple[ChangedTests, ...] = ()
    """If the question is about changes of tests: what a yes permits, in every attempt of the run."""
    lost: tuple[str, ...] = ()
    """The tests that such a yes gives up: missing, skipped or weakened."""


class AskAnswered(EventBody, frozen=True):
    ask: str
    answer: Literal["allow", "deny"]
    who: str
    role: Role = "admin"
    """The person's role."""
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class QuestionAsked(EventBody, frozen=True):
    """The model asks the people who watch. The run goes on with the default when the deadline has passed."""

    question: str
    """Its id."""
    attempt: int
    call: str
    """The call of the tool `ask`."""
    text: str
    choices: tuple[str, ...]
    default: str
    deadline: float
    """Unix seconds."""


class QuestionAnswered(EventBody, frozen=True):
    """The first answer counts. One that is later than the deadline comes as `PromptReceived`."""

    question: str
    text: str
    who: str
    """`deadline` for the default."""
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class ToolReturned(EventBody, frozen=True):
    """The result of one tool call, as the model sees it."""

    attempt: int
    call: str
    tool: str
    ok: bool
    text: str
    seconds: float
    exit_code: int | None = None
    origin: Origin = "tool"
    """The source of the text. Once the run reached the network, the output of any tool may come from there."""
    pictures: tuple[Attachment, ...] = ()
    """What the model sees beside the text; the bytes are kept with the run."""


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool that was added to the built-in ones."""

    name: str
    source: str
    """Where it was declared."""
    digest: str = ""
    """A hash of its declaration."""
    action: str = ""
    """What rules call it, if that is not its name."""


class ToolsOffered(EventBody, frozen=True):
    """The tools that an attempt has beside the built-in ones. A later event of the attempt replaces it."""

    attempt: int
    tools: tuple[OfferedTool, ...]
    problems: tuple[str, ...] = ()
    """One sentence for each declaration or server that could not be used."""


# What the model reads beside its task.


InstructionKind = Literal["instructions", "rules", "notes"]
"""Instructions for agents; rules of an editor; notes of earlier runs."""


class InstructionsGiven(EventBody, frozen=True):
    """The model is given a file of the repository's instructions, as the base commit has it."""

    attempt: int
    path: str
    digest: str
    """The name of its content in git."""
    text: str
    folder: str = ""
    """Where it holds; empty for the whole repository."""
    globs: tuple[str, ...] = ()
    """The files that it is about; empty: all below `folder`."""
    kind: InstructionKind = "instructions"

    @property
    def always(self) -> bool:
        """True if it holds everywhere: it is a part of the task."""
        return not self.folder and not self.globs


class PinnedSkill(msgspec.Struct, frozen=True):
    """A skill that a run may use."""

    name: str
    description: str
    layer: Literal["organisation", "user", "repository"]
    source: str
    """Its folder."""
    digest: str
    """A hash of its content: if it changes, the run does not open it."""


class SkillsPinned(EventBody, frozen=True):
    """The skills of an attempt, as it found them on its base. A later event of the attempt replaces it."""

    attempt: int
    skills: tuple[PinnedSkill, ...]
    problems: tuple[str, ...] = ()
    """One sentence for each folder that could not be used."""


class NoteProposed(EventBody, frozen=True):
    """The model proposes a note for later runs on the repository. Only a person, or the settings, put it there."""

    attempt: int
    text: str
    written: bool = False
    """True if it is in the run's own change."""


# Connections and requests from a sandbox through the proxy.


class ConnectionDecided(EventBody, frozen=True):
    """A program in a sandbox asked the proxy for a connection."""

    sandbox: str
    host: str
    port: int
    effect: Literal["allow", "deny"]
    rule: str
    credential: str | None = None
    """The name of the credential that the connection is for."""


class ConnectionClosed(EventBody, frozen=True):
    sandbox: str
    host: str
    port: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    credential: str | None = None
    """The names of the credentials used on it, separated by commas."""


class RequestDecided(EventBody, frozen=True):
    """One HTTP request that the proxy could read; only the first of a sandbox are recorded."""

    sandbox: str
    host: str
    port: int
    method: str
    path: str
    """Decoded and cut, without the query."""
    effect: Literal["allow", "deny"]
    rule: str
    credential: str | None = None
