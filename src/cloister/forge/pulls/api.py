"""The seam to pull requests: `Pulls` is one repository at one forge, in eight calls."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

PullState = Literal["open", "merged", "closed"]
JobState = Literal["running", "passed", "failed", "cancelled"]


class PullWish(msgspec.Struct, frozen=True):
    """A pull request as it should be."""

    title: str
    body: str
    """Markdown."""
    branch: str
    """The branch with the change, in the same repository."""
    onto: str
    """The branch that it should be merged into."""
    draft: bool = False
    labels: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()
    """User names at the forge."""


class Pull(msgspec.Struct, frozen=True):
    """A pull request as the forge has it."""

    number: int
    url: str
    """Its page."""
    state: PullState
    draft: bool
    branch: str
    commit: str
    """The newest commit of its branch that the forge has seen; empty if the forge does not say."""
    conflicts: bool = False
    """True if the forge says that it conflicts with its base; GitHub and GitLab do."""


class Remark(msgspec.Struct, frozen=True):
    """A comment of a person, at the pull request or at a line of it. Untrusted text."""

    id: str
    """Unique in its pull request."""
    who: str
    text: str
    may_write: bool
    """True if this person may push to the repository. False if the forge does not say."""
    path: str = ""
    line: int = 0


class Job(msgspec.Struct, frozen=True):
    """One check that the forge's CI reports for the newest commit."""

    id: str
    """What `job_log` takes; empty if the forge has no log of it."""
    name: str
    state: JobState
    url: str = ""
    flaky: bool = False
    """True if it passed, and an earlier run of it failed on the same commit."""


class Talk(msgspec.Struct, frozen=True):
    """Everything that happened at a pull request."""

    pull: Pull
    remarks: tuple[Remark, ...] = ()
    """Oldest first."""
    jobs: tuple[Job, ...] = ()
    base_jobs: tuple[Job, ...] = ()
    """Those of the newest commit of the branch that it should be merged into.

    They, and which jobs are flaky, are read only if a job failed.
    """
    deaf: str = ""
    """Why the forge does not say who of the writers may push; empty if it does."""


class Access(msgspec.Struct, frozen=True):
    """Rights of the token at one repository."""

    default_branch: str
    may_push: bool
    """True also where the forge does not say."""
    lacks: tuple[str, ...] = ()
    """Rights that the forge says are missing, each as a phrase such as `the scope write:repository`.

    If it may push, what they are missing for is in the phrase.
    """


class Pulls(Protocol):
    """The pull requests of one repository.

    Every call raises `OutsideError`: `forge_denied` (the token), `forge_missing` (no such repository or number),
    `forge_refused` (the forge says why), `forge_unreachable` (later may work: `retryable`), `forge_unclear`.
    """

    async def access(self) -> Access: ...

    async def find(self, branch: str) -> Pull | None:
        """The newest pull request from `branch` of this repository, open ones first."""
        ...

    async def open(self, wish: PullWish) -> Pull:
        """Labels and reviewers that the forge refuses are left out. A forge without drafts marks the title."""
        ...

    async def update(self, number: int, wish: PullWish) -> None:
        """Change title, text and draft. Labels and reviewers stay as people left them."""
        ...

    async def comment(self, number: int, text: str) -> None: ...

    async def read(self, number: int) -> Talk: ...

    async def job_log(self, job: Job) -> str | None:
        """The end of the job's log as text; None if the forge has none."""
        ...

    async def close(self, number: int) -> None:
        """Close without merging; a closed one stays closed."""
        ...


class Spot(msgspec.Struct, frozen=True):
    """An issue or a pull request, as a place where people talk."""

    kind: Literal["issue", "pull"]
    number: int


class Saying(msgspec.Struct, frozen=True):
    """What a person wrote or did at a topic. Untrusted text."""

    id: str
    """Unique at its topic."""
    person: str
    """As `Talks.may_write` takes it."""
    who: str
    """As people read it."""
    at: float
    """Unix seconds, by the forge's clock."""
    text: str = ""
    """Empty for a label."""


class Topic(msgspec.Struct, frozen=True):
    """An issue or a pull request with what began it. Untrusted text."""

    spot: Spot
    title: str
    opened: Saying
    updated: float
    """When something changed there, in Unix seconds."""
    url: str = ""
    ref: str | None = None
    """The commits of the pull request; None for an issue."""


class Talks(Protocol):
    """The conversations of one repository, where people ask for work. Errors are those of `Pulls`."""

    async def may_write(self, person: str) -> bool:
        """True if a person, as deliveries name them, may push. False if the forge does not say.

        Raises `OutsideError` (`forge_silent`) if it says so only to a token with more rights.
        """
        ...

    async def tell(self, spot: Spot, text: str) -> None:
        """Comment, with Markdown."""
        ...

    async def told(self, spot: Spot, mark: str) -> bool:
        """True if a comment there has `mark` in its text."""
        ...

    # For a forge whose webhooks cannot reach this machine.

    async def labelled(self, label: str) -> tuple[Topic, ...]:
        """Open issues and pull requests with a label; none at a forge without labels."""
        ...

    async def labeller(self, topic: Topic, label: str) -> Saying | None:
        """Who put the label there last; None if the forge does not say."""
        ...

    async def changed(self, since: float) -> tuple[Topic, ...]:
        """Issues and pull requests with news since a time."""
        ...

    async def said(self, topic: Topic) -> tuple[Saying, ...]:
        """The comments there."""
        ...


class Repository(Pulls, Talks, Protocol):
    """One repository at one forge."""

    async def upload(self, number: int, name: str, data: bytes) -> str | None:
        """Keep a PNG for the text of a pull request; return its address, None if the forge's API keeps none."""
        ...


def read_time(text: str | None) -> float:
    """Unix seconds of a time as forges write it; 0 for anything else."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return 0.0


def write_time(at: float) -> str:
    """A time as forges read it, cut to seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


DRAFT_TITLE = "Draft: "


def titled(wish: PullWish, mark: str) -> str:
    """The title with the mark of a draft in front, for forges that know drafts by their titles."""
    return f"{mark}{wish.title}" if wish.draft else wish.title


def failed(jobs: Sequence[Job]) -> bool:
    return any(one.state == "failed" for one in jobs)


def with_reruns(jobs: Sequence[Job], every: Sequence[Job]) -> tuple[Job, ...]:
    """The newest run of each job, marked as flaky if `every` has an earlier one that failed."""
    ids = {one.id for one in jobs if one.id}
    red = {one.name for one in every if one.state == "failed" and one.id not in ids}
    return tuple(replace(one, flaky=one.state == "passed" and one.name in red) for one in jobs)


_STAMP = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT[\d:]{8}(?:\.\d{1,9})?Z (?:[0-9a-f]{2}[EO][+ ])?", re.MULTILINE)


def without_times(log: str | None) -> str | None:
    """A log without the time, and at GitLab the stream, that the forge writes before each line."""
    return log and _STAMP.sub("", log)


def newest(pulls: list[Pull]) -> Pull | None:
    """The pull request that stands for its branch: an open one, else the one with the highest number."""
    return max(pulls, key=lambda one: (one.state == "open", one.number), default=None)
