"""The course of a run: request, owners, phases, sandboxes, baseline, change and end."""

from typing import Literal

from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events.base import EventBody
from cloister.core.requests import FileChange, Isolation, NewRun, Origin, Outcome

Blame = Literal["user", "host", "outside", "sandbox", "bug"]
Phase = Literal["fetch", "template", "create", "clone", "baseline", "fork", "work", "change"]


class RunAdmitted(EventBody, frozen=True):
    """Event 1: somebody asked, and the request is durable."""

    request: NewRun
    who: str


class RunClaimed(EventBody, frozen=True):
    """An owner drives the run from here. A second claim means the first owner died."""

    owner: str
    epoch: int


class RunResumed(EventBody, frozen=True):
    """The new owner goes on from the last ended turn; results of a half-done turn no longer count."""

    after_seq: int
    """The last event that still counts for each attempt's conversation is the last `TurnEnded` up to here."""
    attempt: int | None = None
    """The attempt whose sandbox was lost; None when all of them were."""


class PhaseStarted(EventBody, frozen=True):
    phase: Phase


class PhaseEnded(EventBody, frozen=True):
    phase: Phase
    seconds: float


class BaseFixed(EventBody, frozen=True):
    """The commit everything starts from."""

    commit: str
    branch: str | None
    """None for a detached HEAD."""
    note: str | None = None
    """What the caller should know, e.g. that uncommitted files are not part of the run."""


class PolicyFixed(EventBody, frozen=True):
    """The rules that hold from here on."""

    layers: tuple[str, ...]
    """Strongest first: each layer's name and the file it was read from."""
    limited: tuple[str, ...] = ()
    """What the run gets less of than it asked for, and the rule that says so."""


class SandboxOpened(EventBody, frozen=True):
    sandbox: str
    isolation: Isolation
    attempt: int | None = None
    template: str = "default"
    """What it started from."""


class SandboxClosed(EventBody, frozen=True):
    sandbox: str
    reason: str


class ChecksChosen(EventBody, frozen=True):
    checks: tuple[str, ...]
    found: bool
    """True when we looked for them, False when the caller named them."""


class BaselineTaken(EventBody, frozen=True):
    """The checks on the untouched base."""

    diagnoses: tuple[Diagnosis, ...]
    known: bool = False
    """True when the template had seen this very commit and nothing was run again."""
    comparison: Comparison | None = None
    """What of it the run was asked for, and what is not its business."""


class PromptReceived(EventBody, frozen=True):
    """A person speaks to the run while it works."""

    text: str
    who: str
    origin: Origin = "user"
    """Where the text came from."""


class StopRequested(EventBody, frozen=True):
    who: str


class ChangeMade(EventBody, frozen=True):
    """The result: one commit on a branch of the run's own repository."""

    branch: str
    commit: str
    files: tuple[FileChange, ...]
    summary: str


class ChangeDelivered(EventBody, frozen=True):
    """The repository that the run started from has the change, as a branch. Without it, `apply` brings it over."""

    where: str
    branch: str
    receipt: bool = False
    """Whether the receipt went along, as the commit's note under `refs/notes/cloister`."""


class RunFinished(EventBody, frozen=True):
    outcome: Outcome
    reason: str
    attempt: int | None = None
    """The attempt that won; None when none got that far."""
    blame: Blame | None = None
    """Whose problem a failure is."""
