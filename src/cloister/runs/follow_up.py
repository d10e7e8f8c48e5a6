"""After the pull request: comments of people and failures of CI continue the same run until it is merged or closed."""

import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2
import msgspec
from anyio import to_thread

from cloister.core import limits
from cloister.core.addresses import canonical_repository
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import CloisterError, UserError
from cloister.core.events import ChangeDelivered, ChangeMade, Event, PromptReceived, RunFinished
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
from cloister.log.api import Backbone, RunRow
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
_RUNS = 500
"""Finished runs whose pull requests are followed, newest first."""


# Pure: what a pull request asks of its run.


class FollowUp(msgspec.Struct, frozen=True):
    """Messages that continue the run, or a comment that ends the automatic rounds."""

    prompts: tuple[PromptReceived, ...] = ()
    comment: str = ""


def delivered(events: Sequence[Event]) -> tuple[ChangeDelivered, ...]:
    """The pull requests of a finished run, one for each of its repositories."""
    if not isinstance(events[-1].body, RunFinished):
        return ()
    newest = {one.folder: one for one in Index(events).of(ChangeDelivered)}
    return tuple(one for one in newest.values() if one.url)


def follow_up(
    events: Sequence[Event],
    talk: Talk,
    logs: Mapping[str, str],
    ours: "Ours",
    base_logs: Mapping[str, str] | None = None,
) -> FollowUp:
    """What is new at the pull request since the run last heard of it. `logs` are those of failed jobs, by name.

    `ours` knows our comments there. `base_logs` are those of the base: a job that fails there in the same way costs no round.

    Only people who may push to the repository are heard. CI counts when all its jobs for the newest commit ended.
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
    if talk.pull.conflicts and _is_ours(events, talk, ours):
        return _replay(events, talk, ours)
    failed = failed_jobs(events, talk, ours)
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


def failed_jobs(events: Sequence[Event], talk: Talk, ours: "Ours") -> tuple[Job, ...]:
    """The failed jobs of the commit that the run delivered; none while some still run, or once they were answered."""
    if not _is_ours(events, talk, ours) or any(one.state == "running" for one in talk.jobs):
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


# The effects: look at each pull request from time to time.


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
    ended: Path
    """The file with the pull requests that ended, so that they are not looked at again."""
    seconds: float
    _ended: dict[str, str] = field(default_factory=dict[str, str])
    _without: dict[str, float] = field(default_factory=dict[str, float])
    """Runs without a pull request → when they last changed."""
    _places: dict[str, tuple[float, frozenset[str]]] = field(
        default_factory=dict[str, tuple[float, frozenset[str]]]
    )
    """Runs with a pull request → when they last changed, and the repositories."""
    _pulls: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """Open pull requests, by run and folder → repository and number."""
    _looking: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("pull requests cannot be followed now")
            await anyio.sleep(self.seconds or math.inf)

    async def look(self, only: Collection[str] | None = None) -> set[str]:
        """Look once at every pull request that is still open; with `only`, those of these repositories.

        Return the repositories that could not be looked at now.
        """
        failed: set[str] = set()
        async with self._looking, client() as http:
            self._ended = self._ended or _read_ended(self.ended)
            for row in await self.backbone.runs(_RUNS, told=False):
                known = row.id in self._ended or self._without.get(row.id) == row.updated_at
                if row.state != "finished" or known:
                    continue
                changed, places = self._places.get(row.id, (0.0, frozenset[str]()))
                if only is not None and changed == row.updated_at and places.isdisjoint(only):
                    continue
                try:
                    failed |= await self._look_at(row, only, http)
                except CloisterError as error:  # its log cannot be read
                    failed |= places
                    logger.warning("the pull request of %s cannot be followed now: %s", row.id, error.message)
                except Exception:
                    logger.exception("the pull request of %s cannot be followed", row.id)
        return failed

    async def _look_at(self, row: RunRow, only: Collection[str] | None, http: httpx2.AsyncClient) -> set[str]:
        """Look at the open pull requests of one run; return the repositories that could not be looked at."""
        events, failed = await self.read(row.id), set[str]()
        sent = [one for one in delivered(events) if self.forges.hosted(one.where) is not None]
        sent = [one for one in sent if _key(row.id, one) not in self._ended]
        if not sent:
            self._without[row.id] = row.updated_at
            return failed
        self._places[row.id] = (row.updated_at, frozenset(canonical_repository(one.where) for one in sent))
        for one in sent:
            place = canonical_repository(one.where)
            self._pulls[_key(row.id, one)] = (place, one.number)
            if only is not None and place not in only:
                continue
            try:
                if await self._of_run(events, one, http):
                    break  # the run works again; its other pull requests are looked at after that
            except CloisterError as error:
                if error.code == "run_removed":  # its pull request stays, and the run cannot continue
                    self._without[row.id] = row.updated_at
                else:
                    failed.add(place)
                logger.warning("the pull request of %s cannot be followed now: %s", row.id, error.message)
        return failed

    def follows(self, place: str, number: int) -> bool:
        """True for the open pull request of a run, after a look at its repository."""
        return (place, number) in self._pulls.values()

    async def _of_run(self, events: Sequence[Event], sent: ChangeDelivered, http: httpx2.AsyncClient) -> bool:
        """Look at one pull request; return True if the run continues."""
        hosted, run = self.forges.hosted(sent.where), events[0].run
        if hosted is None:
            return False
        pulls = hosted.pulls(http, sent.where)
        talk = await pulls.read(sent.number)
        if talk.pull.state != "open":
            await self._end(run, sent, talk.pull.state, await self._clean(hosted, events, sent))
            return False
        ours = ours_at(self.marks, sent)
        failed = failed_jobs(events, talk, ours)
        logs, base = await _logs(pulls, failed), await _logs(pulls, failed_on_base(failed, talk))
        due = await to_thread.run_sync(follow_up, events, talk, logs, ours, base)  # parses logs
        if due.comment:
            await pulls.comment(sent.number, due.comment)
        for prompt in due.prompts:
            await self.tell(run, prompt)
        return bool(due.prompts)

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

    async def _end(self, run: RunId, sent: ChangeDelivered, state: str, cleaned: bool) -> None:
        detail = {"run": run, "url": sent.url, "state": state, "branch_removed": cleaned}
        await self.backbone.note("PullRequestEnded", self.who, detail)
        self._ended[_key(run, sent)] = state
        self._pulls.pop(_key(run, sent), None)
        newest = dict(list(self._ended.items())[-10 * _RUNS :])
        temporary = self.ended.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(newest))
        temporary.replace(self.ended)


def _key(run: RunId, sent: ChangeDelivered) -> str:
    """The name of one pull request of a run."""
    return f"{run} {sent.folder}" if sent.folder else run


async def _logs(pulls: Pulls, failed: Sequence[Job]) -> dict[str, str]:
    found = {one.name: await pulls.job_log(one) for one in failed[: limits.CHECKS]}
    return {name: text for name, text in found.items() if text}


def _read_ended(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}
