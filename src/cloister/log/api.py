"""The backbone: the durable log, the queue of runs, the live fan-out, the audit and the budgets behind one seam.

Code above this package depends on these protocols only. `log/sqlite/` implements the backbone on one machine;
`app/cluster/storage.py` chooses the implementation. `tests.whole.conformance.suites.backbone` states the promises.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from cloister.core.budget import Spend
from cloister.core.events import (
    AnyBody,
    AttemptStarted,
    ConnectionDecided,
    Delta,
    Event,
    FromOutside,
    ModelFailed,
    ModelReplied,
    Phase,
    RequestDecided,
    ToolReturned,
)
from cloister.core.events.attempt import Level, Resource
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import NewRun, Outcome, Role, State
from cloister.log.audit.entry import AuditEntry, AuditFilter, Checkpoint

if TYPE_CHECKING:
    from cloister.log.audit.verify import Verdict

T = TypeVar("T")


class Fence(msgspec.Struct, frozen=True):
    """The right to append to one run's log, until another owner claims it."""

    run: RunId
    owner: OwnerId
    epoch: int


class OpenApproval(msgspec.Struct, frozen=True):
    """An action that waits until a person allows or denies it."""

    ask: str
    seq: int
    """Its `AskRaised` event."""
    attempt: int
    action: str
    rule: str
    approver: Role
    """The lowest role that may allow it."""
    deadline: float
    """Unix seconds; then it is denied."""


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question of the model that waits for an answer."""

    question: str
    seq: int
    """Its `QuestionAsked` event."""
    attempt: int
    text: str
    choices: tuple[str, ...]
    default: str
    deadline: float
    """Unix seconds; then the run goes on with the default."""


class RunRow(msgspec.Struct, frozen=True):
    """One run in a list, stored in the same transaction as the event that changed it."""

    id: RunId
    state: State
    outcome: Outcome | None
    reason: str | None
    """How it ended, or why it is paused."""
    prompt: str
    repo: str
    model: str | None
    created_at: float
    updated_at: float
    last_seq: int
    owner: OwnerId | None
    epoch: int
    owner_lives: bool = False
    """Whether the process that claimed it still runs; a running run without one was interrupted."""
    who: str = ""
    """The person who started it."""
    asks: int = 0
    """Open questions to a person."""
    cost: float | None = None
    """US dollars, as far as prices are known; None if none is."""
    approvals: tuple[OpenApproval, ...] = ()
    """The actions among these questions that wait for a person."""
    questions: tuple[OpenQuestion, ...] = ()
    """Those among them that the model asks."""
    phase: Phase | None = None
    """What it does now; None between phases and after the end."""
    phase_since: float | None = None
    """Unix seconds."""
    reds: tuple[int, ...] = ()
    """Failing tests at the base and after each run of the checks; the newest 40."""
    ahead: int | None = None
    """How many queued runs are claimed before this one; None unless it is queued."""
    stuck: int | None = None
    """The last event that says that it makes no progress; None before one, and after the end."""
    phase_usual: float | None = None
    """Seconds that this phase took in the median of the repository's last finished runs; None without any."""
    also: tuple[str, ...] = ()
    """The other repositories of a run on several."""

    @property
    def repos(self) -> tuple[str, ...]:
        """All of its repositories."""
        return (self.repo, *self.also)


class Changes(msgspec.Struct, frozen=True):
    """Runs that changed."""

    rows: tuple[RunRow, ...]
    cursor: int
    """The last event of the whole log that they include."""


class RunCount(msgspec.Struct, frozen=True):
    """How many runs are in a state, or ended so."""

    state: State
    outcome: Outcome | None
    runs: int


class Peer(msgspec.Struct, frozen=True):
    """What one machine of a cluster says of itself."""

    name: str
    identity: str
    """Of its data directory."""
    owner: OwnerId
    """In whose name it claims runs now."""
    role: str
    """`api`, `worker` or `both`."""
    version: str
    started_at: float
    at: float
    """By its own clock."""
    slots: int = 0
    """Runs that it drives at the same time."""
    running: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    tiers: tuple[str, ...] = ()
    """The tiers of sandboxes that work there."""
    templates: tuple[str, ...] = ()
    """Templates that are built there."""
    labels: tuple[str, ...] = ()
    lives: bool = True
    """Whether its lease runs; said by the machine that lists it."""
    draining: bool = False
    """Whether it takes no new runs."""


Seen = Callable[[RunId, tuple[str, ...]], bool]
"""Whether a caller may see a run, by its id and its repositories."""


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs a list holds; None matches all."""

    state: State | None = None
    outcome: Outcome | None = None
    repo: str | None = None
    who: str | None = None
    """Who asked for the run."""


class AuditLog(Protocol):
    """The audit: one signed hash chain, written in the transactions of the log. Entries are never changed.

    The backbone enters the actions and decisions of runs itself.
    """

    async def note(self, kind: str, who: str, detail: Mapping[str, object] | str) -> None:
        """Enter something that belongs to no run, durably. A `detail` that is text is a JSON object already."""
        ...

    async def sign_audit(self) -> None:
        """Sign the head of the chain unless it is signed. Never raises: a server calls it when it ends."""
        ...

    async def audit(
        self, after: int = 0, limit: int = 256, run: RunId | None = None, only: AuditFilter | None = None
    ) -> tuple[AuditEntry, ...]:
        """Return entries with a greater number than `after`, in order; only those of `run` and `only` if given."""
        ...

    async def seal(self, run: RunId) -> Checkpoint | None:
        """Return the signature over the end of `run`; None before it ended."""
        ...

    async def verify_audit(self, pinned: str | None = None) -> "Verdict":
        """Check every entry, signature, event and listed run, and the signed head outside the store.

        Trust starts at `pinned`, a public key, if given.
        """
        ...

    async def rotate_audit_key(self) -> str:
        """Replace the key that signs the audit; returns the new public one. The old key signs the change.

        The old private key is deleted; its signatures stay valid, and its public half stays with them.
        """
        ...

    async def accept_audit(self, who: str, reason: str) -> None:
        """Enter that a person accepts the audit as it is, and replace the signed head: after a restore."""
        ...


class Payers(NamedTuple):
    """On whose account a run is."""

    repo: str
    who: str


class Totals(Protocol):
    """What all runs have spent, in one moment of the log."""

    def payers(self, run: RunId) -> Payers: ...

    def spent(self, since_day: int) -> dict[Payers, Spend]:
        """Return what was spent since a day, counted from 1970, and what is held for calls under way."""
        ...

    def extended(self, level: Level, name: str, since_day: int) -> dict[Resource, float]:
        """Return what people added to one level's limits since a day."""
        ...


class Hold(NamedTuple):
    """What a call may take at most is held under its ticket while `owner` lives."""

    ticket: str
    run: RunId
    owner: OwnerId


class BudgetStore(Protocol):
    """What all runs have spent: a fold of the log with its own cursor, and the holds of calls under way."""

    async def reserve(self, hold: Hold, decide: Callable[[Totals], tuple[T, Spend | None]]) -> T:
        """Call `decide` with current totals and store the spend that it returns as a hold, in one transaction.

        Holds of dead owners do not count.
        """
        ...

    async def release(self, ticket: str) -> None:
        """Drop a hold. A ticket without one is fine."""
        ...

    async def totals(self, read: Callable[[Totals], T]) -> T:
        """Call `read`, which runs in a thread, with the totals of one moment."""
        ...


class Latency:
    """How long writes took, counted by bounds as a monitor reads them, and what they were about."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
    """In seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.seconds = 0.0
        self.done: Counter[tuple[str, str]] = Counter()
        """What the appended events tell of, and how it went."""

    def count(self, bodies: Iterable[AnyBody]) -> None:
        """Count what a monitor wants to know of durable events."""
        for body in bodies:
            match body:
                case AttemptStarted():
                    self.done["attempts", "started"] += 1
                case ModelReplied() | ModelFailed():
                    self.done["model_calls", "ok" if isinstance(body, ModelReplied) else "failed"] += 1
                case ToolReturned():
                    self.done["tool_calls", "ok" if body.ok else "failed"] += 1
                case ConnectionDecided() | RequestDecided():
                    self.done["door", body.effect] += 1
                case _:
                    pass

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.seconds += seconds


class Backbone(AuditLog, BudgetStore, Protocol):
    """Every verb on durable state. Writes are durable before they return.

    Raises `UserError` (`no_such_run`) for unknown ids.
    """

    @property
    def latency(self) -> Latency:
        """How long the writes of this process took, from the call until they were durable."""
        ...

    async def admit(self, new: NewRun, who: str) -> tuple[RunId, bool]:
        """Make a run: event 1 is durable when this returns. The same `new.key` gives the same run; a request
        that differs from the one it stands for raises `UserError` (`key_taken`).

        The flag says whether the run was made now.
        """
        ...

    async def claim(self, owner: OwnerId, run: RunId | None = None) -> Fence | None:
        """Take the oldest run that is queued or whose owner is dead; with `run`, that one or none.

        An owner may claim a run that it paused (`RunPaused`) again, by name.
        Appends `RunClaimed` under a new epoch, which fences the previous owner.
        """
        ...

    async def append(
        self, fence: Fence, bodies: Sequence[AnyBody], last: int | None = None
    ) -> tuple[Event, ...]:
        """Append in one transaction, all or none; durable before followers see it.

        With `last`, only if the log still ends with that event; else append nothing and return ().
        Raises `Fenced` when the run was claimed again, and `UserError` (`run_finished`) after `RunFinished`.
        """
        ...

    async def append_outside(self, run: RunId, body: FromOutside) -> Event:
        """Append what comes from a person; needs no fence.

        A `PromptReceived` for a finished run appends `RunContinued` before it and queues the run again. A
        `ChangeDelivered` is for a finished run only (`run_not_finished`), whose end follows it once more; anything
        else for a finished run raises `UserError` (`run_finished`).
        A body with the `key` of an earlier one of the same person appends nothing: the earlier event is returned.
        `UserError` (`key_taken`) if the two differ.
        """
        ...

    async def forget(self, run: RunId, who: str) -> bool:
        """Remove a finished run with its events. What the audit says stays, with a signed entry of the removal.

        Returns False, and removes nothing, while later numbers are counted from this run: it is the newest, or has
        the newest event. Raises `UserError` (`run_not_finished`).
        """
        ...

    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]:
        """Return events with `seq > after`, in order."""
        ...

    async def since(
        self, cursor: int, kinds: Collection[str], limit: int = 1_000
    ) -> tuple[int, tuple[Event, ...]]:
        """Return events of all runs in the order of their commits, of some kinds, and the cursor behind them.

        A reader that keeps the cursor sees each event once; 0 is the beginning.
        """
        ...

    def follow(
        self,
        run: RunId,
        after: int = 0,
        *,
        deltas: bool = True,
        direct: Callable[[Event], bool] | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Delta]]:
        """Replay the log after `after`, then go on live, without gap or repetition, until `RunFinished`.

        `direct`, if given, is offered each live event in its turn, as soon as it is durable; one that it takes (it
        returns True) is not yielded. It must not wait or raise.

        Deltas of runs that this process drives come between, unless `deltas` is false. A slow reader misses
        deltas, never events.
        """
        ...

    def publish(self, run: RunId, delta: Delta) -> None:
        """Send a fragment to the current followers. Never waits, never fails, never stores it."""
        ...

    async def runs(
        self,
        limit: int = 100,
        *,
        before: RunId | None = None,
        only: RunFilter | None = None,
        told: bool = True,
        seen: Seen | None = None,
    ) -> tuple[RunRow, ...]:
        """List runs, newest first; `before` is the cursor: the last run of the page before.

        `seen`, here and below, leaves out runs as if they did not exist. Unless `told`, questions and costs are left out: they take a look at the log of each run.
        """
        ...

    async def counts(self, seen: Seen | None = None) -> tuple[RunCount, ...]:
        """Count all runs by state and outcome."""
        ...

    async def row(self, run: RunId, *, told: bool = True) -> RunRow:
        """Return one run; unless `told`, without what takes a look at its log."""
        ...

    async def sent(self, run: RunId, who: str, key: str) -> Event | None:
        """Return the event that a person's message with this `key` caused; None if none came."""
        ...

    async def keyed(self, key: str) -> RunId | None:
        """Return the run that was admitted with this key."""
        ...

    async def changes(self, after: int | None, most: int) -> Changes:
        """Return the unfinished runs, and those with an event after `after`, a cursor of the whole log.

        With None, the newest `most`; never more finished ones than `most`. The newest first.
        """
        ...

    def news(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Inside the block, call what it yields to wait until any run has changed since the last call."""
        ...

    async def resolve(self, prefix: str, seen: Seen | None = None) -> RunId:
        """Return the run whose id starts with `prefix` (the leading `r-` is optional); `last` is the newest.

        Raises `UserError` with code `no_such_run` or `ambiguous_run`.
        """
        ...
