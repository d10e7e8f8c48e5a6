"""After the pull request: comments of people and failures of CI continue the same run until it is merged or closed."""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2
import msgspec
from anyio import to_thread

from cloister.core import limits
from cloister.core.errors import CloisterError
from cloister.core.events import ChangeDelivered, ChangeMade, Event, PromptReceived, RunFinished
from cloister.core.ids import RunId
from cloister.core.log import Index
from cloister.core.text import bounded, harmless, one_line
from cloister.feedback.api import CheckOutput
from cloister.feedback.compare import compare
from cloister.feedback.report import tell
from cloister.forge import Forges
from cloister.forge.pulls.api import Job, Pulls, Talk
from cloister.forge.pulls.hosted import client
from cloister.log.api import Backbone

logger = logging.getLogger(__name__)

MARK = "<!-- cloister -->"
"""In every comment of ours, so that it is not read as a person's."""
CI_ROUNDS = 2
"""Rounds in a row that failures of CI start without a person in between."""
_REMARK_CHARS = 20_000
_LOG_CHARS = 6_000
_RUNS = 500
"""Finished runs whose pull requests are followed, newest first."""


# Pure: what a pull request asks of its run.


class FollowUp(msgspec.Struct, frozen=True):
    """Messages that continue the run, or a comment that ends the automatic rounds."""

    prompts: tuple[PromptReceived, ...] = ()
    comment: str = ""


def delivered(events: Sequence[Event]) -> ChangeDelivered | None:
    """The pull request of a finished run; None without one."""
    if not isinstance(events[-1].body, RunFinished):
        return None
    found = Index(events).last(ChangeDelivered)
    return found if found is not None and found.url else None


def follow_up(events: Sequence[Event], talk: Talk, logs: Mapping[str, str]) -> FollowUp:
    """What is new at the pull request since the run last heard of it. `logs` are those of failed jobs, by name.

    Only people who may push to the repository are heard. CI counts when all its jobs for the newest commit ended.
    """
    said = Index(events).of(PromptReceived)
    known = {one.ref for one in said}
    own = any(MARK in one.text for one in talk.remarks)
    new = [
        PromptReceived(
            _remark_text(one.text, one.path, one.line), f"{one.who} (review)", "review", f"remark {one.id}"
        )
        for one in talk.remarks
        if one.may_write and MARK not in one.text and f"remark {one.id}" not in known
    ]
    if new:
        return FollowUp(tuple(new))
    failed = failed_jobs(events, talk)
    ref = _ci_ref(events, failed)
    if not failed or ref in known:
        return FollowUp()
    if _ci_rounds(said) >= CI_ROUNDS:
        return FollowUp(comment="" if own else _summary(failed))
    text = "\n\n".join(_job_text(one, logs.get(one.name)) for one in failed)
    return FollowUp((PromptReceived(bounded(text, _REMARK_CHARS), "ci", "ci", ref),))


def failed_jobs(events: Sequence[Event], talk: Talk) -> tuple[Job, ...]:
    """The failed jobs of the commit that the run delivered; none while some still run."""
    made = Index(events).last(ChangeMade)
    seen = talk.pull.commit
    if (
        made is None
        or not seen
        or not made.commit.startswith(seen)
        or any(one.state == "running" for one in talk.jobs)
    ):
        return ()
    return tuple(one for one in talk.jobs if one.state == "failed")


def _ci_ref(events: Sequence[Event], failed: Sequence[Job]) -> str:
    made = Index(events).last(ChangeMade)
    names = "\n".join(sorted(one.name for one in failed))
    return f"ci {made.commit if made else ''} {hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _ci_rounds(said: Sequence[PromptReceived]) -> int:
    """Messages of CI since a person last said something."""
    count = 0
    for one in reversed(said):
        if one.origin != "ci":
            break
        count += 1
    return count


def _remark_text(text: str, path: str, line: int) -> str:
    where = f"About {one_line(path, 200)}, line {line}:\n" if path else ""
    return f"{where}{bounded(harmless(text), _REMARK_CHARS)}"


def _job_text(job: Job, log: str | None) -> str:
    from cloister.feedback.diagnose import diagnose  # noqa: PLC0415  (its parsers take long to load)

    head = f"The CI job {one_line(job.name, 200)} failed on this change."
    if not log:
        return f"{head} Its log cannot be read here: {one_line(job.url, 300) or 'the forge names none'}."
    output = CheckOutput(f"CI: {one_line(job.name, 200)}", 1, None, 0.0, log.encode(), b"")
    found = diagnose(output)
    return f"{head}\n{tell(compare((), (found,)), (found,), _LOG_CHARS)}"


def _summary(failed: Sequence[Job]) -> str:
    names = ", ".join(f"`{one_line(one.name, 80).replace('`', '')}`" for one in failed[:10])
    return (
        f"{MARK}\nCI still fails after {CI_ROUNDS} automatic rounds: {names}. "
        "The run stops here; a comment of a person who may push to this repository continues it."
    )


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
    who: str
    """The person in whose name the audit states the end of a pull request."""
    marks: Path
    """The file with the pull requests that ended, so that they are not looked at again."""
    seconds: float
    _ended: dict[str, str] = field(default_factory=dict[str, str])
    _without: dict[str, float] = field(default_factory=dict[str, float])
    """Runs without a pull request → when they last changed."""

    async def run(self) -> None:
        """Never returns."""
        self._ended = _read_marks(self.marks)
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("pull requests cannot be followed now")
            await anyio.sleep(self.seconds)

    async def look(self) -> None:
        """Look once at every pull request that is still open."""
        async with client() as http:
            for row in await self.backbone.runs(_RUNS, told=False):
                known = row.id in self._ended or self._without.get(row.id) == row.updated_at
                if row.state != "finished" or known:
                    continue
                try:
                    if not await self._of_run(row.id, http):
                        self._without[row.id] = row.updated_at
                except CloisterError as error:
                    if error.code == "run_removed":  # its pull request stays, and the run cannot continue
                        self._without[row.id] = row.updated_at
                    logger.warning("the pull request of %s cannot be followed now: %s", row.id, error.message)
                except Exception:
                    logger.exception("the pull request of %s cannot be followed", row.id)

    async def _of_run(self, run: RunId, http: httpx2.AsyncClient) -> bool:
        """Return False for a run without a pull request."""
        events = await self.read(run)
        sent = delivered(events)
        hosted = self.forges.hosted(sent.where) if sent else None
        if sent is None or hosted is None:
            return False
        pulls = hosted.pulls(http, sent.where)
        talk = await pulls.read(sent.number)
        if talk.pull.state != "open":
            await self._end(run, sent, talk.pull.state)
            return True
        logs = await _logs(pulls, failed_jobs(events, talk))
        due = await to_thread.run_sync(follow_up, events, talk, logs)  # parses logs
        if due.comment:
            await pulls.comment(sent.number, due.comment)
        for prompt in due.prompts:
            await self.tell(run, prompt)
        return True

    async def _end(self, run: RunId, sent: ChangeDelivered, state: str) -> None:
        await self.backbone.note("PullRequestEnded", self.who, {"run": run, "url": sent.url, "state": state})
        self._ended[run] = state
        newest = dict(list(self._ended.items())[-10 * _RUNS :])
        temporary = self.marks.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(newest))
        temporary.replace(self.marks)


async def _logs(pulls: Pulls, failed: Sequence[Job]) -> dict[str, str]:
    found = {one.name: await pulls.job_log(one) for one in failed[: limits.CHECKS]}
    return {name: text for name, text in found.items() if text}


def _read_marks(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}
