"""The result of a run: the change as a commit on a branch with its proof, delivered; and removing a run's files."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import anyio
import msgspec
from anyio import to_thread

from cloister.agent.taint import Provenance
from cloister.core import limits
from cloister.core.addresses import repository_matches, without_userinfo
from cloister.core.attempts import ForkedFrom
from cloister.core.diagnosis import Comparison, statement
from cloister.core.errors import CloisterError, HostError, OutsideError, UserError
from cloister.core.events import (
    ActionDecided,
    AttemptEnded,
    BaseFixed,
    BaselineTaken,
    ChangeDelivered,
    ChangeMade,
    ChecksChosen,
    DeliveryFailed,
    Event,
    PromptReceived,
    QuestionAnswered,
    RunAdmitted,
    SandboxUsed,
)
from cloister.core.events.run import BasePart
from cloister.core.ids import RunId
from cloister.core.log import (
    Index,
    Journal,
    attempts_of,
    request_of,
    round_start,
)
from cloister.core.requests import NewRun, Retention, SavePointLimits, State
from cloister.core.text import one_line
from cloister.feedback.compare import compare
from cloister.forge import Forges, change
from cloister.forge.api import Delivered, PagePictures, Proposal, Removed, RunRepositories
from cloister.forge.plain_git import is_url, origin_of
from cloister.forge.several import split
from cloister.log.api import Backbone, RunRow
from cloister.log.attachments import Attachments
from cloister.log.audit.entry import Checkpoint
from cloister.log.journal import AttemptJournal
from cloister.policy.api import PushAction
from cloister.policy.decide import Decider
from cloister.runs import pull_request
from cloister.runs.attempts.tree import all_points, point_at
from cloister.runs.attempts.work import attempt_commit, base_commit, furthest, last_change, result_commit
from cloister.runs.pull_request import pictured
from cloister.runs.receipt import Pending, page, receipt
from cloister.runs.run_rules import Part, check_change, parts_of
from cloister.sandbox.api import Host

if TYPE_CHECKING:
    from cloister.runs.services import RunServices

logger = logging.getLogger(__name__)


async def remove_files(
    repositories: RunRepositories, run: RunId, state: Callable[[], Awaitable[State]], who: str
) -> Removed:
    """Delete the run's own repository: its change, its attempts' diffs and its save points.

    Raises `UserError` (`run_not_finished`).
    """
    working = UserError(
        "run_not_finished", f"Run {run} is not finished: stop it first (`cloister stop {run}`)."
    )
    if await state() != "finished":
        raise working
    try:
        async with repositories.working(run, alone=True):
            if await state() != "finished":  # a message continued it meanwhile
                raise working
            return await repositories.remove(run, who)
    except TimeoutError:
        raise working from None


_AT_FORGE, _AT_REVIEW = " (trigger)", " (review)"
"""At the end of the name of a person who asked at a forge, or wrote at a pull request."""
_DEADLINE = "deadline"
_DELIVERED = ("proven", "unbroken", "unproven")
"""Outcomes that are delivered at once; the change of any other waits for `apply`."""

_FIRST_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 120.0
"""Between two tries to deliver to a forge that cannot be reached."""


async def make_result(
    services: "RunServices", journal: Journal, run: RunId, winner: AttemptEnded | None
) -> None:
    """Commit the winner's files (without one, the furthest save point) to the run's branch and deliver it.

    Raises `UserError` (`denied`) if a rule denies a path of it. Each round that changes files adds one commit. Steps that the log already has are skipped: the change is
    recorded before it is delivered, so a failed delivery loses nothing.
    """
    events = journal.events
    base = base_commit(events)
    saved = winner.commit if winner is not None else furthest(events)
    if base is None or saved is None:
        return
    request = request_of(events)
    branch = change.branch_name(request.prompt, run)
    start = round_start(events)
    before = _before(events)
    known = last_change(events[start:])
    bare = await services.repositories.open(run)
    previous = before[1].commit if before else base
    if saved == previous or (not known and not await change.files_of_save(bare, previous, saved)):
        return
    await check_change(services.run_policy(request), bare, base, saved if known is None else known[1].commit)
    if known is None:
        files = await change.files_of_save(bare, base, saved)
        # The receipt as of now: the end and its signature follow, and are in `cloister receipt`.
        note = page(receipt(events, await _audit_head(services), Pending(branch, files)))
        last = "\n".join((change.trailer(note), *_co_authors(events, services.people)))
        message = _message(events, run, winner, last)
        commit = await change.make_change(bare, previous, saved, branch, message, services.author)
        await change.attach(bare, commit, note)

        def of(part: BasePart) -> str:
            return _message(events, run, winner, f"{last}\nCloister-Repository: {part.folder}")

        earlier, fixed = before[1].parts if before else (), Index(events).last(BaseFixed)
        parts = await split(bare, fixed.parts if fixed else (), saved, earlier, of, services.author)
        for part in parts:
            await change.attach(bare, part.commit, note)
        made = ChangeMade(branch, commit, files, winner.reason if winner else "", parts)
        await journal.append(made)
    else:
        made = known[1]
    if winner is not None and winner.outcome in _DELIVERED:
        await _deliver(services, journal, winner, made)


async def _deliver(services: "RunServices", journal: Journal, winner: AttemptEnded, made: ChangeMade) -> None:
    """Bring the change where the request wants it. A forge that does not take it is recorded; the change stays."""
    events = journal.events
    done = Index(events[round_start(events) :]).of(ChangeDelivered, DeliveryFailed)
    wanted = await targets(services.forges, request_of(events))
    # A pull request that a person opened is kept up to date, too.
    opened = (Target(one.where, one.folder) for one in Index(events).of(ChangeDelivered) if one.url)
    known = {Target(without_userinfo(one.address), one.folder) for one in wanted}
    all_of_them = (*wanted, *(one for one in dict.fromkeys(opened) if one not in known))
    due = [one for one in all_of_them if change_at(made, one.folder) is not None]
    for target in due[len(done) :]:
        if await _may_deliver(services, journal, winner, target.address, made.branch):
            kept = Kept(services.repositories, services.attachments)
            proposal = await propose(kept, journal.events, winner, made, target)
            proposal = msgspec.structs.replace(proposal, follows=_earlier_branch(events, target))
            try:
                await deliver_patiently(services.forges, journal, proposal, target.folder)
            except (OutsideError, UserError) as error:
                # Of several repositories, what one of them refuses keeps no other from its change.
                if isinstance(error, UserError) and not target.folder:
                    raise
                await journal.append(
                    DeliveryFailed(without_userinfo(target.address), error.message, target.folder)
                )


def _earlier_branch(events: Sequence[Event], target: "Target") -> str:
    """The branch at `target` from which an earlier round opened a pull request; empty without one."""
    sent = reversed(Index(events).of(ChangeDelivered))
    return next((one.branch for one in sent if _is_at(one, target) and one.url), "")


def _is_at(sent: ChangeDelivered, target: "Target") -> bool:
    return (sent.where, sent.folder) == (without_userinfo(target.address), target.folder)


def change_at(made: ChangeMade, folder: str) -> str | None:
    """The commit of one of several repositories, or without a folder of the only one; None if it has no change."""
    own = (part.commit for part in made.parts if part.folder == folder)
    return next(own, None) if folder else made.commit


def delivery(sent: Delivered, folder: str = "") -> ChangeDelivered:
    """The event of a delivery."""
    return ChangeDelivered(
        sent.where, sent.branch, sent.receipt, sent.url or "", sent.number or 0, folder=folder
    )


def part_named(events: Sequence[Event], folder: str | None) -> Part:
    """The repository of a run, of several the one in `folder`.

    Raises `UserError` (`several_repositories`, `no_such_repository`).
    """
    request, run = request_of(events), events[0].run
    parts = parts_of(request)
    names = ", ".join(part.folder for part in parts) or "none"
    if not parts and not folder:
        return Part("", request.repo)
    if not folder:
        raise UserError("several_repositories", f"Run {run} has several repositories, so name one: {names}.")
    found = next((part for part in parts if part.folder == folder), None)
    if found is None:
        raise UserError(
            "no_such_repository", f"Run {run} has no repository {one_line(folder, 80)}: there are {names}."
        )
    return found


class Target(NamedTuple):
    """Where a change goes."""

    address: str
    folder: str = ""
    """Of a run on several repositories: which one."""


async def targets(forges: Forges, request: NewRun) -> tuple[Target, ...]:
    """Where the changes go. Raises `UserError` (`no_forge`)."""
    places = parts_of(request) or (Part("", request.repo),)
    found = [(part, await _addresses(forges, request, part.repo)) for part in places]
    return tuple(Target(address, part.folder) for part, addresses in found for address in addresses)


async def _addresses(forges: Forges, request: NewRun, repo: str) -> tuple[str, ...]:
    hosted = forges.hosted(repo)
    if request.pull_request is False:
        return () if hosted else (repo,)
    if not request.pull_request or hosted:
        return (repo,)
    origin = None if is_url(repo) else await origin_of(repo)
    if origin is None or forges.hosted(origin) is None:
        where = without_userinfo(one_line(origin or repo, 200))
        raise UserError(
            "no_forge",
            f"There is no forge for {where}: name its host in a [[forge]] table of the settings, or leave out --pr.",
        )
    return (repo, origin)


class Kept(NamedTuple):
    """What the host keeps of runs beside their logs."""

    repositories: RunRepositories
    attachments: Attachments


async def propose(
    kept: Kept,
    events: Sequence[Event],
    winner: AttemptEnded,
    made: ChangeMade,
    target: Target,
) -> Proposal:
    """The change as it goes to `target`, with the text of a pull request. Raises `UserError` (`no_change`)."""
    run, fixed = events[0].run, Index(events).last(BaseFixed)
    before, commit = _before_at(events, target), change_at(made, target.folder)
    own = next((part for part in fixed.parts if part.folder == target.folder), None) if fixed else None
    base = own or fixed
    if commit is None:
        raise UserError("no_change", f"Run {run} has changed nothing in {one_line(target.folder, 100)}.")
    earlier = change_at(before[1], target.folder) if before else None
    proposal = await change.describe(
        Proposal(
            run,
            target.address,
            base.commit if base else "",
            commit,
            made.branch,
            await kept.repositories.open(run),
            previous=earlier or (base and base.commit),
            rebased=before is not None and before[0] < _base_fixed(events),
            onto=base.branch if base else None,
            draft=winner.outcome != "proven",
            who=asker(events),
        )
    )
    about = pull_request.part_of(made, target.folder, commit) if target.folder else made
    page = pull_request.page(events, winner, about, proposal.receipt, target.folder)
    pictures = await to_thread.run_sync(_pictures, events, winner, kept.attachments)
    return msgspec.structs.replace(proposal, page=page, pictures=pictures)


def _pictures(events: Sequence[Event], winner: AttemptEnded, store: Attachments) -> tuple[PagePictures, ...]:
    """The pages that look different with the change."""
    taken = pictured(events, winner)
    if taken is None:
        return ()
    before, after = ({one.name: one.sha256 for one in found} for found in (taken.before, taken.after))

    def read(sha256: str | None) -> bytes:
        return (sha256 and store.read(events[0].run, sha256)) or b""

    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return tuple(PagePictures(name, read(before.get(name)), read(after.get(name))) for name in names)


def asker(events: Sequence[Event]) -> str:
    """Who asked for the run, as `Proposal.who`; empty once another person had a hand in it.

    SAFETY: forges do not let authors approve their own changes, so one person must not speak through another's.
    """
    who = events[0].body.who if isinstance(events[0].body, RunAdmitted) else ""
    name = who.removesuffix(_AT_FORGE)
    own = {who, f"{name}{_AT_REVIEW}", _DEADLINE} if who != name else {who, _DEADLINE}
    said = Index(events).of(PromptReceived, QuestionAnswered, SandboxUsed)
    if any(
        one.who not in own for one in said if not (isinstance(one, PromptReceived) and one.origin == "ci")
    ):
        return ""
    return f"@{name}" if who != name else who


def _base_fixed(events: Sequence[Event]) -> int:
    """The number of the event that fixed the base, after a rebase the newest; 0 without one."""
    return max((event.seq for event in events if isinstance(event.body, BaseFixed)), default=0)


def _before(events: Sequence[Event]) -> tuple[int, ChangeMade] | None:
    """The change that this round adds to: the newest one of earlier rounds on the present base."""
    return last_change(events[_base_fixed(events) : round_start(events)])


def _before_at(events: Sequence[Event], target: Target) -> tuple[int, ChangeMade] | None:
    """The change that `target` has: the last one delivered there, else the newest one of earlier rounds."""
    sent = (event.seq for event, body in Index(events).events(ChangeDelivered) if _is_at(body, target))
    return last_change(events[: max(sent, default=round_start(events))])


async def deliver_patiently(forges: Forges, journal: Journal, proposal: Proposal, folder: str = "") -> None:
    """Deliver, again and again while the forge cannot be reached. Raises the last `OutsideError`."""
    deadline = anyio.current_time() + limits.DELIVERY_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            # A stop that comes now must not leave a branch that the log does not have.
            with anyio.CancelScope(shield=True):
                sent = await forges.at(proposal.repository).deliver(proposal)
                if sent is not None:
                    await journal.append(delivery(sent, folder))
                return
        except OutsideError as error:
            pause = max(pause, error.after)
            if not error.retryable or anyio.current_time() + pause > deadline:
                raise
            logger.warning("run %s is not delivered yet: %s", proposal.run, error.message)
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _audit_head(services: "RunServices") -> Checkpoint | None:
    """The signed head of the audit, which leaves the machine with the change."""
    try:
        return await to_thread.run_sync(services.audit_head)
    except HostError:
        return None  # `cloister audit verify` says why


async def _may_deliver(
    services: "RunServices", journal: Journal, winner: AttemptEnded, target: str, branch: str
) -> bool:
    """True if the rules allow the push. If they ask, a person applies the change."""
    action, request = PushAction(target, f"refs/heads/{branch}"), request_of(journal.events)
    untrusted = Provenance(winner.attempt, AttemptJournal(journal, winner.attempt)).untrusted
    decision = Decider(services.run_policy(request)).decide(action, untrusted=untrusted)
    if decision.effect == "allow":
        return True
    await journal.append(
        ActionDecided(winner.attempt, "", f"push: {one_line(branch)}", decision.effect, decision.rule)
    )
    return False


def _message(events: Sequence[Event], run: RunId, winner: AttemptEnded | None, last: str) -> str:
    """The commit message: the summary, then the proof."""
    summary = winner.reason.strip() if winner else ""
    subject = one_line(summary.split("\n", 1)[0] or "Unfinished work", 72)
    body = summary if "\n" in summary or len(summary) > len(subject) else ""
    proof = f"{_proof(events, run, winner)}\n{last}"
    return "\n\n".join(part for part in (subject, body, proof) if part) + "\n"


def _co_authors(events: Sequence[Event], people: Mapping[str, str]) -> list[str]:
    """A line for each person who asked for the change of this round, or worked on it, and whose address the settings name."""
    start = round_start(events)
    asked = [e.body.who for e in events[start:] if isinstance(e.body, PromptReceived | SandboxUsed)]
    if start == 0 and isinstance(events[0].body, RunAdmitted):
        asked.insert(0, events[0].body.who)
    names = dict.fromkeys(who.removesuffix(_AT_REVIEW).removesuffix(_AT_FORGE) for who in asked)
    return [f"Co-authored-by: {people[who]}" for who in names if who in people]


def _proof(events: Sequence[Event], run: RunId, winner: AttemptEnded | None) -> str:
    lines: list[str] = []
    for event in events[_base_fixed(events) :]:
        match event.body:
            case ChecksChosen() as chosen:
                lines += [f"Check: {one_line(check, 200)}" for check in chosen.checks]
            case BaselineTaken() as baseline:
                before = compare(baseline.diagnoses, baseline.diagnoses)
                lines.append(f"Before: {_count(before)}")
            case _:
                pass
    if winner is not None and lines:
        lines.append(f"Now: {_count(winner.comparison)}")
        lines.append(f"Outcome: {winner.outcome}: {statement(winner.comparison)}")
        lines += [f"Note: {one_line(note, 300)}" for note in winner.comparison.notes]
    return "\n".join([*lines, f"Cloister-Run: {run}"])


def _count(comparison: Comparison) -> str:
    old = (
        f" ({len(comparison.unrelated)} of them on the base already, unrelated)"
        if comparison.unrelated
        else ""
    )
    return f"{comparison.red} red{old}, {comparison.passed} passed"


# The save points of runs that ended long ago are removed; results stay. A result is the change of each round, the last
# save point of each attempt, and the save point from which a message continues the run. Only a rewind or a fork to an
# earlier turn needs the others.


_LOOK_SECONDS = 3_600.0
_PAGE = 256
_DAY_SECONDS = 86_400.0


class Removal(msgspec.Struct, frozen=True):
    """Something that is removed because it is old."""

    kind: Literal["log", "files", "save_points", "snapshot"]
    id: str
    """Of the run or the snapshot."""
    since: float
    """When the run ended, or the snapshot was taken."""
    about: str = ""
    """The run's repository, or the snapshot's name."""


@dataclass(frozen=True, slots=True)
class Collector:
    """Removes what is older than the settings keep: finished runs, their files and save points, and snapshots."""

    backbone: Backbone
    read: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    """The whole log of a run."""
    repositories: RunRepositories
    limits: SavePointLimits
    who: str
    """The person in whose name the audit states it."""
    retention: Retention = field(default_factory=Retention)
    machine: Host | None = None
    """Whose snapshots are removed."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await self.collect()
            except CloisterError as error:
                logger.warning("old files cannot be removed now: %s", error.message)
            except Exception:
                logger.exception("old files cannot be removed")
            await anyio.sleep(_LOOK_SECONDS)

    async def collect(self, *, dry: bool = False) -> tuple[Removal, ...]:
        """Remove what is due, or if `dry` nothing; returns what."""
        oldest = time.time() - self.limits.days * _DAY_SECONDS
        rows = [row async for row in self._rows()]
        newest = [row.id for row in rows[:1]]  # its number is the one that the next run counts from
        finished = [row for row in rows if row.state == "finished"]
        forked = {origin.run for origin in await self._origins()}
        found: list[Removal] = []
        for at, row in enumerate(finished):
            files, logs = (time.time() - days * _DAY_SECONDS for days in self._days(row.repo))
            if row.updated_at <= logs and row.id not in forked and row.id not in newest:
                if dry or await self._forget(row):
                    found.append(Removal("log", row.id, row.updated_at, row.repo))
            elif row.updated_at <= files and row.id not in forked:
                if await self.repositories.exists(row.id) and (dry or await self._remove(row)):
                    found.append(Removal("files", row.id, row.updated_at, row.repo))
            elif at < self.limits.runs and row.updated_at > oldest:
                continue
            elif await self._of_run(row, dry=dry):
                found.append(Removal("save_points", row.id, row.updated_at, row.repo))
        return (*found, *await self._old_snapshots(dry=dry))

    def _days(self, repo: str) -> tuple[float, float]:
        """How long the files and the logs of a repository's runs are kept."""
        kept = self.retention
        one = next((one for one in kept.project if repository_matches(one.match, repo)), None)
        files, logs = (None, None) if one is None else (one.files_days, one.logs_days)
        return kept.files_days if files is None else files, kept.logs_days if logs is None else logs

    async def _forget(self, row: RunRow) -> bool:
        """Remove a run with its files and its log."""
        if await self.repositories.exists(row.id) and not await self._remove(row):
            return False
        try:
            return await self.backbone.forget(row.id, self.who)
        except CloisterError as error:
            logger.warning("the log of run %s was not removed: %s", row.id, error.message)
            return False

    async def _remove(self, row: RunRow) -> bool:
        async def state() -> State:
            # A message may have continued the run meanwhile, and a fork of it may have begun.
            await check_not_forked(self.backbone, row.id)
            return (await self.backbone.row(row.id)).state

        try:
            await remove_files(self.repositories, row.id, state, self.who)
        except CloisterError as error:
            logger.warning("the files of run %s were not removed: %s", row.id, error.message)
            return False
        await self.backbone.note("RunRemoved", self.who, {"run": row.id})
        return True

    async def _old_snapshots(self, *, dry: bool) -> list[Removal]:
        oldest, found = time.time() - self.retention.snapshots_days * _DAY_SECONDS, list[Removal]()
        if self.machine is None or oldest == float("-inf"):
            return found
        for one in [one for one in await self.machine.snapshots() if one.created_at <= oldest]:
            if not dry:
                try:
                    await self.machine.delete_snapshot(one.id)
                except CloisterError as error:  # the others are removed all the same
                    logger.warning("the snapshot %s was not removed: %s", one.id, error.message)
                    continue
                await self.backbone.note("SnapshotRemoved", self.who, {"snapshot": one.id})
            found.append(Removal("snapshot", one.id, one.created_at, one.name or ""))
        return found

    def _rows(self) -> AsyncIterator[RunRow]:
        return _every_row(lambda before: self.backbone.runs(_PAGE, before=before, told=False))

    async def _of_run(self, row: RunRow, *, dry: bool) -> bool:
        lost: set[str] = set()

        async def kept() -> frozenset[str] | None:
            # Read under the lock: a message may have continued the run meanwhile.
            if (await self.backbone.row(row.id)).state != "finished":
                return None
            events = await self.read(row.id)
            commits = result_commits(events) | await self._needed_by_forks(row.id, events)
            lost.update({point.commit for _, point in all_points(events).values()} - commits)
            return commits

        if dry:
            return self.repositories.collectable(row.id, row.updated_at) and bool(await kept() and lost)
        try:
            done = await self.repositories.collect(row.id, row.updated_at, kept)
        except CloisterError as error:
            logger.warning("the save points of run %s were not collected: %s", row.id, error.message)
            return False
        if done and lost:
            await self.backbone.note("SavePointsRemoved", self.who, {"run": row.id, "commits": len(lost)})
        return done and bool(lost)

    async def _needed_by_forks(self, run: RunId, events: Sequence[Event]) -> frozenset[str]:
        """The save points of `run` that unfinished forks continue from."""
        points = all_points(events)
        needed = (origin.seq for origin in await self._origins() if origin.run == run)
        return frozenset(points[seq][1].commit for seq in needed if seq in points)

    async def _origins(self) -> list[ForkedFrom]:
        """What unfinished forks continue."""
        return [origin for _, origin in await unfinished_forks(self._rows(), self.backbone)]


async def _every_row(
    page_before: Callable[[RunId | None], Awaitable[tuple[RunRow, ...]]],
) -> AsyncIterator[RunRow]:
    """Every run, newest first."""
    before: RunId | None = None
    while page := await page_before(before):
        for row in page:
            yield row
        before = page[-1].id


class _Log(Protocol):
    async def runs(self, limit: int, *, before: RunId | None = None) -> tuple[RunRow, ...]: ...
    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]: ...


class _Reader(Protocol):
    async def read(self, run: RunId, after: int = 0, limit: int = 10_000) -> tuple[Event, ...]: ...


async def unfinished_forks(rows: AsyncIterator[RunRow], log: _Reader) -> list[tuple[RunId, ForkedFrom]]:
    """The forks that have not ended, and the save point that each continues."""
    found: list[tuple[RunId, ForkedFrom]] = []
    async for row in rows:
        if row.state == "finished":
            continue
        admitted = (await log.read(row.id, limit=1))[0].body
        if isinstance(admitted, RunAdmitted) and admitted.request.forked_from is not None:
            found.append((row.id, admitted.request.forked_from))
    return found


async def check_not_forked(log: _Log, run: RunId) -> None:
    """Raises `UserError` (`run_forked`) if a fork of the run that has not ended may need its files."""
    forks = await unfinished_forks(_every_row(lambda before: log.runs(_PAGE, before=before)), log)
    fork = next((fork for fork, origin in forks if origin.run == run), None)
    if fork is not None:
        raise UserError(
            "run_forked",
            f"The fork {fork} continues run {run} and has not ended: wait for it, or stop it (`cloister stop {fork}`).",
        )


def result_commits(events: Sequence[Event]) -> frozenset[str]:
    """The commits that a finished run keeps."""
    ends = [e.body.commit for e in events if isinstance(e.body, AttemptEnded | ChangeMade)]
    last = [attempt_commit(events, number) for number in attempts_of(events)]
    further = [point_at(events, None)[1].commit] if all_points(events) else []
    named = (base_commit(events), result_commit(events), *ends, *last, *further)
    return frozenset(commit for commit in named if commit)
