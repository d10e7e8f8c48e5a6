"""After the pull request: comments of people and failures of CI continue the same run until it is merged or closed."""

import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import httpx2
import msgspec
from anyio import to_thread

from cloister.core import limits
from cloister.core.addresses import canonical_repository
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import ChangeDelivered, ChangeMade, Event, PromptReceived
from cloister.core.ids import RunId
from cloister.core.log import CONFLICTS, REBASE, Index
from cloister.core.text import bounded, harmless, one_line
from cloister.feedback.api import CheckOutput
from cloister.feedback.compare import compare
from cloister.feedback.report import tell
from cloister.forge import Forges
from cloister.forge.pulls.api import Job, Pulls, Remark, Spot, Talk
from cloister.forge.pulls.hosted import Hosted, client
from cloister.forge.pulls.marks import Marks
from cloister.log.api import Backbone
from cloister.runs.attempts.rebase import request_rebase
from cloister.runs.delivery import change_at

logger = logging.getLogger(__name__)

CI_ROUNDS = 2
"""Rounds in a row that failures of CI start without a person in between."""
_REMARK_CHARS = 20_000
_LOG_CHARS = 6_000
_STILL = f"CI still fails after {CI_ROUNDS} automatic rounds"
_CONFLICTS = (
    f"This change conflicts with its base, after {CI_ROUNDS} automatic rounds. The run stops here; "
    "`cloister rebase`, or a comment of a person who may push to this repository, continues it."
)
PATIENCE_SECONDS = 3_600.0
"""How long failed jobs wait for those that still run: an approval may be pending for ever."""
_SLOW_SECONDS = 60.0
"""Then the other pull requests at this forge wait for the next look."""
_IDLE_PART, _IDLE_SECONDS, _EACH_SECONDS = 12, 600.0, 4.0
"""A pull request rests for this part of the time since it last changed, at most so long, or so long for each one at its forge."""
_PAGE = 1_000


# Pure: what a pull request asks of its run.


class FollowUp(msgspec.Struct, frozen=True):
    """Messages that continue the run, or a comment that ends the automatic rounds."""

    prompts: tuple[PromptReceived, ...] = ()
    comment: str = ""


def follow_up(
    events: Sequence[Event],
    talk: Talk,
    logs: Mapping[str, str],
    ours: "Ours",
    base_logs: Mapping[str, str] | None = None,
    *,
    late: bool = False,
) -> FollowUp:
    """What is new at the pull request since the run last heard of it. `logs` are those of failed jobs, by name.

    `ours` knows our comments there. `base_logs` are those of the base: a job that fails there in the same way costs no round.

    Only people who may push to the repository are heard. CI counts when all its jobs for the newest commit ended, or `late`.
    """
    said = Index(events).of(PromptReceived)
    known = {one.ref for one in said}
    new = [
        PromptReceived(
            _remark_text(one.text, ours.path(one.path), one.line),
            f"{one.who} (review)",
            "review",
            ours.ref(one),
        )
        for one in talk.remarks
        if one.may_write and not ours.wrote(one.text) and ours.ref(one) not in known
    ]
    if new:
        return FollowUp(tuple(new))
    if talk.deaf and any(not one.may_write and not ours.wrote(one.text) for one in talk.remarks):
        mark = ours.mark("deaf")
        if not _told(talk, mark):
            return FollowUp(comment=f"{mark}\nComments here are not heard: {talk.deaf}.")
    if talk.pull.conflicts and _is_ours(events, talk, ours):
        return _replay(events, talk, ours)
    failed = failed_jobs(events, talk, ours, late=late)
    if not failed:
        return FollowUp()
    ref, before = _ci_ref(events, failed, ours), base_logs or {}
    alike = [one for one in failed if _alike(one, logs.get(one.name), before.get(one.name))]
    unclear = [one for one in failed if one not in alike and _fails_without_log(one, talk)]
    own = tuple(one for one in failed if one not in alike and one not in unclear)
    aside = _aside(alike, unclear, [one for one in talk.jobs if one.flaky])
    if not own:
        return FollowUp(comment=f"{ours.mark(ref)}\n{aside} This costs no round.")
    if _ci_rounds(said) >= CI_ROUNDS:
        still = ours.mark(f"still {ref}")
        return FollowUp(comment="" if _told(talk, still) else f"{still}\n{_summary(own, aside)}")
    about = f"At the pull request of {ours.folder}:" if ours.folder else ""
    texts = (about, *(_job_text(one, logs.get(one.name)) for one in own), aside)
    text = "\n\n".join(filter(None, texts))
    return FollowUp((PromptReceived(bounded(text, _REMARK_CHARS), "ci", "ci", ref),))


def failed_jobs(events: Sequence[Event], talk: Talk, ours: "Ours", *, late: bool = False) -> tuple[Job, ...]:
    """The failed jobs of the commit that the run delivered; none while some still run unless `late`, or once they were answered."""
    runs = any(one.state == "running" for one in talk.jobs)
    if not _is_ours(events, talk, ours) or (runs and not late):
        return ()
    failed = tuple(one for one in talk.jobs if one.state == "failed")
    ref = _ci_ref(events, failed, ours)
    answered = any(one.ref == ref for one in Index(events).of(PromptReceived)) or _told(talk, ours.mark(ref))
    return () if answered else failed


def failed_on_base(failed: Sequence[Job], talk: Talk) -> tuple[Job, ...]:
    """The jobs of the base that failed and have the name of a failed job."""
    names = {one.name for one in failed}
    return tuple(one for one in talk.base_jobs if one.state == "failed" and one.name in names)


class Ours(msgspec.Struct, frozen=True):
    """Knows our own comments at one pull request by their marks."""

    marks: Marks
    place: str
    spot: Spot
    folder: str = ""
    """Of a run on several repositories: which one."""

    def mark(self, about: str) -> str:
        return self.marks.sign(self.place, self.spot, about)

    def wrote(self, text: str) -> bool:
        return self.marks.is_ours(self.place, self.spot, text)

    def ref(self, remark: Remark) -> str:
        """What says in the run's log that a comment was heard."""
        return f"remark {self.folder}/{remark.id}" if self.folder else f"remark {remark.id}"

    def path(self, path: str) -> str:
        """Where a file of the pull request is in the work tree."""
        return f"{self.folder}/{path}" if self.folder and path else path


def ours_at(marks: Marks, sent: ChangeDelivered) -> Ours:
    """Our comments at the pull request of a delivery."""
    return Ours(marks, canonical_repository(sent.where), Spot("pull", sent.number), sent.folder)


def _told(talk: Talk, mark: str) -> bool:
    """True if a comment has this mark, which only we can make."""
    return any(mark in one.text for one in talk.remarks)


def _alike(job: Job, log: str | None, base_log: str | None) -> bool:
    """True if the logs show that the job fails in the same way on the base: the same tests, no new complaint."""
    if not log or not base_log:
        return False
    now, base = _diagnosis(job, log), _diagnosis(job, base_log)
    names = [{test.name for test in one.failing} for one in (now, base)]
    shown = any(names) or (now.diagnostics and base.diagnostics)
    return bool(shown) and names[0] <= names[1] and not compare((base,), (now,)).new


def _fails_without_log(job: Job, talk: Talk) -> bool:
    """True if the job fails on the base, too, and the forge has no log that would tell whether in the same way."""
    return not job.id and any(not one.id for one in failed_on_base([job], talk))


def _is_ours(events: Sequence[Event], talk: Talk, ours: Ours) -> bool:
    """True if the newest commit of the pull request is the one that the run delivered."""
    made, seen = _made(events, ours), talk.pull.commit
    return bool(seen) and made.startswith(seen)


def _made(events: Sequence[Event], ours: Ours) -> str:
    """The commit of the run's newest change for this pull request; empty without one."""
    made = Index(events).last(ChangeMade)
    return (change_at(made, ours.folder) if made is not None else None) or ""


def _replay(events: Sequence[Event], talk: Talk, ours: Ours) -> FollowUp:
    """Replay the change on its moved base, once for each commit of ours."""
    said = Index(events).of(PromptReceived)
    ref = f"{REBASE} {_made(events, ours)}"
    if any(one.ref == ref for one in said):
        return FollowUp()
    if _ci_rounds(said) >= CI_ROUNDS:
        mark = ours.mark(f"conflicts {ref}")
        return FollowUp(comment="" if _told(talk, mark) else f"{mark}\n{_CONFLICTS}")
    try:
        return FollowUp((request_rebase(events, "ci", "ci", ref),))
    except UserError:  # it started from a commit, which does not move
        return FollowUp()


def _ci_ref(events: Sequence[Event], failed: Sequence[Job], ours: Ours) -> str:
    names = "\n".join(sorted(one.name for one in failed))
    return f"ci {_made(events, ours)} {hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _ci_rounds(said: Sequence[PromptReceived]) -> int:
    """Messages of CI since a person last said something."""
    count = 0
    for one in reversed(said):
        if one.origin != "ci":
            break
        count += one.ref != CONFLICTS  # those belong to the round of a rebase
    return count


def _remark_text(text: str, path: str, line: int) -> str:
    where = f"About {one_line(path, 200)}, line {line}:\n" if path else ""
    return f"{where}{bounded(harmless(text), _REMARK_CHARS)}"


def _diagnosis(job: Job, log: str) -> Diagnosis:
    from cloister.feedback.diagnose import diagnose  # noqa: PLC0415  (its parsers take long to load)

    return diagnose(CheckOutput(f"CI: {one_line(job.name, 200)}", 1, None, 0.0, log.encode(), b""))


def _job_text(job: Job, log: str | None) -> str:
    head = f"The CI job {one_line(job.name, 200)} failed on this change."
    if not log:
        return f"{head} Its log cannot be read here: {one_line(job.url, 300) or 'the forge names none'}."
    found = _diagnosis(job, log)
    return f"{head}\n{tell(compare((), (found,)), (found,), _LOG_CHARS)}"


def _names(jobs: Sequence[Job]) -> str:
    return ", ".join(f"`{one_line(one.name, 80).replace('`', '')}`" for one in jobs[:10])


def _summary(failed: Sequence[Job], aside: str) -> str:
    return (
        f"{_STILL}: {_names(failed)}. "
        "The run stops here; a comment of a person who may push to this repository continues it."
        + (f" {aside}" if aside else "")
    )


def _aside(on_base: Sequence[Job], unclear: Sequence[Job], flaky: Sequence[Job]) -> str:
    """Sentences about the failures that this change did not cause."""
    base = (
        f"In the same way on the newest commit of the base branch fail: {_names(on_base)}." if on_base else ""
    )
    also = (
        f"Failing as well on the newest commit of the base branch, without a log that would tell why: {_names(unclear)}."
        if unclear
        else ""
    )
    passed = f"Failed first, and passed when run again on the same commit: {_names(flaky)}." if flaky else ""
    return " ".join(filter(None, (base, also, passed)))


# The effects: look at each open pull request from time to time.


class _Open(msgspec.Struct, frozen=True):
    """An open pull request of a run."""

    run: RunId
    sent: ChangeDelivered

    @property
    def key(self) -> str:
        """The name of one pull request of a run."""
        return f"{self.run} {self.sent.folder}" if self.sent.folder else self.run

    @property
    def place(self) -> str:
        return canonical_repository(self.sent.where)


class _Kept(msgspec.Struct):
    """The open pull requests that the log names up to a cursor."""

    cursor: int
    open: dict[str, _Open] = {}


class _Seen(msgspec.Struct, frozen=True):
    """What a look found that asked for nothing."""

    what: tuple[bytes, int, bool]
    """The pull request, the last event of its run, and whether failed jobs waited long enough."""
    at: float
    """When it was first seen so, by the monotonic clock."""
    failed: tuple[str, float] | None
    """The commit with a failed job, and since when."""


@dataclass(slots=True)
class Follower:
    """Follows the pull requests of finished runs while a server lives."""

    forges: Forges
    backbone: Backbone
    read: Callable[[RunId], Awaitable[tuple[Event, ...]]]
    """The whole log of a run."""
    tell: Callable[[RunId, PromptReceived], Awaitable[None]]
    """Continue the run with a message."""
    bare: Callable[[RunId], Awaitable[Path]]
    """The repository of a run. Raises `UserError` (`run_removed`)."""
    who: str
    """The person in whose name the audit states the end of a pull request."""
    marks: Marks
    """Of our comments."""
    file: Path
    """Where the open pull requests are kept; without it they are found in the log again."""
    seconds: float
    patience: float = PATIENCE_SECONDS
    _kept: _Kept | None = None
    _ended: frozenset[str] = frozenset()
    """Those that had ended before the list was begun."""
    _seen: dict[str, _Seen] = field(default_factory=dict[str, _Seen])
    _due: dict[str, float] = field(default_factory=dict[str, float])
    _busy: dict[str, anyio.Lock] = field(default_factory=dict[str, anyio.Lock])
    """Forge → held while its pull requests are looked at. They wait for no other forge."""
    _alone: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a run receives messages, or the file is written."""

    async def run(self) -> None:
        """Never returns."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    for host, ones in (await self._by_host()).items():
                        due = [one for one in ones if self._due.get(one.key, 0.0) <= anyio.current_time()]
                        if due and not self._lock(host).locked():
                            tasks.start_soon(self._look_at, host, due, set[str](), len(ones))
                except Exception:
                    logger.exception("pull requests cannot be followed now")
                await anyio.sleep(self.seconds or math.inf)

    async def look(self, only: Collection[str] | None = None) -> set[str]:
        """Look once at every pull request that is still open; with `only`, those of these repositories.

        Return the repositories that could not be looked at now.
        """
        failed: set[str] = set()
        async with anyio.create_task_group() as tasks:
            for host, ones in (await self._by_host()).items():
                wanted = [one for one in ones if only is None or one.place in only]
                if wanted:
                    tasks.start_soon(self._look_at, host, wanted, failed, len(ones))
        return failed

    def follows(self, place: str, number: int) -> bool:
        """True for the open pull request of a run, as of the last `update`."""
        there = self._kept.open.values() if self._kept else ()
        return any((one.place, one.sent.number) == (place, number) for one in there)

    async def update(self) -> None:
        """Learn from the log of pull requests that were opened since the last time."""
        async with self._alone:
            if self._kept is None:
                self._kept, self._ended = await to_thread.run_sync(_read_kept, self.file)
            kept, found, page = self._kept, False, _PAGE
            while page == _PAGE:
                kept.cursor, events = await self.backbone.since(kept.cursor, ("ChangeDelivered",), _PAGE)
                page = len(events)
                for event in events:
                    if isinstance(event.body, ChangeDelivered) and event.body.url:
                        one = _Open(event.run, event.body)
                        if one.key not in self._ended:
                            kept.open[one.key], found = one, True
            self._ended = frozenset()
            if found:
                await to_thread.run_sync(_write_kept, self.file, kept)

    async def _by_host(self) -> dict[str, list[_Open]]:
        await self.update()
        hosts: dict[str, list[_Open]] = {}
        for one in self._kept.open.values() if self._kept else ():
            if self.forges.hosted(one.sent.where) is not None:
                hosts.setdefault(one.place.partition("/")[0], []).append(one)
        return hosts

    def _lock(self, host: str) -> anyio.Lock:
        return self._busy.setdefault(host, anyio.Lock())

    async def _look_at(self, host: str, ones: Sequence[_Open], failed: set[str], every: int) -> None:
        """Look at pull requests of one forge, which has so many; add the repositories that could not be looked at."""
        async with self._lock(host), client() as http:
            for at, one in enumerate(ones):
                try:
                    with anyio.fail_after(_SLOW_SECONDS):
                        await self._of_run(one, http)
                except TimeoutError:
                    self._due[one.key] = anyio.current_time() + _IDLE_SECONDS  # the others come first
                    failed |= {other.place for other in ones[at:]}
                    logger.warning("the pull requests at %s cannot be followed now: it is too slow", host)
                    return
                except CloisterError as error:
                    if error.code in ("run_removed", "no_such_run"):  # it stays, and the run cannot continue
                        with suppress(OSError):  # a full disk; it is tried again
                            await self._forget(one)
                    else:
                        failed.add(one.place)
                    logger.warning(
                        "the pull request of %s cannot be followed now: %s", one.run, error.message
                    )
                except Exception:
                    logger.exception("the pull request of %s cannot be followed", one.run)
                seen, now = self._seen.get(one.key), anyio.current_time()
                rest = min(
                    (now - seen.at) / _IDLE_PART if seen else 0.0, max(_IDLE_SECONDS, _EACH_SECONDS * every)
                )
                self._due[one.key] = now + rest

    async def _of_run(self, one: _Open, http: httpx2.AsyncClient) -> None:
        """Look at one pull request, and continue its run if something asks for that."""
        hosted, sent = self.forges.hosted(one.sent.where), one.sent
        row = await self.backbone.row(one.run, told=False)
        if hosted is None or row.state != "finished":
            return
        pulls = hosted.pulls(http, sent.where)
        talk = await pulls.read(sent.number)
        if talk.pull.state != "open":
            events = await self.read(one.run)
            await self._end(one, talk.pull.state, await self._clean(hosted, events, sent))
            return
        seen = self._glance(one, talk, row.last_seq)
        if self._seen.get(one.key) == seen:
            return
        events, ours, late = await self.read(one.run), ours_at(self.marks, sent), seen.what[2]
        failed = failed_jobs(events, talk, ours, late=late)
        logs, base = await _logs(pulls, failed), await _logs(pulls, failed_on_base(failed, talk))
        asked = partial(follow_up, events, talk, logs, ours, base, late=late)
        due = await to_thread.run_sync(asked)  # parses logs
        if due.comment:
            await pulls.comment(sent.number, due.comment)
        with anyio.CancelScope(shield=bool(due.prompts)):
            async with self._alone:
                # Another of its pull requests, or a person, may have continued it meanwhile.
                if due.prompts and (await self.backbone.row(one.run, told=False)).last_seq == events[-1].seq:
                    for prompt in due.prompts:
                        await self.tell(one.run, prompt)
        if due == FollowUp():
            self._seen[one.key] = seen

    def _glance(self, one: _Open, talk: Talk, last: int) -> _Seen:
        """What a look finds; the same as before if nothing changed."""
        before, now = self._seen.get(one.key), anyio.current_time()
        failed = before.failed if before else None
        if not any(job.state == "failed" for job in talk.jobs):
            failed = None
        elif failed is None or failed[0] != talk.pull.commit:
            failed = (talk.pull.commit, now)
        late = failed is not None and now - failed[1] >= self.patience
        what = (hashlib.sha256(msgspec.json.encode(talk)).digest(), last, late)
        return _Seen(what, before.at if before and before.what == what else now, failed)

    async def _clean(self, hosted: Hosted, events: Sequence[Event], sent: ChangeDelivered) -> bool:
        """Delete the branch at the forge, unless it has commits of others. The run's own repository keeps the change."""
        # A change after it was not delivered: the pull request had ended before.
        at = max(number for number, one in enumerate(events) if one.body == sent)
        made = Index(events[:at]).last(ChangeMade)
        commit = change_at(made, sent.folder) if made is not None else None
        if commit is None:
            return False
        try:
            bare = await self.bare(events[0].run)
            return await hosted.remove_branch(bare, sent.where, sent.branch, commit)
        except CloisterError as error:
            logger.warning("the branch %s stays at its forge: %s", sent.branch, error.message)
            return False

    async def _end(self, one: _Open, state: str, cleaned: bool) -> None:
        detail = {"run": one.run, "url": one.sent.url, "state": state, "branch_removed": cleaned}
        await self.backbone.note("PullRequestEnded", self.who, detail)
        await self._forget(one)

    async def _forget(self, one: _Open) -> None:
        async with self._alone:
            if self._kept is not None and self._kept.open.get(one.key) == one:
                del self._kept.open[one.key]
                await to_thread.run_sync(_write_kept, self.file, self._kept)
            self._seen.pop(one.key, None)
            self._due.pop(one.key, None)


async def _logs(pulls: Pulls, failed: Sequence[Job]) -> dict[str, str]:
    found = {one.name: await pulls.job_log(one) for one in failed[: limits.CHECKS]}
    return {name: text for name, text in found.items() if text}


def _read_kept(path: Path) -> tuple[_Kept, frozenset[str]]:
    """What is kept; from an older version the pull requests that ended."""
    try:
        data = path.read_bytes()
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(data, type=_Kept), frozenset()
        return _Kept(0), frozenset(msgspec.json.decode(data, type=dict[str, str]))
    except (OSError, msgspec.MsgspecError):
        return _Kept(0), frozenset()


def _write_kept(path: Path, kept: _Kept) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(kept))
    temporary.replace(path)
