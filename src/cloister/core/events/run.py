"""The base of all events, and the course of a run: request, owners, phases, sandboxes, baseline, change and end."""

from typing import Literal

import msgspec

from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.requests import Attachment, Budget, FileChange, Isolation, NewRun, Origin, Outcome

Blame = Literal["user", "host", "outside", "sandbox", "bug"]
Phase = Literal["fetch", "template", "create", "clone", "baseline", "fork", "work", "change"]
BESIDE_WORK: tuple[Phase, ...] = ("create", "clone", "baseline")
"""Phases that overlap with the first steps of the attempts."""


class EventBody(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """What happened. The tag is the class name. New fields need defaults, so that old logs still load."""


class RunAdmitted(EventBody, frozen=True):
    """Event 1: the request is durable."""

    request: NewRun
    who: str


class RunClaimed(EventBody, frozen=True):
    """An owner drives the run from here. A second claim means the first owner died."""

    owner: str
    epoch: int


class RunResumed(EventBody, frozen=True):
    """The new owner continues from the last ended turn; results of a half-done turn are void."""

    after_seq: int
    """Each attempt's conversation counts up to its last `TurnEnded` before this event."""
    attempt: int | None = None
    """The attempt whose sandbox was lost; None: all of them."""


class RunPaused(EventBody, frozen=True):
    """No process drives the run until its cause is gone. The same owner then claims the run again."""

    reason: str
    since: float
    """Unix seconds. The event is stored later if the disk of the log is full as well."""


class RunContinued(EventBody, frozen=True):
    """A message reopened the finished run: a new round begins here, with the message as its next event."""

    who: str
    origin: Origin = "user"
    """The source of the message: a person, a review comment, a failed CI job."""


class PhaseStarted(EventBody, frozen=True):
    phase: Phase


class PhaseEnded(EventBody, frozen=True):
    phase: Phase
    seconds: float


class BasePart(msgspec.Struct, frozen=True):
    """The base of one of several repositories."""

    folder: str
    """Where it is in the work tree."""
    repo: str
    commit: str
    branch: str | None = None


class BaseFixed(EventBody, frozen=True):
    """The commit that the run starts from."""

    commit: str
    branch: str | None
    """None: a detached HEAD."""
    note: str | None = None
    """A note for the caller, e.g. that uncommitted files are not included."""
    parts: tuple[BasePart, ...] = ()
    """Of a run on several repositories: each base. `commit` then holds all of them, each in its folder."""


class PolicyFixed(EventBody, frozen=True):
    """The policy in force from here on."""

    layers: tuple[str, ...]
    """Each layer's name and file, strongest first."""
    limited: tuple[str, ...] = ()
    """Requested limits that a rule reduced, and the rule."""
    budget: Budget | None = None
    """The run's budget within the limits of the rules; None in logs of older versions."""
    harness: str = ""
    """What drives every attempt; empty if they differ, and in logs of older versions."""


class EnvironmentPrepared(EventBody, frozen=True):
    """Set-up has ended: the repository's tools and dependencies are in a template, or `problem` says why not."""

    template: str
    """What the run starts from."""
    built: bool
    """False if an earlier set-up made it."""
    seconds: float
    plan: tuple[str, ...] = ()
    """What was detected, with the reason of each."""
    problem: str = ""
    """Why set-up failed, and what would help; the run goes on without it."""
    commit: str = ""
    """The commit whose proof it is for; empty: the base."""
    built_at: float = 0.0
    """When the template was built, in Unix seconds; 0 in logs of older versions."""
    reached: tuple[str, ...] = ()
    """What its set-up reached when it was built, as `HOST:PORT`, also if that was for an earlier run."""


class SandboxOpened(EventBody, frozen=True):
    sandbox: str
    isolation: Isolation
    attempt: int | None = None
    template: str = "default"
    """The template that it started from."""


class ServiceFailed(EventBody, frozen=True):
    """A service of the template did not start in a sandbox; the checks there run without it."""

    sandbox: str
    problem: str
    """Its name, and the end of its log; bounded."""


class SandboxClosed(EventBody, frozen=True):
    sandbox: str
    reason: str


class ChecksChosen(EventBody, frozen=True):
    checks: tuple[str, ...]
    found: bool
    """True: discovered; False: named by the caller."""


class BaselineTaken(EventBody, frozen=True):
    """The checks on the untouched base."""

    diagnoses: tuple[Diagnosis, ...]
    known: bool = False
    """True: the result of a warmed template with this commit; nothing was run."""
    comparison: Comparison | None = None
    """Which of the red items are requested and which are unrelated."""


class BaselineSampled(EventBody, frozen=True):
    """Some tests of a long suite on the untouched base, before the rest has run."""

    diagnoses: tuple[Diagnosis, ...]


class PromptReceived(EventBody, frozen=True):
    """A person sent a message to the run."""

    text: str
    who: str
    origin: Origin = "user"
    """The source of the text."""
    ref: str = ""
    """The comment or the CI result that it came from, so that it is sent once; empty for a person's own message."""
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""
    attachments: tuple[Attachment, ...] = ()
    """Pictures and text files that belong to it."""


class StopRequested(EventBody, frozen=True):
    who: str
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class PauseRequested(EventBody, frozen=True):
    """The run waits before its next step until a person lets it go on. The wait costs none of its time."""

    who: str
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


def pause_reason(who: str) -> str:
    """Why a run is paused that a person paused."""
    return f"Paused by {who}."


class ResumeRequested(EventBody, frozen=True):
    """A person lets a paused run go on."""

    who: str
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class InterruptRequested(EventBody, frozen=True):
    """A person stopped the step at work: its model request or tool call ends, and the run goes on."""

    who: str
    key: str = ""
    """The sender's id of the message: sent again, it is done once."""


class SandboxUsed(EventBody, frozen=True):
    """A person used the sandbox of an attempt. What changes in its files from here on may be theirs."""

    attempt: int
    sandbox: str
    how: Literal["terminal", "command", "file", "port"]
    what: str
    """The command line, the path or the port, bounded."""
    who: str


class ChangePart(msgspec.Struct, frozen=True):
    """The change of one of several repositories."""

    folder: str
    commit: str
    """On the base of that repository."""


class ChangeMade(EventBody, frozen=True):
    """The result: one commit on a branch of the run's own repository."""

    branch: str
    commit: str
    files: tuple[FileChange, ...]
    summary: str
    parts: tuple[ChangePart, ...] = ()
    """Of a run on several repositories: each that differs from its base."""


class ChangeDelivered(EventBody, frozen=True):
    """The source repository has the change, as a branch. Without this event, `apply` delivers it."""

    where: str
    branch: str
    receipt: bool = False
    """Whether the receipt was delivered, as the commit's note under `refs/notes/cloister`."""
    url: str = ""
    """The page of the pull request; empty without one."""
    number: int = 0
    """The number of the pull request; 0 without one."""
    folder: str = ""
    """Of a run on several repositories: which one."""
    who: str | None = None
    """The person who delivered it after the end; None: the run itself."""


class DeliveryFailed(EventBody, frozen=True):
    """The change is safe in the run's own repository, and its forge did not take it. `cloister pr` tries again."""

    where: str
    reason: str
    folder: str = ""
    """As in `ChangeDelivered`."""


class RunFinished(EventBody, frozen=True):
    outcome: Outcome
    reason: str
    attempt: int | None = None
    """The winning attempt; None without one."""
    blame: Blame | None = None
    """Who can fix a failure."""
    again: bool = False
    """True: the same end, after a person delivered the change of the finished run."""
